"""plot.py - writes a chart with two logarithmic axes as SVG, for a page read in light or dark."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 76, 236, 48, 68
LABEL = 56  # pixels that the label of a size takes
# Told apart by those who do not see red and green alike (Okabe and Ito 2008).
COLOURS = ["#D55E00", "#E69F00", "#555555", "#999999", "#0072B2", "#56B4E9", "#7B61C9", "#009E73",
           "#CC79A7", "#8C6D1F", "#000000"]
DASHES = {"ours": "", "floor": "2 4", "peer": "7 3"}


def size_text(size):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


class Axis:
    """A logarithmic axis between two pixels."""

    def __init__(self, least, most, from_pixel, to_pixel):
        self.low, self.high = math.log(least), math.log(max(most, least * 1.001))
        self.from_pixel, self.to_pixel = from_pixel, to_pixel

    def at(self, value):
        part = (math.log(value) - self.low) / (self.high - self.low)
        return self.from_pixel + part * (self.to_pixel - self.from_pixel)


def _number(value):
    return f"{value:g}" if value < 1e4 else f"{value:.0e}".replace("e+0", "e")


def _grid(sizes, x, y, low, high, unit):
    lines = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        value = 10.0 ** power
        if not low <= value <= high:
            continue
        height = y.at(value)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" '
                     f'y2="{height:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">'
                     f'{_number(value)}</text>')
    ends = [0, 0]  # of the last label in each of two rows
    for size in sizes:
        at = x.at(size)
        row = 0 if at - LABEL / 2 >= ends[0] else 1
        ends[row] = at + LABEL / 2
        lines.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" '
                     f'y2="{HEIGHT - BOTTOM}"/>')
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18 + 14 * row}" '
                     f'text-anchor="middle">{size_text(size)}</text>')
    lines.append(f'<text x="{LEFT - 8}" y="{TOP - 12}" text-anchor="end">{escape(unit)}</text>')
    return lines


def _line(index, series, x, y):
    label, kind, points = series
    colour, weight = COLOURS[index % len(COLOURS)], 3 if kind == "ours" else 1.8
    path = " ".join(f"{x.at(size):.1f},{y.at(value):.1f}" for size, value in points)
    lines = [f'<polyline fill="none" stroke="{colour}" stroke-width="{weight}" '
             f'stroke-dasharray="{DASHES[kind]}" points="{path}"/>']
    lines += [f'<circle cx="{x.at(size):.1f}" cy="{y.at(value):.1f}" r="3" fill="{colour}"/>'
              for size, value in points]
    height = TOP + 12 + 24 * index
    left = WIDTH - RIGHT + 18
    lines.append(f'<line x1="{left}" x2="{left + 28}" y1="{height}" y2="{height}" '
                 f'stroke="{colour}" stroke-width="{weight}" '
                 f'stroke-dasharray="{DASHES[kind]}"/>')
    lines.append(f'<text x="{left + 36}" y="{height + 4}">{escape(label)}</text>')
    return lines


def chart(title, unit, all_series):
    """SVG text. all_series: (label, kind, [(bytes, value)]) in the legend's order."""
    all_series = [series for series in all_series if series[2]]
    sizes = sorted({size for _, _, points in all_series for size, _ in points})
    values = [value for _, _, points in all_series for _, value in points]
    low, high = min(values) / 1.5, max(values) * 1.5
    x = Axis(sizes[0], sizes[-1], LEFT + 24, WIDTH - RIGHT - 24)
    y = Axis(low, high, HEIGHT - BOTTOM, TOP)
    body = _grid(sizes, x, y, low, high, unit)
    for index, series in enumerate(all_series):
        body += _line(index, series, x, y)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(title)}">',
        '<style>text { font: 12px sans-serif; fill: #333333; } '
        '.grid { stroke: #dddddd; stroke-width: 1; } .title { font-size: 15px; '
        'font-weight: bold; }</style>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT + 24}" y="22">{escape(title)}</text>',
        *body,
        f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        'size of the tensor</text>',
        "</svg>", ""])


def draw(figures, ways, folder):
    """latency.svg and bandwidth.svg of the size sweep; their paths."""
    latency, bandwidth = [], []
    for label, kind in ways:
        points = [(size, figures.median(label, size)) for size in figures.sizes()]
        points = [(size, us) for size, us in points if us]
        latency.append((label, kind, points))
        bandwidth.append((label, kind, [(size, size / us / 1e3) for size, us in points
                                        if size >= 1024]))
    paths = []
    for name, title, unit, series in (
            ("latency", "Allreduce of fp32, 2 ranks: median time", "us", latency),
            ("bandwidth", "Allreduce of fp32, 2 ranks: payload per second", "GB/s", bandwidth)):
        if not any(points for _, _, points in series):
            continue
        paths.append(f"{folder}/{name}.svg")
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(chart(title, unit, series))
    return paths
