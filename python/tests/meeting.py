"""Worlds by the launcher's store, one after the other, for test_backend_life.py.

Rank argv[1] comes to each of them later than DP_START_TIMEOUT. Under torchrun rank 1 is killed in the first attempt.
"""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import dp.torch.backend  # noqa: F401, registers "dp"
from torch_ranks import VERSION

here, attempt = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 1))
for world in range(2):
    if here == int(sys.argv[1]):
        time.sleep(3)
    dist.init_process_group("dp")
    x = torch.ones(1)
    dist.all_reduce(x)
    if attempt == 0 and here == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if VERSION >= (2, 14):  # before, torch has it for gloo alone
        dist.monitored_barrier()  # by keys of this world
    dist.all_reduce(x)
    print(f"rank {here} attempt {attempt} world {world} sum {x.item()}", flush=True)
    dist.destroy_process_group()
