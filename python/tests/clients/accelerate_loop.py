"""The loop of accelerate's README: accumulation, clipping, metrics of all ranks, saved state. It knows gloo's name alone."""
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import common

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = common.model()
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
loader = torch.utils.data.DataLoader(common.dataset(), 8, shuffle=True)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
common.tell_backend()
for step, (x, y) in enumerate(loader):
    with accelerator.accumulate(net):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
common.tell(net, accelerator.gather_for_metrics(loss.detach()[None]).mean().item())
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
accelerator.end_training()
