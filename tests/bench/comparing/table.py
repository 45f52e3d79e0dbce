"""table.py - the figures beside their targets: rows of text, whether met, and as Markdown.

Only arithmetic on what was measured; what was not measured makes a row that says so.
"""
import os
import re
from dataclasses import asdict, dataclass

from comparing import latency as idle
from comparing import pairs
from comparing.plot import size_text
from comparing.ways import HOROVOD, PLACES, median_of, place_shares

ARENA, ORDINARY = "libdp, arena memory", "libdp, ordinary memory"
DIRECT, CMA = "floor, direct", "floor, cma"
MIB = 1 << 20
BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"


@dataclass
class Row:
    what: str
    target: str
    ours: str
    beside: str
    ratio: str
    met: object  # True, False, or None: not measured, or nothing to meet


def time_text(us):
    if us is None:
        return "-"
    return f"{us:.1f} us" if us < 1000 else f"{us / 1e3:.2f} ms"


def absent(what, target, why="not measured"):
    return Row(what, target, "-", why, "-", None)


def _at_most(what, limit, found, name):
    """found: (place, our us, its us)."""
    target = f"<= {limit:g} x {name}"
    if found is None:
        return absent(what, target)
    place, ours, its = found
    return Row(what, target, time_text(ours), f"{time_text(its)} ({place})", f"{ours / its:.2f}",
               ours <= limit * its)


def _peer_row(what, limit, sweep, ours, size):
    best = sweep.best_peer(ours, size)
    if best is None:
        return absent(what, f"<= {limit:g} x the best peer")
    label, place, mine, its = best
    return Row(what, f"<= {limit:g} x the best peer", time_text(mine),
               f"{label}: {time_text(its)} ({place})", f"{mine / its:.2f}", mine <= limit * its)


def sizes_rows(sweep):
    rows = []
    there = set(sweep.sizes())
    for size in (size for size in (64 * MIB, 256 * MIB) if size in there):
        rows.append(_at_most(f"{size_text(size)}, dp_alloc memory", 1.15,
                             sweep.pair(ARENA, DIRECT, size), "direct floor"))
    for place in ("near", "far"):
        ours, floor = sweep.median(ARENA, MIB, place), sweep.median(DIRECT, MIB, place)
        if ours and floor:
            rows.append(_at_most(f"1 MiB, dp_alloc memory, {place}", 1.3, (place, ours, floor),
                                 "direct floor"))
    if not any(row.what.startswith("1 MiB") for row in rows):
        rows.append(_at_most("1 MiB, dp_alloc memory", 1.3, sweep.pair(ARENA, DIRECT, MIB),
                             "direct floor"))
    for size in (size for size in (16 * MIB, 64 * MIB, 256 * MIB) if size in there):
        rows.append(_peer_row(f"{size_text(size)}, ordinary memory", 1.0, sweep, ORDINARY, size))
    rows.append(_peer_row("1 MiB, ordinary memory", 1.3, sweep, ORDINARY, MIB))
    return rows


def _times(figures, size, labels):
    return ", ".join(f"{label} {time_text(figures.median(label, size))}" for label in labels)


def _is_horovod(label):
    return label.startswith(HOROVOD)


def loop_rows(loop):
    what, peers = "4 B, submit and wait in a loop", loop.labels("peer")
    place = next((place for place in PLACES if loop.median(ARENA, 4, place)), None)
    ours, gloo = loop.median(ARENA, 4, place), loop.median("torch gloo", 4)
    others = _times(loop, 4, [label for label in peers if not _is_horovod(label)])
    return [Row(what, "<= 25 us", time_text(ours), others or "-",
                f"{ours / gloo:.2f} of gloo" if ours and gloo else "-",
                None if ours is None else ours <= 25.0),
            *_horovod_rows(what, loop, 4)]


def _horovod_rows(what, figures, size):
    """A row without a target; none where Horovod was not run."""
    labels = [label for label in figures.labels("peer") if _is_horovod(label)]
    pairs = [pair for pair in (figures.pair(ARENA, label, size) for label in labels) if pair]
    if not pairs:
        return []
    _, ours, best = min(pairs, key=lambda pair: pair[2])
    return [Row(f"{what}, beside Horovod", "-", time_text(ours), _times(figures, size, labels),
                f"{ours / best:.2f}", None)]


def idle_rows(found):
    what, limit, worst = "4 B after idling", 100.0, idle.worst_after_idle(found)
    rows = [absent(what, f"<= {limit:g} us") if worst is None else
            Row(what, f"<= {limit:g} us", time_text(worst[0]),
                f"the worst of the gaps: {worst[1] / 1e3:g} ms", "-", worst[0] <= limit)]
    share = median_of(found["idle"])
    rows.append(absent("CPU while idle", "< 0.2 % of a core") if share is None else
                Row("CPU while idle", "< 0.2 % of a core", f"{share:.3f} %", "-", "-",
                    share < 0.2))
    return rows


def crowded_rows(crowded):
    rows = []
    ranks = max((row["ranks"] for row in crowded.rows), default=4)
    for size, limit in ((4, 100.0), (MIB, 2000.0)):
        ours = crowded.median(ARENA, size)
        what = f"{ranks} ranks on {ranks // 2} cores, {size_text(size)}"
        target = f"<= {time_text(limit)}"
        others = _times(crowded, size, crowded.labels("peer"))
        best = [crowded.median(label, size) for label in crowded.labels("peer")]
        best = min((us for us in best if us), default=None)
        rows.append(absent(what, target) if ours is None else
                    Row(what, target, time_text(ours), others or "-",
                        f"{ours / best:.2f}" if best else "-", ours <= limit))
    return rows


def pair_rows(found):
    """Ordered sends and collectives beside OpenMPI's, in one pair of processes."""
    if not found["rows"]:
        return [absent("OpenMPI and libdp in one pair of processes", "<= OpenMPI's",
                       found.get("why", "not measured"))]
    rows = []
    for what, size, memory, mpi, ours in found["rows"]:
        small = size <= pairs.SMALL
        rows.append(Row(f"{what}, {size_text(size)}, {memory} memory, ordered",
                        f"<= {time_text(pairs.SMALL_US)}" if small else "<= OpenMPI's",
                        time_text(ours), f"OpenMPI: {time_text(mpi)}", f"{ours / mpi:.2f}",
                        ours <= (pairs.SMALL_US if small else mpi)))
    return rows


def gradient_rows(sets, ddp):
    size = 124439808 * 4
    ours, rows = sets.median(ARENA, size), []
    best = sets.best_peer(ARENA, size)
    beside = f"{best[0]}: {time_text(best[3])}" if best else "-"
    rows.append(absent("GPT-2 124M gradients, dp_alloc memory", "<= 60 ms") if ours is None else
                Row("GPT-2 124M gradients, dp_alloc memory", "<= 60 ms", time_text(ours), beside,
                    f"{ours / best[3]:.2f}" if best else "-", ours <= 60e3))
    rows += _horovod_rows("GPT-2 124M gradients, dp_alloc memory", sets, size)
    rows.append(_at_most("GPT-2 124M gradients, ordinary memory", 1.15,
                         sets.pair(ORDINARY, CMA, size), "cma floor"))
    if "libdp" in ddp and "gloo" in ddp:
        a, b = ddp["libdp"], ddp["gloo"]
        rows.append(Row("torch DDP, its transport exchanged for libdp", "-",
                        f"{a['ms']:.0f} ms ({a['backward_ms']:.0f} without exchange)",
                        f"by gloo {b['ms']:.0f} ms"
                        + (f", its fp16 hook {ddp['fp16']['ms']:.0f} ms" if "fp16" in ddp else ""),
                        f"{a['ms'] / b['ms']:.2f}", None))
    return rows


def link_rows(found):
    if "why" in found or "shape" not in found:
        return [absent("over a link of two namespaces", ">= 95 % of the TCP line",
                       found.get("why", "not measured"))]
    what = f"over {found['shape']}, {found['bytes'] / 1e6:.0f} MB"
    none, half, line = (found.get(name) for name in ("libdp none", "libdp fp16", "line"))
    rows = [_link_row(f"{what}: fp32", 0.95, ">= 95 % of the TCP line", none, line,
                      line and f"TCP {line:.0f} ms"),
            _link_row(f"{what}: fp16", 1.8, ">= 1.8 x faster than our fp32", half, none,
                      none and f"{none:.0f} ms")]
    plain, hook = found.get("ddp gloo"), found.get("ddp fp16")
    rows.append(_link_row(f"{what}: fp16", 1.5, ">= 1.5 x faster than torch DDP", half, plain,
                          plain and f"DDP gloo {plain:.0f} ms"))
    if half and hook:
        rows.append(Row(f"{what}: fp16", "-", f"{half:.0f} ms", f"DDP gloo with its fp16 hook "
                        f"{hook:.0f} ms", f"{hook / half:.2f}", None))
    if "ddp libdp" in found:
        rows.append(Row(f"{what}: torch DDP through libdp, fp16", "-",
                        f"{found['ddp libdp']:.0f} ms", "as above", "-", None))
    return rows


def _link_row(what, limit, target, ours, other, beside):
    if not ours or not other:
        return absent(what, target)
    return Row(what, target, f"{ours:.0f} ms", beside, f"{other / ours:.2f}",
               other >= limit * ours)


def step_rows(steps):
    rows = []
    name = f"GPT-2 {steps.preset}"
    both, alone = steps.median("libdp 2 ranks"), steps.median("libdp 2 alone")
    best = steps.best_ddp()
    version = best.partition(", ")[2] if best else ""
    ddp, ddp_alone = steps.median(best), steps.median(f"DDP alone, {version}")
    what = f"{name}, 2 ranks x 1 thread, 2+2 sequences: share of the exchange"
    if both and alone:
        share = (both - alone) / both
        beside = (f"torch DDP {(ddp - ddp_alone) / ddp * 100:.0f} % of {ddp:.0f} ms"
                  if ddp and ddp_alone else "-")
        rows.append(Row(what, "<= 8 %", f"{share * 100:.1f} % of {both:.0f} ms", beside, "-",
                        share <= 0.08))
    else:
        rows.append(absent(what, "<= 8 %"))
    rows.append(_faster(f"{name}, the same: tokens/s", 1.5, steps.tokens_per_s("libdp 2 ranks"),
                        best and steps.tokens_per_s(best), f"DDP, {version}" if best else
                        "torch DDP"))
    single = steps.best_single()
    rows.append(_faster(f"{name}, 1 rank, all cores, 4 sequences: tokens/s", 1.3,
                        steps.tokens_per_s("libdp 1 rank"), single and single[1],
                        single[0].replace("1 rank, ", "") if single else "PyTorch"))
    full, half = steps.tokens_per_s("libdp 1 rank"), steps.tokens_per_s("libdp 1 rank bf16")
    if half and full:
        rows.append(Row(f"{name}, the same in bf16 (oneDNN): tokens/s", "-", f"{half:.0f}", "-",
                        f"{half / full:.2f} of our fp32", None))
    for label in steps.ms:
        version = label.partition(", ")[2]
        hook, gloo = steps.median(label), steps.median(f"DDP gloo, {version}")
        if label.startswith("DDP libdp") and gloo:
            rows.append(Row(f"DDP's step, {version}, its transport exchanged for libdp", "-",
                            f"{hook:.0f} ms", f"by gloo {gloo:.0f} ms", f"{hook / gloo:.2f}",
                            None))
    rows.append(_recorder_row(steps.recorder))
    return rows


def _recorder_row(recorder):
    on, off = (median_of(recorder[mode]) for mode in ("yes", "no"))
    what, target = "recorder on against off, the small preset's step", "< 1 % of the step"
    if on is None or off is None:
        return absent(what, target)
    more = (on - off) / off
    return Row(what, target, f"{more * 100:+.2f} %", f"{on:.2f} against {off:.2f} ms", "-",
               more < 0.01)


def _faster(what, limit, ours, other, name):
    target = f">= {limit:g} x {name}"
    if not ours or not other:
        return absent(what, target)
    return Row(what, target, f"{ours:.0f}", f"{other:.0f}", f"{ours / other:.2f}",
               ours >= limit * other)


def missing_rows(missing):
    """{peer: why it is not there}."""
    return [absent(f"beside {peer}", "-", " ".join(why.split())) for peer, why in missing.items()]


# ---- As text ------------------------------------------------------------------------------------

HEADS = ["what", "target", "libdp", "measured beside it", "ratio", "met"]


def _cells(row):
    met = {True: "yes", False: "no", None: "-"}[row.met]
    return [row.what, row.target, row.ours, row.beside, row.ratio, met]


def plain(rows):
    cells = [HEADS] + [_cells(row) for row in rows]
    widths = [min(44, max(len(line[i]) for line in cells)) for i in range(len(HEADS))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip()
                     for line in cells)


def markdown(rows):
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |"
              for row in rows]
    return "\n".join(lines)


def sizes_lines(sweep, ways):
    """Medians of every way at every size, the placements together: cells of lines, heads first."""
    lines = [["us, median", *(size_text(size) for size in sweep.sizes())]]
    for label, _ in ways:
        cells = (sweep.median(label, size) for size in sweep.sizes())
        lines.append([label, *("-" if us is None else f"{us:.3g}" if us < 100 else f"{us:.0f}"
                               for us in cells)])
    return lines


def data_text(head, rows, sizes, failures):
    """A file that a program can read: comments, then tables with tabs and a name above each."""
    parts = [[f"# {line}" for line in head],
             ["[targets]", *("\t".join(line) for line in [HEADS] + [_cells(row) for row in rows])]]
    if sizes:
        parts.append(["[sizes]", *("\t".join(line) for line in sizes)])
    if failures:
        parts.append(["[failed]", *(" ".join(failure.split()) for failure in failures)])
    return "\n\n".join("\n".join(part) for part in parts)


def data_note(failures):
    """Below the table: where the rest is, and whether all of it was measured."""
    note = "[data/compare.txt](data/compare.txt) has the median of every size and library"
    if failures:
        what = "the program or part" if len(failures) == 1 else f"the {len(failures)} programs or parts"
        note += f", and {what} that failed or ran out of time"
    return note + "."


def write_file(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def places_text(rows):
    """How far apart the cores were while all this was measured; "" without rows."""
    shares = place_shares(rows)
    return ", ".join(f"{place} {share * 100:.0f} %" for place, share in shares.items())


def rewrite_page(path, text):
    """Puts text between the page's two markers."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if BEGIN not in page or END not in page:
        raise ValueError(f"{path} has no {BEGIN} ... {END}")
    page = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END),
                  lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.S)
    write_file(path, page)


def as_json(rows):
    return [asdict(row) for row in rows]
