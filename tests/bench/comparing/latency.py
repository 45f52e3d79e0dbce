"""latency.py - dpbench --latency: 4 bytes after idling, and what idling costs."""
import os
import re

from comparing.process import Failed, Late, run
from comparing.ways import median_of

LOCK_SETTING = "--schedule"  # a libdp without it never locks


def has_lock(build):
    """Whether this libdp can be told to lock its schedule or not."""
    try:
        return LOCK_SETTING in run([os.path.join(build, "dprun"), "--help"], 20)
    except Failed:
        return False


def empty():
    """{"locked"|"unlocked": {gap in us: [us, ...]}, "idle": [% of a core]}."""
    return {"locked": {}, "unlocked": {}, "idle": []}


LINE = re.compile(r"([\d.]+) us idle +[\d.]+ +([\d.]+) +[\d.]+ +\(\d+ iterations, +(\d+) % (?:locked|scheduled)")
IDLE = re.compile(r"idle CPU of a rank: ([\d.]+) %")


def read(text, found):
    """Adds what a dpbench --latency printed. A pause has two lines, one of either mode."""
    for gap, median, locked in LINE.findall(text):
        mode = "locked" if int(locked) >= 50 else "unlocked"
        found[mode].setdefault(float(gap), []).append(float(median))
    found["idle"] += [float(share) for share in IDLE.findall(text)]


def measure(lab, turns, found):
    settings = [f"{LOCK_SETTING}=auto"] if has_lock(lab.build) else []
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
        for mode in ("locked", "unlocked"):
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
