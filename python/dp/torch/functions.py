"""Making ranks equal at the start: parameters, the optimizer's state, any object."""
from __future__ import annotations

import collections
import functools
import io
from typing import Any, Iterable

import torch

from .ops import allgather_async, begin_all, broadcast_, broadcast_async_, synchronize_all
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
    """Makes the optimizer's state equal to the root's, options of its parameter groups included.

    An optimizer without state makes it by one step on zero gradients, whose change of the parameters is
    taken back. model: tells which of SGD's parameters have sparse gradients.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        # Its state is lists and closures in one dict, which only a step of the program fills.
        raise ValueError("broadcast_optimizer_state: LBFGS has no state that can be sent before its "
                         "first step; give all ranks the same checkpoint")
    state = optimizer.state_dict()
    if not state["state"]:
        _make_state(optimizer, model)
        state = optimizer.state_dict()
    others = {"groups": state["param_groups"],
              "state": {group: {key: value for key, value in entries.items()
                                if not _is_flat(value)}
                        for group, entries in state["state"].items()}}
    others = broadcast_object(others, root_rank, "optimizer.options")
    tensors = {f"optimizer.{group}.{key}": value for group, entries in state["state"].items()
               for key, value in entries.items()
               if _is_flat(value) and key not in others["state"].get(group, {})}  # not flat on the root
    broadcast_parameters(tensors, root_rank)
    state["param_groups"] = others["groups"]
    for group, entries in others["state"].items():
        state["state"].setdefault(group, {}).update(entries)
    optimizer.load_state_dict(state)


def _is_flat(value: Any) -> bool:
    """A tensor that can be broadcast; sparse ones, as SGD's momentum of sparse gradients, are pickled."""
    return isinstance(value, torch.Tensor) and not value.is_sparse


def _sparse_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> set[int]:
    """The ids of parameters whose gradients are sparse: those of SparseAdam, which takes no others, and of the
    model's sparse embeddings under SGD."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {id(param) for group in optimizer.param_groups for param in group["params"]}
    if model is None or not isinstance(optimizer, torch.optim.SGD):
        return set()
    return {id(module.weight) for module in model.modules()
            if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse}


def _make_state(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """One step on zero gradients; parameters are as before afterwards, and gradients that were there."""
    saved = [(param, param.detach().clone(), param.grad) for group in optimizer.param_groups
             for param in group["params"] if param.requires_grad]
    sparse = _sparse_parameters(optimizer, model)
    # A DistributedOptimizer's own step would reduce them.
    step = getattr(optimizer, "plain_step", optimizer.step)
    try:
        for param, _, _ in saved:
            zeros = torch.zeros_like(param)
            param.grad = zeros.to_sparse() if id(param) in sparse else zeros
        step()
    finally:
        for param, value, grad in saved:
            with torch.no_grad():
                param.copy_(value)
            if grad is not None or id(param) in sparse:  # a dense one stays zero, and has a tensor to reduce
                param.grad = grad
