"""GPT-2 by context_parallel() over the backend "dp": each rank has a part of every sequence, and the keys and values of
the others pass by. DDP averages the gradients, as for any other share of a step's tokens.

    dprun -np 2 python gpt2_context.py        or: torchrun --nproc-per-node 2 gpt2_context.py
                                              or: srun
"""
from typing import Any

import gpt2
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

import dp.torch.backend  # noqa: F401  makes the name "dp" known

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def attend_on_cpus(operation: Any, arguments: tuple, settings: dict) -> tuple:
    """PyTorch 2.15 has the ring for GPUs' attention alone; this hands it that of CPUs, whose operations are alike."""
    mesh = arguments[0].device_mesh
    *tensors, dropout, is_causal = (one.to_local() if isinstance(one, DTensor) else one for one in arguments)
    given = {"is_causal": is_causal, "dropout_p": dropout, "scale": settings.get("scale")}
    if operation == FORWARD:
        found = ring._templated_ring_attention(mesh.get_group(), 2, FORWARD, *tensors, **given)
    else:
        gradient, *others = tensors
        found = ring._templated_ring_attention_backward(mesh.get_group(), 2, BACKWARD, gradient, "grad_out", *others, **given)
    return tuple(DTensor.from_local(one, mesh, [Shard(2)]) for one in found)


def main() -> None:
    options = gpt2.options_of(__doc__, backend=gpt2.BACKEND)
    rank, ranks = gpt2.join_group(options.backend)
    ring.custom_ops.update({FORWARD: attend_on_cpus, BACKWARD: attend_on_cpus})
    if options.seq % (2 * ranks) != 0:
        raise SystemExit(f"sequences of {options.seq} tokens cannot be cut into two parts for each of {ranks} ranks")
    mesh = init_device_mesh("cpu", (ranks,))
    model = torch.nn.parallel.DistributedDataParallel(gpt2.model_of(options), gradient_as_bucket_view=True)
    optimizer = gpt2.adamw(model)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(options.seq)
        with context_parallel(mesh, buffers=[inputs, targets, positions], buffer_seq_dims=[1, 1, 0],
                              no_restore_buffers={inputs, targets, positions}):  # they become this rank's part
            loss = model(inputs, targets, positions)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss

    gpt2.train(options, rank, ranks, optimizer, step, has_all=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
