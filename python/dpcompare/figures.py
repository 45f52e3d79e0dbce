"""figures.py - draws the comparison by Matplotlib, each picture as an SVG file.

Every function takes what views.py worked out and gives a figure, or None where there is nothing to
draw. Axes begin at zero, or say that they do not. draw() is what report.py calls.
"""
import os
import re

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

from dpcompare import stats  # noqa: E402

matplotlib.rcParams.update({
    "font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#e3e3e3", "grid.linewidth": 0.7, "legend.frameon": False,
    "legend.fontsize": 8, "figure.constrained_layout.use": True, "lines.linewidth": 1.5})

# Told apart by those who do not see red and green alike (Okabe and Ito 2008, and shades of it).
COLOURS = {
    "single": "#555555", "dps": "#0072B2", "coordinator": "#56B4E9", "sps": "#999999",
    "zero1": "#009E73", "zero2": "#4FC3A1", "zero3": "#00604A", "hybrid": "#9BD8C4",
    "dps-o1-bf16": "#E69F00", "dps-o2-bf16": "#F5C65B", "dps-o1-fp16": "#B87A00",
    "dps-o2-fp16": "#7A5200", "dps-fp16-wire": "#003F66", "lamb": "#CC79A7", "topk": "#D55E00", "powersgd": "#7B61C9"}
PEER_COLOURS = {"torch-single": "#000000", "torch-ddp": "#8C3B3B", "torch-ddp-bf16": "#B06A6A",
                "torch-ddp-fp16": "#D09A9A", "torch-zero1": "#6B4F2A", "torch-fsdp2": "#3E5C76",
                "horovod": "#748CAB", "deepspeed": "#1D2D44"}
# Of a step: work first, then what it waits for. Blue is work, warm colours are communication.
PHASES = {"forward": ("forward", "#9ecae1"), "backward": ("backward", "#4292c6"),
          "optimizer": ("update", "#08519c"),
          "allreduce": ("waiting: all-reduce", "#D55E00"), "gradients": ("waiting: gradients", "#D55E00"),
          "reduce-scatter": ("waiting: reduce-scatter", "#E69F00"),
          "reduce": ("waiting: reduce", "#F0A860"),
          "allgather": ("waiting: all-gather", "#CC79A7"), "weights": ("waiting: weights", "#CC79A7"),
          "broadcast": ("waiting: broadcast", "#A0527F"),
          "packing": ("waiting: packing", "#C9B458"), "agreeing": ("waiting: agreement", "#8C6BB1"),
          "waking up": ("waiting: waking up", "#c7c7c7"),
          "late ranks": ("waiting: late ranks", "#7f7f7f"), "other": ("other", "#e0e0e0")}
PART_COLOURS = {"weights": "#0072B2", "gradients": "#56B4E9", "moments": "#009E73",
                "activations": "#E69F00", "library": "#999999"}
PEER_DASH = (0, (4, 2))
WIDE = 6.0  # slowest over quickest row: beyond it a linear axis shows only the slowest


def colour(row):
    return COLOURS.get(row) or PEER_COLOURS.get(row, "#333333")


def dash(row):
    return PEER_DASH if row in PEER_COLOURS else "-"


def _bars_height(count):
    return 1.3 + 0.3 * count


def _from_zero(axis, horizontal=False):
    if horizontal:
        axis.set_xlim(left=0)
    else:
        axis.set_ylim(bottom=0)


def _mark_cut(axis):
    """Says that an axis does not begin at zero."""
    if axis.get_ylim()[0] > 0:
        axis.annotate("axis does not begin at 0", (0.01, 0.01), xycoords="axes fraction",
                      fontsize=7, color="#777777")


def _legend_beside(axis, handles=None, labels=None):
    """To the right of the last axis; two columns where there are many."""
    if handles is None:
        handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0,
                ncol=1 if len(labels) < 18 else 2)


def speed(view):
    """Tokens per second: a bar for each row, a dot for each turn, the ratio to dps beside it."""
    rows = view.speeds()
    if not rows:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, _bars_height(len(rows))))
    middles = [stats.median(rates) for _, rates, _ in rows]
    names = [name for name, _, _ in rows]
    axis.barh(names, middles, height=0.66, color=[colour(name) for name in names], alpha=0.85)
    for (name, rates, ratio), middle in zip(rows, middles):
        axis.scatter(rates, [name] * len(rates), s=10, color="#000000", zorder=3, linewidths=0)
        text = f"{middle:,.0f}".replace(",", " ") + (f" ({ratio[0]:.2f})" if ratio else "")
        axis.annotate(text, (max(rates), name), textcoords="offset points", xytext=(6, -3),
                      fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.margins(x=0.14)
    axis.set_xlabel("tokens per second, all ranks; dots: turns; in brackets: over dps, within turns")
    axis.set_title(f"Throughput: {view.title()}")
    _from_zero(axis, True)
    return figure


def loss(view):
    """Loss over steps and tokens, over seconds, and its distance from dps', with bands over seeds."""
    curves = view.loss_curves()
    if not curves:
        return None
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12.5, 4.0))
    handles, labels = [], []
    base = next((band[0] for name, *_, band in curves if name == "dps"), None)
    for name, label, steps, seconds, (values, low, high) in curves:
        for axis, x in ((left, steps), (middle, seconds)):
            line, = axis.plot(x, values, color=colour(name), linestyle=dash(name))
            axis.fill_between(x, low, high, color=colour(name), alpha=0.15, linewidth=0)
        if base is not None and name != "dps":
            right.plot(steps, [100 * (a / b - 1) for a, b in zip(values, base)], color=colour(name),
                       linestyle=dash(name))
        handles.append(line)
        labels.append(label)
    left.set_xlabel("step")
    left.set_ylabel("training loss, nats per token")
    left.set_title("Loss over steps and tokens")
    above = left.secondary_xaxis("top", functions=(lambda x: x * view.tokens_per_step() / 1e3,
                                                   lambda x: x * 1e3 / view.tokens_per_step()))
    above.set_xlabel("thousand tokens")
    middle.set_xlabel("seconds of training")
    middle.set_title("over seconds")
    middle.sharey(left)
    right.set_xlabel("step")
    right.set_ylabel("% above dps'")
    right.set_title("Distance from dps")
    right.axhline(0, color=colour("dps"), linewidth=1.5)
    right.axhline(2, color="#999999", linewidth=0.8, linestyle=":")
    for axis in (left, middle, right):
        _from_zero(axis, True)
    _mark_cut(left)
    _legend_beside(right, handles, labels)
    return figure


def tuning(view):
    """Where each optimizer ends, over the grid of rates."""
    series = view.tuning()
    if not series:
        return None
    study = view.tuned_study()
    figure, axis = pyplot.subplots(figsize=(7.5, 3.6))
    for name, points, best in series:
        rates, middle, low, high = zip(*points)
        axis.plot(rates, middle, marker="o", markersize=4, color=colour(name),
                  label={"dps": "AdamW", "lamb": "LAMB"}.get(name, name) + f", best at {best:g}")
        axis.fill_between(rates, low, high, color=colour(name), alpha=0.15, linewidth=0)
        at = rates.index(best)
        axis.scatter([best], [middle[at]], s=90, facecolors="none", edgecolors=colour(name))
    axis.set_xscale("log")
    axis.set_xticks([rate for rate, *_ in series[0][1]], [f"{rate:g}" for rate, *_ in series[0][1]])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("highest learning rate")
    axis.set_ylabel("final training loss")
    axis.set_title(f"A batch of {study.batch} sequences of {study.seq} tokens, {study.steps} steps")
    _mark_cut(axis)
    axis.legend(loc="best")
    return figure


def throughput(view):
    """Tokens per second over ranks with the ideal line, and efficiency; where several numbers of
    ranks were run."""
    series = view.scaling()
    if all(len(points) < 2 for _, points in series):
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 3.8))
    most = max(n for _, points in series for n, _ in points)
    base = view.base_rate()
    handles, labels = [], []
    if base:
        line, = left.plot([1, most], [base, base * most], color="#000000", linewidth=0.8,
                          linestyle=":")
        handles.append(line)
        labels.append("ideal")
        right.axhline(100, color="#000000", linewidth=0.8, linestyle=":")
    for name, points in series:
        ns, rates = zip(*points)
        line, = left.plot(ns, rates, marker="o", markersize=4, color=colour(name),
                          linestyle=dash(name))
        if base:
            right.plot(ns, [100 * rate / (base * n) for n, rate in points], marker="o",
                       markersize=4, color=colour(name), linestyle=dash(name))
        handles.append(line)
        labels.append(name)
    ticks = sorted({n for _, points in series for n, _ in points})
    for axis, text, title in ((left, "tokens per second", "Throughput over ranks"),
                              (right, "% of the ideal line", "Efficiency")):
        axis.set_xlabel("ranks")
        axis.set_ylabel(text)
        axis.set_title(title)
        axis.set_xticks(ticks)
        axis.margins(x=0.1)
        _from_zero(axis)
    _legend_beside(right, handles, labels)
    return figure


def step(view):
    """Stacked bars: where the mean step goes."""
    rows = view.phases()
    if not rows:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, _bars_height(len(rows))))
    names = [name for name, _, _ in rows]
    done = [0.0] * len(rows)
    for phase, (text, shade) in PHASES.items():
        widths = [parts.get(phase) or 0.0 for _, parts, _ in rows]
        if any(widths):
            axis.barh(names, widths, left=done, height=0.66, color=shade, label=text)
            done = [a + b for a, b in zip(done, widths)]
    predicted = [(name, value) for name, _, value in rows if value]
    if predicted:
        axis.scatter([value for _, value in predicted], [name for name, _ in predicted], marker="|",
                     s=170, linewidths=2, color="#000000", label="predicted step", zorder=3)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("ms of a step, mean")
    axis.set_title(f"Where a step goes: {view.title()}")
    _from_zero(axis, True)
    _legend_beside(axis)
    return figure


def memory(view):
    """Stacked bars of the plan's parts, and what was measured."""
    rows = view.memory()
    if not rows:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, _bars_height(len(rows))))
    names = [name for name, _, _ in rows]
    done = [0.0] * len(rows)
    for part, shade in PART_COLOURS.items():
        widths = [(parts or {}).get(part, 0.0) for _, parts, _ in rows]
        most = part == "library"  # buffers that a small model does not fill
        axis.barh(names, widths, left=done, height=0.66, color=shade, alpha=0.3 if most else 0.85,
                  label=f"{part}, {'at most' if most else 'planned'}")
        done = [a + b for a, b in zip(done, widths)]
    measured = [(name, value) for name, _, value in rows if value is not None]
    axis.scatter([value for _, value in measured], [name for name, _ in measured], marker="D", s=26,
                 color="#000000", label="measured (PSS)", zorder=3)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("MiB of a rank")
    axis.set_title(f"Memory of the model: {view.title()}")
    _from_zero(axis, True)
    _legend_beside(axis)
    return figure


def norm(view):
    """Norm per step, with skipped steps marked."""
    curves = view.norms()
    if not curves:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, 3.4))
    for name, label, steps, values, skips in curves:
        axis.plot(steps, values, color=colour(name), linestyle=dash(name), label=label, linewidth=1.1)
        if skips:
            axis.scatter(skips, [0.0] * len(skips), marker="x", s=22, color=colour(name),
                         label=f"{name}: skipped step", clip_on=False, zorder=4)
    axis.set_xlabel("step")
    axis.set_ylabel("norm before clipping")
    axis.set_title("Norm of the averaged gradients")
    _from_zero(axis)
    _from_zero(axis, True)
    _legend_beside(axis)
    return figure


def cdf(view):
    """Share of steps that took no longer."""
    series = view.step_times()
    if not series:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, 3.6))
    for name, values in series:
        values = sorted(values)
        axis.step(values, [100 * (i + 1) / len(values) for i in range(len(values))], where="post",
                  color=colour(name), linestyle=dash(name), label=name)
    middles = [stats.median(values) for _, values in series]
    wide = max(middles) > WIDE * min(middles)
    if wide:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("ms of a step" + (", logarithmic" if wide else ""))
    axis.set_ylabel("% of steps")
    axis.set_ylim(0, 101)
    left = axis.get_xlim()[0]
    if left > 0 and not wide:
        axis.annotate("axis does not begin at 0", (0.01, 0.01), xycoords="axes fraction",
                      fontsize=7, color="#777777")
    axis.set_title(f"Step times, all seeds: {view.title()}")
    _legend_beside(axis)
    return figure


def labels_apart(points):
    """[(name, x, y, height of its label)] of [(name, x, y)]: labels of points that nearly share an
    x lie a line of text apart."""
    wide = max((x for _, x, _ in points), default=0.0)
    line = 0.035 * max((y for *_, y in points), default=0.0)
    found = []
    for name, x, y in sorted(points, key=lambda point: point[2]):
        below = [height for _, other, _, height in found if abs(other - x) < 0.12 * wide]
        found.append((name, x, y, max([y] + [max(below) + line] if below else [y])))
    return found


def wire(view):
    """Bytes by the plan and measured; and exposed time against bytes."""
    rows = view.bytes_sent()
    points = view.bytes_against_exposed()
    if not rows:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, max(3.4, _bars_height(len(rows)))))
    names = [name for name, _, _ in rows]
    left.barh(names, [planned / 1e6 for _, planned, _ in rows], height=0.62, color="#9ecae1",
              label="by the formula")
    found = [(name, measured / 1e6) for name, _, measured in rows if measured is not None]
    left.scatter([value for _, value in found], [name for name, _ in found], marker="D", s=26,
                 color="#000000", label="counted by the library", zorder=3)
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    left.set_xlabel("MB that rank 0 sends in a step (preset small)")
    left.set_title("Bytes on the wire")
    left.legend(loc="upper left", bbox_to_anchor=(0.0, -0.16), ncol=2)
    _from_zero(left, True)
    for name, sent, waited in points:
        right.scatter([sent / 1e6], [waited], color=colour(name), s=30)
    for name, x, y, height in labels_apart([(name, sent / 1e6, waited)
                                            for name, sent, waited in points]):
        right.annotate(name, (x, y), xytext=(7, height), textcoords=("offset points", "data"),
                       va="center", fontsize=7)
    right.margins(x=0.2)
    right.set_xlabel("MB per rank and step, were every rank a node")
    right.set_ylabel("ms exposed in a step")
    right.set_title(f"Bytes against exposed time: {view.title()}")
    _from_zero(right)
    _from_zero(right, True)
    return figure


def links(view):
    """Speed over link rate: the model's lines, and what was measured."""
    lines, points = view.link_lines(), view.link_points()
    if not lines:
        return None
    figure, axis = pyplot.subplots(figsize=(9.5, 4.2))
    for name, rates, values in lines:
        axis.plot(rates, values, color=colour(name), linestyle=dash(name), label=name)
    for name, rate, value, emulated in points:
        axis.scatter([rate], [value], color="#ffffff" if emulated else colour(name),
                     edgecolors=colour(name), s=34, zorder=4)
    for at, (text, rate, value) in enumerate(view.crossings()):
        axis.annotate(text, (rate, value), xytext=(24, -40 - 14 * at),
                      textcoords="offset points", fontsize=7, arrowprops={"arrowstyle": "-", "linewidth": 0.6})
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("Gb/s of a link between nodes of one rank (lines: model; points: measured; "
                    "hollow: EMULATED)")
    axis.set_ylabel("tokens/s, dps on one node = 1")
    axis.set_title(f"Speed over link rate, {view.preset()}, 2 ranks")
    _from_zero(axis)
    reach = view.reach_at
    top = axis.secondary_xaxis("top", functions=(lambda x: x, lambda x: x))
    ticks = [rate for rate in (0.1, 1, 10, 100) if lines[0][1][0] <= rate <= lines[0][1][-1]]
    top.set_xticks(ticks, [f"{reach(rate):.{0 if reach(rate) >= 100 else 2}f}" for rate in ticks])
    top.set_xlabel("R = compute time / dense all-reduce time")
    _legend_beside(axis)
    return figure


def papers(view):
    """The pairs that the papers show: time and loss by strategy, utilisation per device."""
    rows = view.time_and_loss()
    if not rows:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, _bars_height(len(rows)) + 0.4),
                                            sharey=True)
    names = [name for name, *_ in rows]
    left.barh(names, [seconds for _, seconds, _, _ in rows], height=0.62,
              color=[colour(name) for name in names], alpha=0.8)
    for name, seconds, final, _ in rows:
        left.annotate(f"loss {final:.3f}", (seconds, name), textcoords="offset points",
                      xytext=(4, -3), fontsize=7)
    left.set_xlabel("seconds for the same tokens, with the loss they end at")
    left.set_title("Time and loss by strategy")
    left.margins(x=0.18)
    right.barh(names, [100 * (used or 0.0) for *_, used in rows], height=0.62, color="#bdbdbd")
    right.set_xlabel("% of a core that a rank keeps busy")
    right.set_title("Utilisation (polling counts, too: not work)")
    for axis in (left, right):
        axis.grid(axis="y", visible=False)
        _from_zero(axis, True)
    left.invert_yaxis()
    return figure


def parts_of_run(view):
    """Five panels over parts of the run, as the second paper has them over epochs."""
    series = view.by_part()
    if not series:
        return None
    panels = ["tokens per second", "norm", "seconds", "MiB of a rank", "loss"]
    figure, axes = pyplot.subplots(1, 5, figsize=(13, 3.3))
    handles, labels = [], []
    for name, columns in series:
        for axis, values in zip(axes, columns):
            if any(value is not None for value in values):
                line, = axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3,
                                  color=colour(name), linestyle=dash(name))
        handles.append(line)
        labels.append(name)
    for axis, text in zip(axes, panels):
        axis.set_title(text)
        axis.set_xlabel(view.part_name())
        axis.set_xticks(range(1, 1 + view.part_count()))
        if text != "loss":
            _from_zero(axis)
        else:
            _mark_cut(axis)
    _legend_beside(axes[-1], handles, labels)
    return figure


# In the order of the page, which numbers them.
PICTURES = [
    ("speed", speed, "Throughput of every row whose gates hold."),
    ("throughput", throughput, "Throughput over ranks. Ranks beyond the cores share them. Rows that were "
     "not run with one rank begin at the process alone that computes the same."),
    ("cdf", cdf, "Distribution of step times: a long tail shows interference."),
    ("papers", papers, "The two pairs that papers print."),
    ("parts", parts_of_run, "Throughput, norm, time, memory and loss over the run."),
    ("step", step, "Where rank 0's mean step goes. Work comes from the trainer's clock, waiting from "
     "the timeline: which collective was on the wire while the rank had nothing else to do. What "
     "travels while backward computes costs nothing here. Peers wait inside of their backward and "
     "update."),
    ("memory", memory, "Memory of the model on the rank that has most: the plan by part, and the "
     "growth of the process's proportional share (PSS) since before the model was made."),
    ("loss", loss, "Loss of one set of samples in one order. Rows of the exact class lie on one "
     "another, bit by bit, and are one line; bands span the seeds. Right: the dotted line is what a "
     "row of the curve class may end above dps."),
    ("norm", norm, "Norm of the averaged gradients before clipping, and skipped steps."),
    ("tuning", tuning, "AdamW and LAMB at a large batch, each with every rate of the same grid; bands "
     "span the seeds, rings mark the rates that are compared."),
    ("links", links, "Speed over the rate of the link, by the model from this run's own parts, with "
     "measured points. Crossings say from which rate on a strategy stops paying."),
    ("wire", wire, "Bytes: what the formula says, what the library counted between pretended nodes, "
     "and what they cost on one node."),
]


def draw(view, folder, preview=False):
    """[(name, SVG text, caption)] of all that can be drawn; the files lie in the folder. preview:
    PNG files beside them."""
    os.makedirs(folder, exist_ok=True)
    found = []
    for name, make, caption in PICTURES:
        figure = make(view)
        if figure is None:
            continue
        path = os.path.join(folder, name + ".svg")
        # Pictures of one page must not share names of clipping paths.
        with matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(path, metadata={"Date": None})
        if preview:
            figure.savefig(os.path.join(folder, name + ".png"), dpi=110)
        pyplot.close(figure)
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"<metadata>.*?</metadata>", "", file.read(), flags=re.S)
        found.append((name, text, caption))
    return found
