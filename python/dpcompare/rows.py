"""rows.py - what is compared: one row for each way of training, ours and the peers'.

A row is data: flags of gpt2, or a mode of peers/torch_gpt2.py, and how its results are judged. It
must not know of measurements.
"""
import difflib
from dataclasses import dataclass

from measuring.process import Failed

# How a row's results are judged, see gates.py.
EXACT = "exact"  # the same bytes as dps with as many ranks on as many nodes
CLOSE = "close"  # the same sums in another order
CURVE = "curve"  # other arithmetic: the loss must end where dps' does, within the seeds' spread
TUNED = "tuned"  # another optimizer: at a large batch, each with the best rate of one grid


@dataclass(frozen=True)
class Row:
    name: str
    title: str  # what a reader of papers calls it
    about: str  # one line
    judged: str
    flags: tuple = ()  # of gpt2
    needs: tuple = ()  # flags that --help must list
    words: tuple = ()  # (flag, word): and choices that its line must name
    single: bool = False  # one process, whatever the ranks
    nodes: int = 1  # nodes that dprun pretends
    least_ranks: int = 1
    compresses: str = ""  # gradients, in this way, behind some steps that send them as they are
    waits: int = 0  # steps that an element of a gradient waits until it travels, in the mean
    rate: float = 1.0  # times the study's learning rate, where no grid finds one
    emulated: bool = False  # arithmetic that processors have no instructions for
    bf16: bool = False  # products in bf16, which few processors have instructions for
    by_wire: bool = False  # differs from dps only in what travels between nodes
    mode: str = ""  # of peers/torch_gpt2.py; "" for ours
    beside: str = ""  # our row that this peer is the counterpart of


def _amp(level, precision):
    # Apex's O1 keeps gradients in fp32; O2 has them, and what travels, in 16 bits.
    return Row(f"dps-{level.lower()}-{precision}", f"dps, {level} {precision}",
               f"mixed precision as Apex's {level}: products in {precision}, "
               + ("gradients in fp32" if level == "O1" else "gradients in 16 bits, too"),
               CURVE, ("--strategy", "dps", "--precision", precision, "--amp", level,
                       *(("--wire", precision) if level == "O2" else ())),
               ("--amp", "--loss-scale"), emulated=precision == "fp16")


def _shard(name, title, stage, about, **more):
    return Row(name, title, about, more.pop("judged", EXACT),
               ("--strategy", "dps", "--shard", stage), ("--shard",), (("--shard", stage),), **more)


OURS = [
    Row("single", "single", "one process, the whole batch; where every curve must lie", CLOSE,
        ("--strategy", "single"), single=True),
    Row("dps", "data parallel (DDP's design)", "gradients averaged in program order while backward "
        "runs", EXACT, ("--strategy", "dps")),
    Row("coordinator", "coordinator (Horovod's design)", "the same, launched when the ranks have "
        "agreed on what is ready", EXACT, ("--strategy", "coordinator")),
    Row("sps", "parameter server", "rank 0 receives gradients, updates alone and sends weights",
        EXACT, ("--strategy", "sps")),
    _shard("zero1", "ZeRO-1", "optimizer", "each rank updates, and keeps the moments of, its rows"),
    _shard("zero2", "ZeRO-2", "gradients", "and keeps only its rows of the gradients"),
    _shard("zero3", "ZeRO-3, FSDP", "weights", "and of the weights, which are gathered layer by "
           "layer"),
    _shard("hybrid", "hybrid (HSDP)", "hybrid", "ZeRO-3 inside a node, replicas across nodes",
           nodes=2, least_ranks=4),
    _amp("O1", "bf16"), _amp("O2", "bf16"), _amp("O1", "fp16"), _amp("O2", "fp16"),
    Row("dps-fp16-wire", "data parallel, fp16 between nodes", "dps whose gradients travel between "
        "nodes in fp16: half the bytes, and what rows that compress must beat", CURVE,
        ("--strategy", "dps", "--wire", "fp16"), least_ranks=2, by_wire=True),
    # Its rates are some ten times AdamW's: a step moves a tensor by the rate times its length. Every
    # tensor is a layer with a rate of its own, as the paper's algorithm has it: else vectors would be
    # moved by that large rate itself.
    Row("lamb", "LAMB", "AdamW's step scaled per tensor by |w| / |step|", TUNED,
        ("--strategy", "dps", "--optimizer", "lamb", "--lamb-exclude", "none"),
        ("--optimizer", "--lamb-exclude"), rate=10.0),
    Row("topk", "top 1 % of gradients", "the largest entries travel, the rest waits", CURVE,
        ("--strategy", "dps", "--compress", "topk", "--compress-rate", "0.99"), ("--compress",),
        (("--compress", "topk"),), compresses="topk", waits=100),  # 1 / 1 %
    Row("powersgd", "PowerSGD, rank 16", "gradients travel as products of thin matrices", CURVE,
        ("--strategy", "dps", "--compress", "powersgd", "--compress-rank", "16"), ("--compress",),
        (("--compress", "powersgd"),), compresses="powersgd"),
]

PEERS = [
    Row("torch-single", "torch, one process", "PyTorch alone", CLOSE, single=True, mode="single",
        beside="single"),
    Row("torch-ddp", "torch DDP", "DistributedDataParallel over gloo", CLOSE, mode="ddp",
        beside="dps"),
    Row("torch-ddp-bf16", "torch DDP, autocast bf16", "the same under torch.autocast", CURVE,
        mode="ddp-bf16", beside="dps-o1-bf16", bf16=True),
    Row("torch-ddp-fp16", "torch DDP, autocast fp16 and GradScaler", "the same with a loss scale",
        CURVE, mode="ddp-fp16", beside="dps-o1-fp16", emulated=True),
    Row("torch-zero1", "torch ZeroRedundancyOptimizer", "DDP with the optimizer's state in parts",
        CLOSE, mode="zero1", beside="zero1"),
    Row("torch-fsdp2", "torch FSDP2", "fully_shard() of each block over gloo", CLOSE, mode="fsdp2",
        beside="zero3"),
    Row("horovod", "Horovod", "its DistributedOptimizer over gloo", CLOSE, mode="horovod",
        beside="coordinator"),
    Row("deepspeed", "DeepSpeed ZeRO-2", "its engine over gloo", CLOSE, mode="deepspeed",
        beside="zero2"),
]

ALL = {row.name: row for row in [*OURS, *PEERS]}
REFERENCE = "dps"  # what ratios are taken to, among rows of as many ranks


def choose(words, among, what):
    """The rows of a list like "dps,zero1" or "all", in their usual order. An unknown one is refused
    with the nearest."""
    if words == "all":
        return list(among)
    names = [row.name for row in among]
    asked = [word for word in words.split(",") if word]
    if not asked:
        raise Failed(f"{what} names nothing; there are {', '.join(names)}")
    for word in asked:
        if word not in names:
            nearest = difflib.get_close_matches(word, names, 1, 0.0)
            raise Failed(f"{what} {word}: no such row, did you mean {nearest[0]}? There are "
                         f"{', '.join(names)}")
    return [row for row in among if row.name in asked]


def _help_line(text, flag):
    """The line of gpt2 --help about a flag; None without one."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == flag:
            return line
    return None


def lacking(row, help_text):
    """Why this gpt2 cannot run the row; "" where it can."""
    for flag in row.needs:
        if _help_line(help_text, flag) is None:
            return f"this gpt2 has no {flag}"
    for flag, word in row.words:
        if word not in _help_line(help_text, flag):
            return f"this gpt2 has no {flag} {word}"
    return ""


def emulated_here(row, has_bf16):
    """Why PyTorch computes a peer's products tens of times slower than in fp32; "" where it does
    not. Ours, which round to 16 bits and multiply in fp32, take no longer."""
    if not row.mode:
        return ""
    if row.emulated:
        return "PyTorch emulates products in fp16 on a processor"
    if row.bf16 and not has_bf16:
        return "this processor has no instructions for bf16, so PyTorch emulates its products"
    return ""


def fits(row, ranks):
    """Why the row cannot run on so many ranks; "" where it can."""
    if row.single:
        return ""
    if ranks < row.least_ranks:
        return f"it needs {row.least_ranks} ranks"
    if ranks % row.nodes != 0:
        return f"{ranks} ranks do not divide into {row.nodes} nodes"
    return ""
