"""DistributedOptimizer over each optimizer of torch, in each way that training uses one, beside a single process on the
samples of all ranks. Skips where there is no PyTorch.

    dprun -np 2 python3 python/tests/test_optimizer_table.py [OPTIMIZER | WAY ...]
"""
import sys
import warnings

try:
    import torch
except ImportError:
    print("no PyTorch is here")
    sys.exit(77)

import dp.torch as hvd

torch.set_num_threads(1)

OPTIMIZERS = {
    "SGD": {"weight_decay": 0.1}, "Adam": {"weight_decay": 0.1}, "AdamW": {"weight_decay": 0.5}, "Adagrad": {"weight_decay": 0.1},
    "Adadelta": {"weight_decay": 0.1}, "Adamax": {"weight_decay": 0.1}, "NAdam": {"weight_decay": 0.1}, "RAdam": {"weight_decay": 0.1},
    "RMSprop": {"weight_decay": 0.1, "momentum": 0.5}, "Rprop": {}, "ASGD": {"weight_decay": 0.1}, "Adafactor": {"weight_decay": 0.1},
    "SparseAdam": {}, "LBFGS": {"max_iter": 3}, "Nesterov": {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True},
}


class Dense(torch.nn.Module):
    """Two layers, and a third one that no sample reaches."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = (torch.nn.Linear(a, b) for a, b in ((4, 5), (5, 3), (2, 2)))

    def loss(self, rank, step):
        inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=torch.float64)
        return self.second(torch.tanh(self.first(inputs.to(self.first.weight.dtype)))).square().mean()


class Sparse(torch.nn.Module):
    """Embeddings with sparse gradients, as SparseAdam wants them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Embedding(6, 3, sparse=True) for _ in range(2))

    def loss(self, rank, step):
        rows = torch.tensor([rank, step % 6, 5])
        return self.first(rows).square().sum() + (self.second(rows) * self.first(rows).detach()).sum()


class Side:
    """Training in one of the two ways: with this rank's samples over all ranks, or with those of all by itself."""

    def __init__(self, name, is_ours, in_place):
        torch.manual_seed(0)
        self.name, self.is_ours, self.in_place = name, is_ours, in_place
        self.net = (Sparse() if name == "SparseAdam" else Dense()).double()
        self.found = []  # to be compared with the other side's, beside the weights

    def make(self, params=None):
        kind = getattr(torch.optim, {"Nesterov": "SGD"}.get(self.name, self.name))
        return kind(list(self.net.parameters() if params is None else params), lr=0.01, **OPTIMIZERS[self.name])

    def wrap(self, optimizer):
        if not self.is_ours:
            return optimizer
        return hvd.DistributedOptimizer(optimizer, named_parameters=self.net.named_parameters(), in_place=self.in_place)

    def backward(self, step):
        ranks = [hvd.rank()] if self.is_ours else range(hvd.size())
        loss = sum(self.net.loss(rank, step) for rank in ranks) / len(ranks)
        loss.backward()
        return loss

    def step(self, optimizer, step, between=lambda: None, by_closure=False):
        def closure():
            optimizer.zero_grad(set_to_none=True)
            return self.backward(step)

        if by_closure or self.name == "LBFGS":
            optimizer.step(closure)
            return
        closure()
        between()
        optimizer.step()

    def train(self, optimizer, steps, **keywords):
        for step in steps:
            self.step(optimizer, step, **keywords)


def hooks(side):
    optimizer, norms = side.make(), []

    def before(optimizer, *_):
        norms.append(sum(param.grad.to_dense().square().sum().item() for param in side.net.parameters()
                         if param.grad is not None))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: side.found.append(1))
    wrapped = side.wrap(optimizer)
    wrapped.register_step_pre_hook(before)
    wrapped.register_step_post_hook(lambda *_: side.found.append(2))
    side.train(wrapped, range(4))
    side.found += norms if side.name != "LBFGS" else [len(norms)]  # its closure runs behind them


def scheduler_before(side):
    optimizer = side.make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    wrapped = side.wrap(optimizer)
    if side.is_ours:
        hvd.broadcast_optimizer_state(wrapped, 0)
    for step in range(4):
        side.step(wrapped, step)
        scheduler.step()
        side.found.append(wrapped.param_groups[0]["lr"])


def scheduler_after(side):
    optimizer = side.wrap(side.make())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(4):
        side.step(optimizer, step)
        scheduler.step()
        side.found.append(optimizer.param_groups[0]["lr"])


def closure(side):
    side.train(side.wrap(side.make()), range(5), by_closure=True)


def resume(side):
    """Wrapped again in the middle, too."""
    optimizer = side.make()
    single = Side(side.name, False, False)
    single.net = side.net
    single.train(optimizer, range(2))
    optimizer = side.wrap(optimizer)
    side.train(optimizer, range(2, 5))
    side.train(side.wrap(optimizer), range(5, 8))


def late_group(side):
    optimizer = side.wrap(side.make(side.net.first.parameters()))
    side.train(optimizer, range(3))
    optimizer.add_param_group({"params": list(side.net.second.parameters())})
    side.train(optimizer, range(3, 6))


def freeze(side):
    optimizer = side.wrap(side.make())
    side.train(optimizer, range(3))
    for param in side.net.first.parameters():
        param.requires_grad_(False)
    side.train(optimizer, range(3, 6))
    for param in side.net.first.parameters():
        param.requires_grad_(True)
    side.train(optimizer, range(6, 8))


def other_type(side):
    optimizer = side.wrap(side.make())
    side.train(optimizer, range(3))
    side.net.float()
    optimizer.load_state_dict(optimizer.state_dict())  # it casts the state
    side.train(optimizer, range(3, 6))


def dropped_gradient(side):
    """On one rank, when its reduction has begun."""
    optimizer = side.wrap(side.make())

    def drop():
        if side.is_ours and hvd.rank() == 1:
            side.net.first.weight.grad = None
            side.net.second.weight.grad = side.net.second.weight.grad.clone()

    side.train(optimizer, range(5), between=drop)


WAYS = (hooks, scheduler_before, scheduler_after, closure, resume, late_group, freeze, other_type, dropped_gradient)


def version():
    return tuple(int(part) for part in torch.__version__.split("+")[0].split("a")[0].split(".")[:2])


def is_possible(name, way):
    """Whether torch itself can do it."""
    if not hasattr(torch.optim, {"Nesterov": "SGD"}.get(name, name)):
        return False
    if way is hooks and not hasattr(torch.optim.Optimizer, "register_step_pre_hook"):
        return False
    if name == "Adagrad" and way is late_group:  # early ones make state in the constructor alone
        return version() >= (2, 9)
    return not (name == "LBFGS" and way in (late_group, freeze))  # it has one group, and gradients of all


def compare(name, way):
    """What differs."""
    sides = []
    for is_ours, in_place in ((False, False), (True, True), (True, False)):
        side = Side(name, is_ours, in_place)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", message=".*invariant.*|.*is_sparse.*|.*lr_scheduler.step.. is being.*")
            way(side)
        sides.append((torch.cat([param.detach().flatten() for param in side.net.parameters()]), side.found))
    (single, expected), (placed, found), (copied, _) = sides
    if not torch.equal(placed, copied):
        return "in_place gives other bits"
    every = hvd.allgather(placed.unsqueeze(0))
    if not torch.equal(every, every[:1].expand_as(every)):
        return "the ranks differ"
    error = (placed - single).abs().max().item()
    if not error < (1e-5 if way is other_type else 1e-9):
        return f"weights are off by {error:.3g}"
    if len(found) != len(expected) or any(abs(a - b) > 1e-6 * max(abs(b), 1) for a, b in zip(found, expected)):
        return f"found {found}, not {expected}"
    return None


def main():
    hvd.init()
    chosen = set(sys.argv[1:]) - {"--failfast"}
    wrong, cells = 0, 0
    for name in OPTIMIZERS:
        for way in WAYS:
            if chosen and not {name, way.__name__} & chosen or not is_possible(name, way):
                continue
            cells += 1
            try:
                problem = compare(name, way)
            except Exception as error:  # of all ranks alike, or the job stalls and says so
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                wrong += 1
                print(f"{name}, {way.__name__}: {problem}", flush=True)
    print(f"{cells} cells, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
