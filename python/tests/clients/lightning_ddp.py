"""Lightning's Trainer with DDP; the strategy names the backend."""
import os
import sys
import tempfile

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

import common


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = common.model()

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_start(self):
        common.tell_backend()


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    net = Net()
    trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_progress_bar=False,
                                enable_checkpointing=False, enable_model_summary=False,
                                strategy=DDPStrategy(process_group_backend=sys.argv[1]))
    trainer.fit(net, torch.utils.data.DataLoader(common.dataset(), 8))
    common.tell(net, trainer.callback_metrics["loss_epoch"].item())
    os.chdir("/")
