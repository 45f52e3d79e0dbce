"""Five schedules of torch.distributed.pipelining on two stages, or two stages of a rank."""
import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules

dist.init_process_group(sys.argv[1])
rank, ranks = dist.get_rank(), dist.get_world_size()
sys.stdout.write(f"CARRIED {'dp' if dist.get_backend() == 'dp' else 'other'}\n")
generator = torch.Generator().manual_seed(1)
x, y = torch.randn(16, 8, generator=generator), torch.randn(16, 8, generator=generator)


def stage(index, count):
    torch.manual_seed(index)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    return PipelineStage(layer, index, count, torch.device("cpu"))


for name in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"):
    kind = schedules.get_schedule_class(name)
    is_multi = issubclass(kind, schedules.PipelineScheduleMulti)
    stages = [stage(rank + ranks * i, 2 * ranks) for i in range(2)] if is_multi else [stage(rank, ranks)]
    schedule = kind(stages if is_multi else stages[0], n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    losses: list = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    gradient = sum(p.grad.abs().sum().item() for one in stages for p in one.submod.parameters())
    loss = sum(one.item() for one in losses)
    sys.stdout.write(f"RESULT {name} {rank} {gradient:.9f} {loss:.9f}\n")
    sys.stdout.flush()
dist.destroy_process_group()
