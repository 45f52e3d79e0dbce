"""Steps, forward, backward and optimizer of a PyTorch program on the timeline that `dprun --timeline FILE`
records, and the names of parameters on DDP's buckets.

    timeline.watch(model, optimizer)    # once, behind hvd.init() or init_process_group("dp")

All of it is hooks of torch on the program's own thread; a mark costs about a microsecond. Step beginnings
also tell libdp where a round of reductions begins. DistributedOptimizer names its tensors itself.
"""
from __future__ import annotations

import threading
import types
import weakref
from typing import Any

import torch

import dp
from dp._c import lib

from .reduction import stream_of
from .runtime import world

NAME_BYTES = 200  # of a bucket's name; libdp takes 255


def _context() -> dp.Context:
    """The context of hvd.init(), or of the process group."""
    if world.is_initialized:
        return world.context
    import torch.distributed as dist
    if dist.is_initialized():
        from . import backend
        if backend._default is not None and backend._default.is_alive:
            return backend._default
    raise RuntimeError('timeline.watch() comes behind hvd.init() or init_process_group("dp")')


def _first_tensor(value: Any) -> torch.Tensor | None:
    """A tensor of a model's output whose gradient will come."""
    if isinstance(value, torch.Tensor):
        return value if value.requires_grad else None
    members = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple)):
        return None
    return next((found for found in map(_first_tensor, members) if found is not None), None)


class _Marks:
    """The open step and spans of one model. A step goes from the first forward behind an optimizer's step to
    the end of the next optimizer's step."""

    def __init__(self, context: dp.Context) -> None:
        self._context = weakref.ref(context)
        self._step = 0
        self._is_open = False
        self._depth = 0  # an optimizer's step() may call that of the class it is derived from
        self._backward_thread = 0  # where the span backward is open

    def _pointer(self) -> int | None:
        context = self._context()
        return context.pointer if context is not None and context.is_alive else None

    def before_forward(self, module: Any, inputs: Any) -> None:
        pointer = self._pointer()
        if pointer is None:
            return
        self._end_backward()  # of a backward that raised
        if not self._is_open:
            self._step += 1
            lib.step_begin(pointer, self._step)
            self._is_open, self._depth = True, 0
        lib.span_begin(pointer, b"forward")

    def after_forward(self, module: Any, inputs: Any, output: Any) -> None:
        pointer = self._pointer()
        if pointer is None:
            return
        lib.span_end(pointer)
        tensor = _first_tensor(output)
        if tensor is not None:
            thread = threading.get_ident()
            tensor.register_hook(lambda _: self._begin_backward(thread))

    def _begin_backward(self, thread: int) -> None:
        """Called by autograd. On a GPU it runs in a thread of its own, and spans belong to a thread, so
        backward has none there."""
        pointer = self._pointer()
        if pointer is None or threading.get_ident() != thread or self._backward_thread:
            return
        self._backward_thread = thread
        lib.span_begin(pointer, b"backward")
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        pointer = self._pointer()
        if pointer is not None and self._backward_thread == threading.get_ident():
            lib.span_end(pointer)
        self._backward_thread = 0

    def before_step(self, *_: Any) -> None:
        pointer = self._pointer()
        if pointer is not None and self._depth == 0:
            lib.span_begin(pointer, b"optimizer")
        self._depth += 1

    def after_step(self, *_: Any) -> None:
        self._depth -= 1
        pointer = self._pointer()
        if pointer is None or self._depth != 0:
            return
        lib.span_end(pointer)
        if self._is_open:
            lib.step_end(pointer)
            self._is_open = False


def _wrap_step(optimizer: torch.optim.Optimizer, marks: _Marks) -> None:
    """For PyTorch 1, whose optimizers have no hooks. A method, as schedulers of the learning rate wrap it too."""
    step = optimizer.step

    def marked(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        marks.before_step()
        result = step(*args, **kwargs)
        marks.after_step()
        return result

    optimizer.step = types.MethodType(marked, optimizer)  # type: ignore[method-assign]


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Marks each step of this model and optimizer. A model in DistributedDataParallel gets named buckets
    while a timeline is recorded."""
    context = _context()
    marks = _Marks(context)
    model.register_forward_pre_hook(marks.before_forward)
    model.register_forward_hook(marks.after_forward)
    if hasattr(optimizer, "register_step_pre_hook"):
        optimizer.register_step_pre_hook(marks.before_step)
        optimizer.register_step_post_hook(marks.after_step)
    else:
        _wrap_step(optimizer, marks)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel) and context.setting("TIMELINE"):
        name_buckets(model)


def name_buckets(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Reduces DDP's buckets under the names of their first and last parameter, by a communication hook of
    DDP. Of the default process group only, and not where the model has a hook: DDP takes one."""
    import torch.distributed as dist
    hooks = getattr(model, "_comm_hooks", [])  # PyTorch 2
    if model.process_group is not dist.group.WORLD or hooks:
        return
    group = _context().world
    names = {param: name for name, param in model.module.named_parameters()}

    def name_of(bucket: Any) -> str:
        params = bucket.parameters()
        first, last = names.get(params[-1], "?"), names.get(params[0], "?")
        text = first if len(params) == 1 else f"{first} .. {last} ({len(params)})"
        return text[:NAME_BYTES]

    def reduce(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are texts
        buffer = bucket.buffer()
        future: torch.futures.Future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)

        def complete(handle: dp.Handle) -> None:
            try:
                handle.wait()
            except dp.Error as error:  # the future carries it to DDP
                future.set_exception(RuntimeError(str(error)))
            else:
                future.set_result(buffer)

        group.allreduce(buffer, op=dp.AVERAGE, name=name_of(bucket), on_done=complete, stream=stream_of(buffer))
        return future

    try:
        model.register_comm_hook(None, reduce)
    except RuntimeError:  # it has a hook of C++, which no list tells; ours was noted before it was refused
        if hooks:
            hooks.pop()
