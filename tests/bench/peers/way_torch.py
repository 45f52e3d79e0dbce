"""way_torch.py - torch.distributed.all_reduce over gloo, or Horovod's, timed by slices.c.

    RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT= way_torch.py slices=LIBSLICES table=FILE
        [variant=flat|async] [through=gloo|horovod] ...

A set of tensors goes as one (flat) or all at once, then awaited (async).
"""
import os
import sys

import slices
import torch
import torch.distributed as dist


def main():
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    through, variant = slices.argument("through", "gloo"), slices.argument("variant", "flat")
    torch.set_num_threads(1)
    if through == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, ranks = hvd.rank(), hvd.size()

        def submit(tensor, index):
            return hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"t.{tensor.numel()}.{index}")

        wait = hvd.synchronize
    else:
        dist.init_process_group("gloo")

        def submit(tensor, _index):
            return dist.all_reduce(tensor, async_op=True)

        def wait(work):
            work.wait()

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
    sys.stdout.flush()
    os._exit(code)  # gloo's threads need no farewell


if __name__ == "__main__":
    main()
