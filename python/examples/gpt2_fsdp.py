"""GPT-2 by FSDP2 over the backend "dp": each rank keeps its part of weights, gradients and moments.

    dprun -np 2 python gpt2_fsdp.py           or: torchrun --nproc-per-node 2 gpt2_fsdp.py
                                              or: srun, or alone
"""
import gpt2
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dp.torch.backend  # noqa: F401  makes the name "dp" known
from dp.torch import timeline


def main() -> None:
    options = gpt2.options_of(__doc__, backend=gpt2.BACKEND)
    rank, ranks = gpt2.join_group(options.backend)
    model = gpt2.model_of(options)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
