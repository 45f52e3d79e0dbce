"""Making ranks equal at the start: parameters, the optimizer's state, any object."""
from __future__ import annotations

import collections
import functools
import io
from typing import Any, Iterable

import torch

from .ops import allgather_async, as_real, begin_all, broadcast_, broadcast_async_, synchronize_all
from .runtime import ProcessSet, global_process_set, world

try:
    import cloudpickle as _pickle
except ImportError:  # objects of the main program's own classes need it
    import pickle as _pickle  # type: ignore[no-redef]

DEFAULT_NAME = "object"  # not the type's: ranks may give objects of several types, and only the root's counts


def broadcast_parameters(params: Any, root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Makes parameters equal to the root's: model.state_dict(), model.named_parameters() or such."""
    if isinstance(params, dict):
        pairs: Iterable[Any] = sorted(params.items())
    elif isinstance(params, (list, collections.abc.Iterator)) or hasattr(params, "__next__"):
        pairs = [one if isinstance(one, tuple) else (None, one) for one in params]
    else:
        raise ValueError(f"broadcast_parameters: a {type(params).__name__} is neither a dict of "
                         "tensors nor a list of tensors or of names and tensors")
    copies, calls = [], []
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            continue
        tensor = as_real(tensor)
        if not tensor.is_sparse and not tensor.is_contiguous():  # as channels_last: libdp moves flat memory
            copies.append((tensor, tensor.detach().contiguous()))
            tensor = copies[-1][1]
        calls.append(functools.partial(broadcast_async_, tensor, root_rank, name, process_set))
    synchronize_all(begin_all(calls))
    for tensor, copy in copies:
        tensor.detach().copy_(copy)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Gives the root's object to all ranks, by pickle."""
    name = name or DEFAULT_NAME
    data = _dump(obj) if world.context.rank == root_rank else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()], dtype=torch.int64)
    broadcast_(length, root_rank, f"{name}.length", process_set)
    if world.context.rank != root_rank:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, f"{name}.data", process_set)
    return obj if world.context.rank == root_rank else _load(data)


def allgather_object(obj: Any, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, by rank."""
    name = name or DEFAULT_NAME
    data = _dump(obj)
    length = torch.tensor([data.numel()], dtype=torch.int64)
    lengths, every = synchronize_all(begin_all((
        functools.partial(allgather_async, length, f"{name}.lengths", process_set),
        functools.partial(allgather_async, data, f"{name}.objects", process_set))))
    return [_load(part) for part in torch.split(every, lengths.tolist())]


def _dump(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(_pickle.dumps(obj)), dtype=torch.uint8)


def _load(data: torch.Tensor) -> Any:
    return _pickle.load(io.BytesIO(data.numpy().tobytes()))


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: torch.nn.Module | None = None) -> None:
    """Makes the optimizer's state equal to the root's, options of its parameter groups included. State that the root
    lacks, as of parameters that it never used or before its first step, is dropped.

    ValueError on every rank: an optimizer has other parameters than the root's. model: as Horovod's; of no use.
    """
    state = optimizer.state_dict()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    told = broadcast_object(_describe(optimizer, state, params), root_rank, "optimizer.options")
    problem = _misfit(told, _describe(optimizer, state, params), root_rank)
    problems = [one for one in allgather_object(problem, "optimizer.fits") if one is not None]
    if problems:
        raise ValueError(f"broadcast_optimizer_state: {problems[0]}")
    tensors = {}
    for key, entries in told["state"].items():
        param = params[key] if isinstance(key, int) and key < len(params) else None
        for name, value in entries.items():
            if not isinstance(value, _Described):
                continue
            if world.context.rank == root_rank:
                entries[name] = state["state"][key][name]
            else:
                device = param.device if param is not None and param.device.type == value.device else "cpu"
                entries[name] = torch.empty(value.shape, dtype=value.dtype, device=device)
            tensors[f"optimizer.{key}.{name}"] = entries[name]
    broadcast_parameters(tensors, root_rank)
    if world.context.rank != root_rank:
        optimizer.load_state_dict({"state": told["state"], "param_groups": told["groups"]})


class _Described:
    """A tensor of the root's state, which comes by a broadcast of its own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device.type


def _describe(optimizer: torch.optim.Optimizer, state: dict, params: list) -> dict[str, Any]:
    """What travels by pickle: all but dense tensors."""
    names = getattr(optimizer, "_parameter_names", {})
    return {"groups": state["param_groups"],
            "params": [(str(names.get(param, i)), str(param.dtype)[6:], tuple(param.shape)) for i, param in enumerate(params)],
            "sizes": [len(group["params"]) for group in optimizer.param_groups],
            "state": {key: {name: _Described(value) if isinstance(value, torch.Tensor) and not value.is_sparse else value
                            for name, value in entries.items()}
                      for key, entries in state["state"].items()}}


def _misfit(root: dict[str, Any], own: dict[str, Any], root_rank: int) -> str | None:
    """Why the root's state is not one of this rank's optimizer."""
    here = f"rank {world.context.rank}"
    if root["sizes"] != own["sizes"]:
        only = [name for name, _, _ in _longer(root["params"], own["params"])]
        missing = f"; only one of them has the parameters {', '.join(only[:8])}" if only else ""
        return (f"parameter groups of {root['sizes']} parameters on rank {root_rank}, of {own['sizes']} on {here}"
                f"{missing}: {', '.join(name for name, _, _ in root['params'][:8])}"
                f"{', ...' if len(root['params']) > 8 else ''}")
    for there, one in zip(root["params"], own["params"]):
        if there[1:] != one[1:]:
            return (f"parameter {there[0]} is {there[1]} {list(there[2])} on rank {root_rank}, "
                    f"{one[0]} is {one[1]} {list(one[2])} on {here}")
    return None


def _longer(one: list, other: list) -> list:
    """What the longer list has behind the end of the shorter one."""
    return one[len(other):] or other[len(one):]
