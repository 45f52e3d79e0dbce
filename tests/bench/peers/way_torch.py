"""way_torch.py - torch.distributed.all_reduce over gloo, or Horovod's, timed by slices.c.

    RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT= way_torch.py slices=LIBSLICES table=FILE
        [variant=flat|async] ...
    horovodrun -np N way_torch.py through=horovod slices=LIBSLICES table=FILE [variant=] ...

A set of tensors goes as one (flat) or all at once, then awaited (async).
"""
import os
import sys

import slices
import torch


def start_gloo():
    """(rank, ranks, submit, wait, what is to be called at the end)."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size(),
            lambda tensor, _index: dist.all_reduce(tensor, async_op=True),
            lambda work: work.wait(), lambda: None)


def start_horovod():
    """The same of Horovod, which knows tensors by their names."""
    import horovod.torch as hvd

    hvd.init()
    return (hvd.rank(), hvd.size(),
            lambda tensor, index: hvd.allreduce_async_(
                tensor, op=hvd.Sum, name=f"tensor.{tensor.numel()}.{index}"),
            hvd.synchronize, hvd.shutdown)


def main():
    through, variant = slices.argument("through", "gloo"), slices.argument("variant", "flat")
    torch.set_num_threads(1)
    rank, ranks, submit, wait, stop = start_horovod() if through == "horovod" else start_gloo()
    kept, views = [], {}

    def memory(size):
        kept.append(torch.zeros((size + 3) // 4, dtype=torch.float32))
        return kept[-1].data_ptr()

    def reduce(_address, count, counts):
        if count not in views:  # not in the timed iterations
            sizes = counts if variant == "async" else [count]
            views[count] = list(kept[-1][:count].split(sizes))
        works = [submit(tensor, index) for index, tensor in enumerate(views[count])]
        for work in works:
            wait(work)

    code = slices.run(through, rank, ranks, memory, reduce)
    stop()
    sys.stdout.flush()
    os._exit(code)  # gloo's threads need no farewell


if __name__ == "__main__":
    main()
