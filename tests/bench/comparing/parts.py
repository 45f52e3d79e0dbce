"""parts.py - the parts of a comparison: what each measures, and which rows it makes.

A part fills what empty() gave, figure by figure, so that what it has is kept when it is cut short.
"""
import os
from dataclasses import dataclass, field

from comparing import latency, link, pairs, plot, steps, table
from measuring.process import Failed, Late, only_row, rank_environments, run_all
from comparing.ways import RING, YIELD, Figures

QUICK_CYCLES, FULL_CYCLES = [None, 0], [None, 0.1, 0]  # Horovod's, in ms; None: its default
QUICK_SIZES = [4, 16384, 1 << 20, 64 << 20]
FULL_SIZES = [4, 1024, 16384, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]


@dataclass
class Part:
    weight: int  # its share of the time
    empty: object  # options -> figures
    fill: object  # (lab, options, figures)
    rows: object  # figures -> rows
    raw: object = vars  # figures -> what JSON can hold
    horovod: int = 0  # what Horovod adds to the weight, where it is there
    placed: object = lambda figures: []  # figures -> rows with places


@dataclass
class Gradients:
    ways: Figures = field(default_factory=lambda: Figures([]))
    ddp: dict = field(default_factory=dict)  # {exchange: its row}


def _sweep(lab, ways, ranks, turns, arguments, figures):
    """Each way in turn. None takes more than thrice its share of the time, so that a way that
    does not end leaves room for the others."""
    for done in range(turns * len(ways)):
        way, turn = ways[done % len(ways)], done // len(ways) + 1
        left = lab.limit(3600) / (turns * len(ways) - done)
        rows = lab.measure(way, ranks, arguments, 3 * left)
        figures.rows += rows
        lab.say(f"  {turn}/{turns} {way.label}: " + _summary(rows))


def _summary(rows):
    largest = max((row["bytes"] for row in rows), default=0)
    found = Figures(rows)
    return ", ".join(f"{plot.size_text(size)} {table.time_text(found.median(label, size))}"
                     for label in {row["label"] for row in rows}
                     for size in sorted({found.sizes()[0], largest}))


def _sizes(lab, options, figures):
    sizes = QUICK_SIZES if options.quick else FULL_SIZES
    _sweep(lab, lab.all(options.quick), 2, max(2, options.turns),
           [f"sizes={','.join(map(str, sizes))}", f"seconds={0.15 if options.quick else 0.3}"],
           figures)


def _cycles(options):
    return QUICK_CYCLES if options.quick else FULL_CYCLES


def _loop(lab, options, figures):
    ways = [way for way in lab.all(True) if way.kind != "floor"
            and way.label not in (table.ORDINARY, "OpenMPI, segmented ring")]
    ways += lab.horovods(_cycles(options))
    _sweep(lab, ways, 2, max(2, options.turns), ["sizes=4", "loop=1", "seconds=0.5"], figures)


def _crowded(lab, options, figures):
    ways = [lab.ours("arena")]
    if lab.peers.openmpi:
        ways.append(lab.mpi("openmpi", "OpenMPI, yielding", YIELD))
    if lab.peers.torches:
        ways.append(lab.torch(lab.peers.torches[0], "torch gloo"))
    if lab.peers.mpich:
        ways.append(lab.mpi("mpich", "MPICH"))
    if not options.quick:
        ways += lab.horovods()
    ranks = min(64, 2 * (os.cpu_count() or 1))
    _sweep(lab, ways, ranks, 1, [f"sizes=4,{1 << 20}", "seconds=0.5"], figures)


def _gradient_ways(lab, options):
    quick = options.quick
    ways = [lab.ours("arena"), lab.ours("ordinary"), lab.floor("direct"), lab.floor("cma")]
    variants = ["fused"] if quick else ["flat", "each", "fused"]
    if lab.peers.openmpi:
        ways.append(lab.mpi("openmpi", "OpenMPI, segmented ring, flat", RING))
        ways += [lab.mpi("openmpi", f"OpenMPI, {variant}", (), [f"variant={variant}"])
                 for variant in variants]
    if lab.peers.mpich:
        ways += [lab.mpi("mpich", f"MPICH, {variant}", (), [f"variant={variant}"])
                 for variant in variants]
    if lab.peers.torches:
        ways += [lab.torch(lab.peers.torches[0], f"torch gloo, {variant}", variant)
                 for variant in (["async"] if quick else ["flat", "async"])]
    return ways + lab.horovods(_cycles(options), RING)


def _gradients(lab, options, figures):
    """The set by every way, and by DDP."""
    _sweep(lab, _gradient_ways(lab, options), 2, options.turns, ["set=gpt2", "seconds=1"],
           figures.ways)
    script = os.path.join(lab.root, "tests/bench/peers/ddp_torch.py")
    for exchange in ("gloo", "libdp", "fp16") if lab.peers.torches else ():
        torch = lab.peers.torches[0]
        command = [torch.python, script, f"exchange={exchange}", f"libdp={lab.build}/libdp.so",
                   f"steps={3 if options.quick else 8}"]
        environment = dict(torch.environment, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        try:
            texts = run_all([command] * 2, lab.limit(180), rank_environments(2, environment))
            figures.ddp[exchange] = only_row(texts[0])
            lab.say(f"  torch DDP by {exchange}: {figures.ddp[exchange]['ms']:.0f} ms")
        except Late:
            raise
        except Failed as error:
            lab.note(f"torch DDP by {exchange}", error)


def _no_figures(_options):
    return Figures([])


def _all_rows(figures):
    return figures.rows


PARTS = {
    "sizes": Part(30, _no_figures, _sizes, table.sizes_rows, horovod=15, placed=_all_rows),
    "loop": Part(12, _no_figures, _loop, table.loop_rows, horovod=25, placed=_all_rows),
    "idle": Part(20, lambda _: latency.empty(),
                 lambda lab, options, found: latency.measure(lab, 1 if options.quick else 2, found),
                 table.idle_rows, dict),
    "crowded": Part(20, _no_figures, _crowded, table.crowded_rows),
    "pairs": Part(30, lambda _: {"rows": []}, pairs.measure, table.pair_rows, dict),
    "gradients": Part(45, lambda _: Gradients(), _gradients,
                      lambda found: table.gradient_rows(found.ways, found.ddp),
                      lambda found: {"ways": found.ways.rows, "ddp": found.ddp}, horovod=40,
                      placed=lambda found: found.ways.rows),
    "link": Part(35, lambda _: {}, link.measure, table.link_rows, dict),
    "step": Part(130, lambda options: steps.Steps(options.preset), steps.measure,
                 table.step_rows),
}


def weight(name, peers):
    """A part's share of the time, among the other parts' with these peers."""
    part = PARTS[name]
    return part.weight + (part.horovod if peers.horovod else 0)


def placed_rows(results):
    """The rows of all parts that ask where the cores are."""
    return [row for name, figures in results.items() for row in PARTS[name].placed(figures)]
