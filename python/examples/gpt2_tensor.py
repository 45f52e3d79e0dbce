"""GPT-2 by DTensor's tensor parallelism over the backend "dp": each rank has some heads of every attention and a part
of every MLP; embeddings and norms are the same on all ranks.

    dprun -np 2 python gpt2_tensor.py         or: torchrun --nproc-per-node 2 gpt2_tensor.py
                                              or: srun, or alone
"""
import gpt2
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dp.torch.backend  # noqa: F401  makes the name "dp" known


def order_by_rank(qkv: torch.nn.Linear, ranks: int) -> None:
    """Brings the rows of q, k and v of a rank's heads together, as ColwiseParallel gives each rank one run of rows."""
    for part in (qkv.weight, qkv.bias):
        part.data = part.data.view(3, ranks, -1, *part.shape[1:]).transpose(0, 1).reshape(part.shape)


def norm_of(model: torch.nn.Module) -> torch.Tensor:
    """The norm of all gradients: of those that are cut over the ranks, and of those that each rank has."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    cut = torch.nn.utils.get_total_norm([one for one in gradients if isinstance(one, DTensor)])
    whole = torch.nn.utils.get_total_norm([one for one in gradients if not isinstance(one, DTensor)])
    return torch.hypot(cut.full_tensor() if isinstance(cut, DTensor) else cut, whole)


def main() -> None:
    options = gpt2.options_of(__doc__, backend=gpt2.BACKEND)
    rank, ranks = gpt2.join_group(options.backend)
    model = gpt2.model_of(options)
    heads = gpt2.PRESETS[options.preset][1]
    if heads % ranks != 0:
        raise SystemExit(f"the {heads} heads of --preset {options.preset} cannot be shared by {ranks} ranks")
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        order_by_rank(block.qkv, ranks)
        parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "proj": RowwiseParallel(),
                                         "fc": ColwiseParallel(), "fcproj": RowwiseParallel()})
    optimizer = gpt2.adamw(model)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), gpt2.CLIP, norm_of(model), foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    gpt2.train(options, rank, ranks, optimizer, step, has_all=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
