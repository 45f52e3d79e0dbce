"""GPT-2 by torch.distributed.pipelining over the backend "dp": each rank has some of the blocks, one stage of them or
two, and micro-batches go from stage to stage.

    dprun -np 2 python gpt2_pipeline.py --schedule 1F1B
                                              or: torchrun --nproc-per-node 2 gpt2_pipeline.py
                                              or: srun
"""
import copy

import gpt2
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, schedules

import dp.torch.backend  # noqa: F401  makes the name "dp" known

ONE_STAGE = ("GPipe", "1F1B")
TWO_STAGES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


class Part(torch.nn.Module):
    """Stage `index` of `count`: the first one embeds, the last one has the head, whose weights are the embedding's."""

    def __init__(self, model: torch.nn.Module, index: int, count: int) -> None:
        super().__init__()
        layers = len(model.blocks)
        self.blocks = model.blocks[index * layers // count:(index + 1) * layers // count]
        self.wpe = model.wpe if index == 0 else None
        self.ln_f = model.ln_f if index == count - 1 else None
        self.wte = copy.deepcopy(model.wte) if index in (0, count - 1) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wpe is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.ln_f is None else F.linear(self.ln_f(x), self.wte.weight)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    options = gpt2.options_of(
        __doc__, backend=gpt2.BACKEND,
        schedule={"default": "1F1B", "choices": ONE_STAGE + TWO_STAGES, "help": "of PyTorch's [1F1B]"},
        micro_batches={"type": int, "default": 4, "help": "of a step's sequences [4]"})
    rank, ranks = gpt2.join_group(options.backend)
    numbers = [rank]  # of this rank's stages
    if options.schedule in TWO_STAGES:
        numbers.append(2 * ranks - 1 - rank if options.schedule == "ZBVZeroBubble" else ranks + rank)
    count = ranks * len(numbers)
    model = gpt2.model_of(options)
    if len(model.blocks) < count:
        raise SystemExit(f"--preset {options.preset} has {len(model.blocks)} blocks, too few for {count} stages")
    parts = torch.nn.ModuleList(Part(model, index, count) for index in numbers)
    stages = [PipelineStage(part, index, count, torch.device("cpu")) for part, index in zip(parts, numbers)]
    kind = schedules.get_schedule_class(options.schedule)
    schedule = kind(stages if len(stages) > 1 else stages[0], n_microbatches=options.micro_batches, loss_fn=loss_of)
    optimizer = gpt2.adamw(parts)
    embeddings = [part.wte.weight for part in parts if part.wte is not None]
    others = [one for one in parts.parameters() if all(one is not embedding for embedding in embeddings)]

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: list = []
        is_last = count - 1 in numbers
        schedule.step(*([inputs] if 0 in numbers else []), target=targets if is_last else None,
                      losses=losses if is_last else None)
        # The embedding of the first stage and that of the last are one tensor of the model.
        total = sum((one.grad for one in embeddings), torch.zeros_like(model.wte.weight))
        dist.all_reduce(total)
        for one in embeddings:
            one.grad.copy_(total)
        figures = torch.stack([sum(losses, torch.zeros(())) / options.micro_batches,
                               torch.nn.utils.get_total_norm([one.grad for one in others]).square()]).detach()
        dist.all_reduce(figures)
        norm = torch.sqrt(figures[1] + total.square().sum())
        torch.nn.utils.clip_grads_with_norm_(parts.parameters(), gpt2.CLIP, norm)
        optimizer.step()
        optimizer.zero_grad()
        return figures[0]

    gpt2.train(options, rank, ranks, optimizer, step, has_all=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
