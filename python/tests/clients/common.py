"""What the programs of this folder share: a small model, data that depend on no rank, and one line for the result.

test_clients.py runs each program twice, over "dp" and over gloo, and compares the lines that begin with RESULT.
"""
import sys

import torch

STEPS = 6


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def dataset() -> torch.utils.data.Dataset:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(128, 16, generator=generator),
                                          torch.randint(0, 4, (128,), generator=generator))


def tell(module: torch.nn.Module, *figures: float) -> None:
    """Nine digits of each figure and of the sum of the weights."""
    total = sum(p.detach().double().abs().sum().item() for p in module.parameters())
    sys.stdout.write(f"RESULT {' '.join(f'{x:.9f}' for x in (*figures, total))}\n")
    sys.stdout.flush()


def tell_backend() -> None:
    """Which module carries the default group."""
    import torch.distributed as dist
    kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
    sys.stdout.write(f"CARRIED {'other' if kind == 'ProcessGroupGloo' else 'dp'}\n")
    sys.stdout.flush()
