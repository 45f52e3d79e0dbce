"""pairs.py - OpenMPI and libdp in one pair of processes (peers/pair_mpi.c), in turn."""
import os
import re

from measuring.process import Failed, Late, run
from comparing.ways import OPENMPI

VADER = ["--bind-to", "core", "--mca", "pml", "ob1", "--mca", "btl", "vader,self"]
LINE = re.compile(r"(\w+) (\d+) bytes, (\w+) memory: MPI ([\d.]+) us, libdp ([\d.]+) us")
SMALL, SMALL_US = 1024, 3.0  # up to this size a time is the target, beyond it MPI's


def read(text):
    """[(what, bytes, memory, MPI's us, ours)] of what pair_mpi printed."""
    return [(what, int(size), memory, float(mpi), float(ours))
            for what, size, memory, mpi, ours in LINE.findall(text)]


def measure(lab, options, found):
    """Fills found["rows"]; found["why"]: why there are none."""
    if not lab.peers.openmpi:
        found["why"] = "there is no OpenMPI"
        return
    command = [*OPENMPI, "-n", 2, *VADER, lab.path("pair_mpi"),
               f"rounds={7 if options.quick else 21}"]
    try:
        text = run(command, lab.limit(120), {"DP_ORDER": "program"})
    except Late:
        raise
    except Failed as error:
        lab.note("pair_mpi", error)
        text = error.output
    found["rows"] = read(text)
    lab.say(f"  {len(found['rows'])} rows")
