"""Ray Train's TorchTrainer; TorchConfig names the backend. Ray starts the ranks itself."""
import json
import os
import sys
import tempfile

import ray
import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model

HERE = os.path.dirname(os.path.abspath(__file__))


def train(config):
    sys.path.insert(0, HERE)
    import common
    import torch.distributed as dist
    net = prepare_model(common.model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = prepare_data_loader(torch.utils.data.DataLoader(common.dataset(), 8))
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = sum(p.detach().double().abs().sum().item() for p in net.parameters())
    if dist.get_rank() == 0:
        with open(config["out"], "w", encoding="ascii") as file:
            json.dump({"loss": loss.item(), "total": total, "backend": dist.get_backend()}, file)


with tempfile.TemporaryDirectory() as folder:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    trainer = TorchTrainer(train, train_loop_config={"out": os.path.join(folder, "out.json")},
                           scaling_config=ray.train.ScalingConfig(num_workers=2),
                           torch_config=TorchConfig(backend=sys.argv[1]),
                           run_config=ray.train.RunConfig(storage_path=folder))
    trainer.fit()
    ray.shutdown()
    with open(os.path.join(folder, "out.json"), encoding="ascii") as file:
        metrics = json.load(file)
sys.stdout.write(f"CARRIED {'dp' if metrics['backend'] == 'dp' else 'other'}\n")
sys.stdout.write(f"RESULT {metrics['loss']:.9f} {metrics['total']:.9f}\n")
