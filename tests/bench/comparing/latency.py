"""latency.py - dpbench --latency: 4 bytes after idling, and what idling costs."""
import os
import re

from measuring.process import Failed, Late, run
from comparing.ways import median_of


def empty():
    """{"gaps": {gap in us: [us, ...]}, "idle": [% of a core]}."""
    return {"gaps": {}, "idle": []}


LINE = re.compile(r"([\d.]+) us idle +[\d.]+ +([\d.]+) +[\d.]+ +\(\d+ iterations")
IDLE = re.compile(r"idle CPU of a rank: ([\d.]+) %")


def read(text, found):
    """Adds what a dpbench --latency printed."""
    for gap, median in LINE.findall(text):
        found["gaps"].setdefault(float(gap), []).append(float(median))
    found["idle"] += [float(share) for share in IDLE.findall(text)]


def measure(lab, turns, found):
    for turn in range(turns):
        try:
            read(run([os.path.join(lab.build, "dprun"), "-np", 2, "--no-prefix",
                      os.path.join(lab.build, "dpbench"), "--latency"], lab.limit(60)), found)
        except Late:
            raise
        except Failed as error:
            lab.note("dpbench --latency", error)
            continue
        worst = worst_after_idle(found)
        lab.say(f"  turn {turn + 1} of {turns}: "
                + (f"{worst[0]:.0f} us after {worst[1] / 1e3:g} ms" if worst else "no figures"))


def worst_after_idle(found):
    """(the largest of the gaps' medians in us, the gap in us); None without figures."""
    medians = {gap: median_of(values) for gap, values in found["gaps"].items() if gap > 0}
    if not medians:
        return None
    gap = max(medians, key=medians.get)
    return medians[gap], gap
