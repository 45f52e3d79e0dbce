"""A communication hook for DistributedDataParallel over the backend "dp".

DDP wants its annotations as types, so they are none of the texts of __future__.
"""
from typing import Any

import torch
import torch.distributed as dist


def average(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """model.register_comm_hook(None, dp.torch.ddp.average): averages a bucket in the reduction itself. Without a
    hook DDP divides each bucket before it, in a pass over its memory.

    group   the process group of the model, None: the default one
    bucket  DDP's
    """
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
