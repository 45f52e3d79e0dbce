"""GPT-2 by DistributedDataParallel over the backend "dp".

    dprun -np 2 python gpt2_ddp.py            or: torchrun --nproc-per-node 2 gpt2_ddp.py
                                              or: srun, or alone
"""
import gpt2
import torch
import torch.distributed as dist

import dp.torch.backend  # noqa: F401  makes the name "dp" known
from dp.torch import timeline


def main() -> None:
    options = gpt2.options_of(__doc__)
    gpt2.join_group()
    model = torch.nn.parallel.DistributedDataParallel(gpt2.model_of(options),
                                                      gradient_as_bucket_view=True)
    optimizer = gpt2.adamw(model)
    timeline.watch(model, optimizer)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    def average(loss: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss

    gpt2.train(options, dist.get_rank(), dist.get_world_size(), model, optimizer, update, average)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
