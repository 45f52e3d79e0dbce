"""The parameters of an optimizer: their names, the groups that are reduced together, and the hooks that tell when a
gradient is there. Called by optimizer.py; it knows nothing of reductions."""
from __future__ import annotations

from typing import Any, Callable

import torch

NAMELESS = "allreduce.noname."


def check_names(optimizer: torch.optim.Optimizer, named_parameters: Any) -> "list[tuple[str, Any]]":
    """Names and parameters, each of the optimizer's once."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if named_parameters is None:
        return [(f"{NAMELESS}{i}.{j}", param) for i, group in enumerate(optimizer.param_groups)
                for j, param in enumerate(group["params"])]
    named = list(named_parameters)
    if any(not isinstance(one, tuple) or len(one) != 2 for one in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), usually "
                         "produced by model.named_parameters().")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: "
                         f"{', '.join(twice)}")
    known = {id(param) for _, param in named}
    if any(id(param) not in known for param in params):
        raise ValueError("named_parameters was specified, but one or more model parameters were not "
                         "named. Python object ids: "
                         f"{', '.join(str(id(p)) for p in params if id(p) not in known)}")
    return named


def divide(optimizer: torch.optim.Optimizer, groups: Any) -> dict[Any, list]:
    """The list of parameters that are reduced together with each one."""
    params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
    if isinstance(groups, int) and groups > 0:
        size = (len(params) + groups - 1) // groups
        lists = [params[i:i + size] for i in range(0, len(params), max(size, 1))]
    elif isinstance(groups, (list, tuple)):
        lists = [list(one) for one in groups]
        if any(not isinstance(param, torch.Tensor) for one in lists for param in one):
            raise ValueError("groups should be a list of lists of parameters")
        listed = [id(param) for one in lists for param in one]
        if len(set(listed)) != len(listed):
            raise ValueError("Multiple occurrences of the same parameter in groups")
    elif groups:
        raise ValueError("groups should be a non-negative integer or a list of lists of parameters")
    else:
        lists = []
    return {param: members for members in lists for param in members}


def add_hook(param: Any, function: Callable[[Any], None]) -> Any:
    """Calls function(param) when .grad is written. Returns the hook's handle, and what must stay alive for it."""
    if hasattr(param, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
        return param.register_post_accumulate_grad_hook(function), None
    node = param.expand_as(param).grad_fn.next_functions[0][0]
    return node.register_hook(lambda *_: function(param)), node


def remove_hooks(hooks: list) -> None:
    """Of an optimizer that is dropped: they hold its memory."""
    for handle, _ in hooks:
        handle.remove()
    hooks.clear()
