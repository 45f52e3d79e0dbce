"""latency.py - dpbench --latency: 4 bytes after idling, and what idling costs."""
import os
import re

from measuring.process import Failed, Late, run
from comparing.ways import median_of

SCHEDULE_SETTING = "--schedule"  # a libdp without it takes its default


def has_setting(build):
    """Whether this libdp can be told to cache its schedule or not."""
    try:
        return SCHEDULE_SETTING in run([os.path.join(build, "dprun"), "--help"], 20)
    except Failed:
        return False


def empty():
    """{"scheduled"|"negotiated": {gap in us: [us, ...]}, "idle": [% of a core]}."""
    return {"scheduled": {}, "negotiated": {}, "idle": []}


LINE = re.compile(r"([\d.]+) us idle +[\d.]+ +([\d.]+) +[\d.]+ +"
                  r"\(\d+ iterations, +(\d+) % (?:scheduled|locked)")
IDLE = re.compile(r"idle CPU of a rank: ([\d.]+) %")


def read(text, found):
    """Adds what a dpbench --latency printed. A pause has two lines, one of either mode."""
    for gap, median, scheduled in LINE.findall(text):
        mode = "scheduled" if int(scheduled) >= 50 else "negotiated"
        found[mode].setdefault(float(gap), []).append(float(median))
    found["idle"] += [float(share) for share in IDLE.findall(text)]


def measure(lab, turns, found):
    settings = [f"{SCHEDULE_SETTING}=auto"] if has_setting(lab.build) else []
    for turn in range(turns):
        try:
            read(run([os.path.join(lab.build, "dprun"), "-np", 2, "--no-prefix", *settings,
                      os.path.join(lab.build, "dpbench"), "--latency"], lab.limit(60)), found)
        except Late:
            raise
        except Failed as error:
            lab.note("dpbench --latency", error)
            continue
        said = []
        for mode in ("scheduled", "negotiated"):
            worst = worst_after_idle(found, mode)
            said.append(f"{mode} {worst[0]:.0f} us after {worst[1] / 1e3:g} ms" if worst
                        else f"{mode}: no figures")
        lab.say(f"  turn {turn + 1} of {turns}: {', '.join(said)}")


def worst_after_idle(found, mode):
    """(the largest of the gaps' medians in us, the gap in us); None without figures."""
    medians = {gap: median_of(values) for gap, values in found[mode].items() if gap > 0}
    if not medians:
        return None
    gap = max(medians, key=medians.get)
    return medians[gap], gap
