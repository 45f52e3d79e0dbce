"""What torch.distributed wants to know in the environment, for the tasks of `srun python3 train.py`: torchrun and dprun
set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and srun has only variables of its own.

An ordinary step counts, as for libdp itself (runtime/group/starter.c): not the shells that Slurm starts inside an
allocation, nor ranks of an mpirun inside a step.
"""
from __future__ import annotations

import re
from typing import Mapping

PORTS = range(15000, 25000)  # below those that systems give to connections
STRIDE = 1009  # of ports between the steps of a job
NOT_ORDINARY = 0xfffffff0  # step ids from here on: interactive, batch, extern, pending


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of torch, by what Slurm says; none where this is no task of a step, or something has set RANK."""
    rank, size = _first(environment, "SLURM_PROCID"), \
        _first(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    step, job = _first(environment, "SLURM_STEP_ID", "SLURM_STEPID"), _first(environment, "SLURM_JOB_ID", "SLURM_JOBID")
    if "RANK" in environment or not all(re.fullmatch("[0-9]{1,18}", text) for text in (rank, size, step, job)):
        return {}
    if int(step) >= NOT_ORDINARY or _is_of_another_launcher(environment, rank, size):
        return {}
    found = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": _first(environment, "SLURM_LOCALID"),
             "MASTER_ADDR": first_node(_first(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")),
             "MASTER_PORT": str(PORTS[(int(job) + STRIDE * int(step)) % len(PORTS)])}
    if _first(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES") == "1":
        found["MASTER_ADDR"] = "127.0.0.1"  # a node's name need not be one of the network
    return {name: value for name, value in found.items() if value}


def first_node(nodes: str) -> str:
    """Of a list such as "a[01-03,5]n[1,2],b": "a01n1". Rank 0 runs there."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None, "it matches nothing too"
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first[0])


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _is_of_another_launcher(environment: Mapping[str, str], rank: str, size: str) -> bool:
    """Whether a launcher that the step has started has started this process. Slurm speaks PMI too, of the same rank."""
    if "OMPI_COMM_WORLD_RANK" in environment:
        return True
    return environment.get("PMI_RANK", rank) != rank or environment.get("PMI_SIZE", size) != size
