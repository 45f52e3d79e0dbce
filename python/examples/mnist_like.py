"""The four lines that everybody knows: a small network learns ten classes of pictures that the script
draws itself, so there is nothing to download.

    dprun -np 2 python mnist_like.py          or: torchrun --nproc-per-node 2 mnist_like.py
                                              or: srun, mpirun, or alone
"""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dp.torch as hvd


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 5)
        self.fc1, self.fc2 = nn.Linear(256, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def pictures(count: int, seed: int) -> TensorDataset:
    """Ten coarse shapes [28][28], moved by up to three pixels, under noise."""
    shapes = torch.rand(10, 1, 7, 7, generator=torch.Generator().manual_seed(0)).round()
    shapes = F.interpolate(shapes, size=(22, 22))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randn(count, 1, 28, 28, generator=generator)
    moves = torch.randint(7, (count, 2), generator=generator).tolist()
    for image, label, (row, column) in zip(images, labels.tolist(), moves):
        image[:, row:row + 22, column:column + 22] += shapes[label]
    return TensorDataset(images, labels)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="[3]")
    parser.add_argument("--batch", type=int, default=64, help="pictures per step over all ranks [64]")
    parser.add_argument("--pictures", type=int, default=4096, help="to learn from [4096]")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate [0.05]")
    return parser.parse_args()


def main() -> None:
    options = parse()
    hvd.init()                                                                            # 1
    torch.manual_seed(1)
    torch.set_num_threads(1)
    data = pictures(options.pictures, seed=1)
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())          # 2
    loader = DataLoader(data, batch_size=options.batch // hvd.size(), sampler=sampler)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # 3
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)                             # 4

    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        mean = hvd.allreduce(total / len(loader), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{options.epochs}  loss {mean:.4f}", flush=True)

    test = pictures(1000, seed=2)[hvd.rank()::hvd.size()]
    with torch.no_grad():
        right = (model(test[0]).argmax(1) == test[1]).sum()
    right = hvd.allreduce(right, op=hvd.Sum, name="right").item()
    if hvd.rank() == 0:
        print(f"learned  {right / 10:.1f} % of 1000 new pictures on {hvd.size()} ranks")


if __name__ == "__main__":
    main()
