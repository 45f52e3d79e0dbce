"""loop.py - tests/faults/victim.c's training loop for PyTorch over gloo, and for Horovod: averages one
tensor again and again.

    torchrun ... loop.py torch STEPS FOLDER
    horovodrun ... python loop.py horovod STEPS FOLDER

Each rank leaves FOLDER/part.RANK behind once it has averaged five times.
"""
import sys
import time

import torch

COUNT = 100000


def start(peer):
    """Returns this rank's number, a function that averages, and one that ends."""
    if peer == "torch":
        import torch.distributed as dist
        dist.init_process_group("gloo")
        return dist.get_rank(), dist.all_reduce, dist.destroy_process_group
    import horovod.torch as hvd
    hvd.init()
    return hvd.rank(), lambda values: hvd.allreduce_(values, name="values"), hvd.shutdown


def main():
    peer, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    rank, average, end = start(peer)
    values = torch.zeros(COUNT)
    for step in range(1, steps + 1):
        time.sleep(0.003)
        average(values)
        if step == 5:
            with open(f"{folder}/part.{rank}", "w", encoding="utf-8"):
                pass
    end()


main()
