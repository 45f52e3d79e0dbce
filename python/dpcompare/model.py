"""model.py - what a step should take, from what its parts take: so that surprises are noticed.

Pure arithmetic. The parts (forward, backward, update of a rank; the time of a dense all-reduce) are
measured in this run or given; groups of gradients become ready evenly during backward, the token
embedding's at its end.
"""
from dataclasses import dataclass

SURPRISE = 0.25  # |measured / predicted - 1| beyond which a reader is told
TCP = 0.89  # of a link's rate, for payload
# What a step waits for, in the order in which tables and pictures show it: collectives on the wire,
# or what the trainer's counters say where there is no timeline; then the rest.
WAITS = ("allreduce", "gradients", "reduce-scatter", "reduce", "allgather", "weights", "broadcast",
         "packing", "agreeing", "waking up", "late ranks")
SELECT_GB_PER_S = 3.5  # how fast a core goes through gradients to choose from them, four passes
FACTORS_GB_PER_S = 0.9  # and to multiply them by 16 columns, three products and the residual


@dataclass(frozen=True)
class Parts:
    """Of one rank, with the ranks and threads of the row; ms and bytes."""

    forward: float
    backward: float
    update: float  # of all weights
    dense: float  # an all-reduce of all gradients, alone
    arena: float  # bytes of all gradients
    embedding: float  # share of them that becomes ready last
    ranks: int
    layers: int


def exposed(transfer, window, last):
    """What of a transfer is not hidden: the last group's part begins when the window ends, the
    others' may run within it."""
    return last + max(0.0, transfer - last - window)


def step_ms(row, parts):
    """Milliseconds of a step of our row; None where there is no prediction."""
    n = parts.ranks
    compute = parts.forward + parts.backward
    window = parts.backward * parts.layers / (parts.layers + 1.0)
    half = parts.dense / 2  # a reduce-scatter, or an all-gather
    last = parts.embedding
    if row == "single":
        return compute + parts.update
    if row in ("dps", "coordinator") or row.startswith("dps-o1"):
        return compute + exposed(parts.dense, window, last * parts.dense) + parts.update
    if row.startswith("dps-o2") or row == "dps-fp16-wire":
        wire = parts.dense / 2
        return compute + exposed(wire, window, last * wire) + parts.update
    if row == "sps":
        # The server receives N - 1 models and sends as many; a ring would move 2 (N - 1) / N.
        move = parts.dense * n / 2
        return compute + exposed(move, window, last * move) + parts.update + move
    if row in ("zero1", "zero2"):
        # Gathered under the next forward, but for the embedding, which forward begins with.
        gather = exposed(half, parts.forward, last * half)
        return compute + exposed(half, window, last * half) + parts.update / n + gather
    if row == "zero3":
        # Two gathers: under forward and, without the embedding, under backward with the reductions.
        first = exposed(half, parts.forward, last * half)
        again = half * (1 - last)
        return (compute + first + exposed(half + again, window, last * half)
                + parts.update / n)
    if row == "lamb":
        return compute + exposed(parts.dense, window, last * parts.dense) + 1.4 * parts.update
    if row == "topk":
        select = 4 * parts.arena / (SELECT_GB_PER_S * 1e6)
        wire = parts.dense * 0.01 * 2 * n / 2  # values and places, gathered from all
        return compute + select + wire + parts.update
    if row == "powersgd":
        factors = parts.arena / (FACTORS_GB_PER_S * 1e6)
        return compute + factors + parts.dense / 37 + parts.update  # of 124M's bytes
    return None


def dense_ms(arena, ranks, gbit_per_s):
    """A dense all-reduce over links of that measured rate."""
    return 2 * (ranks - 1) / ranks * arena * 8 / (gbit_per_s * 1e6)


def is_surprise(measured, predicted):
    return bool(measured and predicted) and abs(measured / predicted - 1) > SURPRISE


def off_plan(measured, parts):
    """How far measured memory is from the plan; 0 where the library's buffers, which a small model
    does not fill, explain it."""
    most = sum(parts.values())
    least = most - parts.get("library", 0.0)
    if least <= measured <= most:
        return 0.0
    return measured / (least if measured < least else most) - 1


def reach(parts):
    """R: compute time over the time of a dense all-reduce. Where it is large, every strategy is as
    fast as its compute; it places a laptop beside a cluster."""
    return (parts.forward + parts.backward + parts.update) / parts.dense if parts.dense else None


def reach_of(tokens, flops, bytes_per_s, ranks, width):
    """R by arithmetic: tokens of a rank and step, what a rank computes and sends per second, bytes
    of a gradient's element. The model's size cancels out."""
    compute = 6.0 * tokens / flops
    return compute / (2.0 * (ranks - 1) / ranks * width / bytes_per_s)


# Places that readers know: (name, tokens of a rank and step, FLOP/s, bytes/s, ranks, width).
ELSEWHERE = (
    ("8 GPUs of a node, 400 TFLOP/s and 400 GB/s each, bf16", 16384, 4e14, 4e11, 8, 2),
    ("64 GPUs of 8 nodes, 50 GB/s each, bf16", 16384, 4e14, 5e10, 64, 2),
    ("2 laptops, 300 GFLOP/s each, 1 Gb/s, fp32", 2048, 3e11, 1.1e8, 2, 4),
)


def crossing(first, second, low, high):
    """The rate between low and high at which first(rate) and second(rate) are equal; None: no such.
    Both fall with the rate."""
    def off(rate):
        return first(rate) - second(rate)
    if off(low) * off(high) > 0:
        return None
    for _ in range(60):
        middle = (low * high) ** 0.5
        if off(low) * off(middle) <= 0:
            high = middle
        else:
            low = middle
    return (low * high) ** 0.5
