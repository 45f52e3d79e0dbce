"""stats.py - the arithmetic of samples: medians, percentiles, ratios within a turn, bands over seeds.

Pure functions on lists of numbers. None stands for what is not known; it is never counted.
"""
import math
import statistics


def known(values):
    """The numbers among them."""
    return [value for value in values if value is not None and math.isfinite(value)]


def median(values):
    """None without values."""
    values = known(values)
    return statistics.median(values) if values else None


def percentile(values, part):
    """The value below which that part (0 to 1) of them lies, between neighbours by weight."""
    values = sorted(known(values))
    if not values:
        return None
    at = part * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def mean(values):
    values = known(values)
    return sum(values) / len(values) if values else None


def spread(values):
    """Largest less smallest; None for fewer than two."""
    values = known(values)
    return max(values) - min(values) if len(values) > 1 else None


def tail_mean(values, part=0.1):
    """Of the last part of them, at least one."""
    values = known(values)
    if not values:
        return None
    return mean(values[-max(1, round(part * len(values))):])


def ratios(ours, theirs):
    """{turn: value} of two rows -> the ratios ours / theirs of the turns that both have. A machine
    drifts by more between turns than rows differ, so rows are never compared across turns."""
    return [ours[turn] / theirs[turn] for turn in sorted(ours)
            if ours.get(turn) is not None and theirs.get(turn)]


def ratio(ours, theirs):
    """(median, smallest, largest) of them; None where no turn has both."""
    found = ratios(ours, theirs)
    return (statistics.median(found), min(found), max(found)) if found else None


def band(curves):
    """Curves of several seeds, each a list by step -> (middle, low, high) by step, as far as the
    shortest goes."""
    length = min((len(curve) for curve in curves), default=0)
    middle, low, high = [], [], []
    for at in range(length):
        values = known([curve[at] for curve in curves])
        middle.append(statistics.median(values) if values else None)
        low.append(min(values) if values else None)
        high.append(max(values) if values else None)
    return middle, low, high


def smooth(values, width):
    """Means over the last `width` values, for a curve that a reader follows."""
    found, window = [], []
    for value in values:
        window.append(value)
        window = window[-width:]
        found.append(mean(window))
    return found


def worst_difference(ours, theirs):
    """The largest relative difference of two series, and at which index; None where nothing pairs."""
    worst = None
    for at, (mine, its) in enumerate(zip(ours, theirs)):
        if mine is None or its is None:
            continue
        off = abs(mine - its) / max(abs(its), 1e-30)
        if worst is None or off > worst[0]:
            worst = (off, at)
    return worst
