"""GPT-2 by Horovod's API.

    dprun -np 2 python gpt2_hvd.py            or: torchrun --nproc-per-node 2 gpt2_hvd.py
                                              or: srun, mpirun, or alone
"""
import gpt2
import torch

import dp.torch as hvd
from dp.torch import timeline


def main() -> None:
    options = gpt2.options_of(__doc__)
    hvd.init()
    model = gpt2.model_of(options)
    optimizer = hvd.DistributedOptimizer(gpt2.adamw(model), named_parameters=model.named_parameters(),
                                         clip=gpt2.CLIP)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    timeline.watch(model, optimizer)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()  # waits for the averages, clips, steps
        optimizer.zero_grad()
        return hvd.allreduce(loss.detach(), name="loss")

    gpt2.train(options, hvd.rank(), hvd.size(), optimizer, step)
    hvd.shutdown()


if __name__ == "__main__":
    main()
