"""transformers.Trainer on a GPT-2 of random weights: training, a checkpoint, evaluation. It knows gloo's name alone."""
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import common


class Texts(torch.utils.data.Dataset):
    rows = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


set_seed(0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(output_dir=folder, use_cpu=True, per_device_train_batch_size=4, max_steps=common.STEPS,
                                  save_steps=3, learning_rate=1e-3, report_to=[], disable_tqdm=True,
                                  ddp_find_unused_parameters=False, gradient_accumulation_steps=2)
    net = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=16))
    trainer = Trainer(net, arguments, train_dataset=Texts(), eval_dataset=Texts())
    common.tell_backend()
    trainer.train()
    common.tell(net, trainer.evaluate()["eval_loss"])
