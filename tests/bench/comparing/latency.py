"""latency.py - dpbench --latency: 4 bytes after idling, and what idling costs."""
import os
import re

from comparing.process import Failed, run
from comparing.ways import median_of

LOCK_SETTING = "--lock"  # a libdp without it never locks


def has_lock(build):
    """Whether this libdp can be told to lock its schedule or not."""
    try:
        return LOCK_SETTING in run([os.path.join(build, "dprun"), "--help"], 20)
    except Failed:
        return False


def measure(lab, turns):
    """{"locked"|"unlocked": {gap in us: [us, ...]}, "idle": [% of a core]}."""
    found = {"locked": {}, "unlocked": {}, "idle": []}
    modes = {"unlocked": []}
    if has_lock(lab.build):
        modes = {"locked": [f"{LOCK_SETTING}=auto"], "unlocked": [f"{LOCK_SETTING}=off"]}
    for _ in range(turns):
        for mode, settings in modes.items():
            try:
                text = run([os.path.join(lab.build, "dprun"), "-np", 2, "--no-prefix", *settings,
                            os.path.join(lab.build, "dpbench"), "--latency"], 120)
            except Failed as error:
                lab.failures.append(f"dpbench --latency: {error}")
                continue
            for gap, median in re.findall(r"([\d.]+) us idle +[\d.]+ +([\d.]+)", text):
                found[mode].setdefault(float(gap), []).append(float(median))
            found["idle"] += [float(x) for x in re.findall(r"idle CPU of a rank: ([\d.]+) %", text)]
    return found


def worst_after_idle(found, mode):
    """(the largest of the gaps' medians in us, the gap in us); None without figures."""
    medians = {gap: median_of(values) for gap, values in found[mode].items() if gap > 0}
    if not medians:
        return None
    gap = max(medians, key=medians.get)
    return medians[gap], gap
