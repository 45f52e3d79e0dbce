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
    options = gpt2.options_of(__doc__, backend=gpt2.BACKEND)
    rank, ranks = gpt2.join_group(options.backend)
    model = torch.nn.parallel.DistributedDataParallel(gpt2.model_of(options),
                                                      gradient_as_bucket_view=True)
    optimizer = gpt2.adamw(model)
    timeline.watch(model, optimizer)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss

    gpt2.train(options, rank, ranks, optimizer, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
