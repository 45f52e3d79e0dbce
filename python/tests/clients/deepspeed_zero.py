"""DeepSpeed's ZeRO 1 to 3; init_distributed() names the backend."""
import sys

import deepspeed
import torch

import common

deepspeed.init_distributed(dist_backend=sys.argv[1])
common.tell_backend()
rows = common.dataset()
for stage in (1, 2, 3):
    net = common.model()
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
        "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": stage}, "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}})
    for step in range(common.STEPS):
        first = 16 * step + 8 * engine.global_rank
        x, y = (torch.stack(part) for part in zip(*(rows[i] for i in range(first, first + 8))))
        loss = torch.nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
    torch.distributed.all_reduce(loss.detach())
    sys.stdout.write(f"RESULT {stage} {loss.item():.9f}\n")
    sys.stdout.flush()
