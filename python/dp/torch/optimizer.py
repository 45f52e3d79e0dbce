"""DistributedOptimizer: an optimizer whose gradients are reduced over the ranks while the backward pass
is still running.

A hook of each parameter starts its reduction as soon as its gradient is there; step() waits for all.
Gradients that did not come count as zeros, so ranks may take other branches through the model; one that came
on no rank is none afterwards, as in a single process.

The first step reduces gradients where autograd left them. From the second on, dense ones in host memory have
places in libdp's memory (arena.py), with the same bits.
"""
from __future__ import annotations

import contextlib
import math
import sys
import warnings
import weakref
from typing import Any, Callable, Iterator

import torch

import dp
from dp.arrays import shape_tag

from . import ops
from .arena import Found, GradientArena, is_placeable
from .compression import Compression
from .errors import HorovodInternalError
from .gradient import Gradient, InFlight
from .parameters import NAMELESS, add_hook, check_names, divide, remove_hooks
from .reduction import Repeated
from .replicas import ReplicaCheck
from .runtime import ProcessSet, global_process_set, world

# Gradients are submitted by so many bytes. Each submission would wake libdp's thread on every rank, which takes a core
# from backward; a burst wakes it once, and a megabyte travels in less time than backward takes for the next one.
# A burst ends with the backward pass, as the program may change gradients behind it.
BURST_BYTES = 1 << 20


class _DistributedOptimizer:
    """The first base of the class that DistributedOptimizer() makes; the optimizer's own class is the second."""

    _kind: Any  # the optimizer's own class

    def _wrap(self, names: "list[tuple[str, Any]]", groups: dict, compression: Any, passes: int, op: int, predivide: float,
              sparse_as_dense: bool, process_set: ProcessSet, clip: float, in_place: bool, check: int) -> None:
        """What a constructor does, for an optimizer that is there."""
        # A scheduler or a tool may have put a step() of its own into the object, which would hide ours. torch's
        # schedulers only count calls with theirs, as our step() does.
        patched = self.__dict__.pop("step", None)
        is_counter = hasattr(patched, "_wrapped_by_lr_sched") or hasattr(patched, "_with_counter")
        self._patched_step = None if is_counter else patched
        self._compression = compression
        self._op = op
        self._predivide = predivide
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self.backward_passes_per_step = passes
        self._parameter_names = {param: name for name, param in names}
        self._frozen: list[Any] = []  # parameters without a hook, as they wanted no gradient so far
        self._gradients: list[tuple[Any, Gradient]] = []  # with their parameters, by name
        self._gradient_of: dict[Any, Gradient] = {}
        self._ready: list[tuple[Any, Gradient, Any]] = []  # with their tensors: complete, and not begun
        self._ready_bytes = 0.0
        self._in_flight: list[tuple[Any, Gradient]] = []  # by `reduction`
        self._reductions: list[InFlight] = []  # others in flight
        self._functions: list[tuple[Any, Callable[[Any], None]]] = []  # for a parameter's gradient, when it is there
        self._hooks: list[Any] = []
        self._release = weakref.finalize(self, remove_hooks, self._hooks)
        self._release.atexit = False
        self._is_synchronized = False
        self._is_for_scaler = False  # torch's own scaler has made synchronize() happen
        self._should_synchronize = True
        self._groups = groups
        self._clip = clip
        self._found: Any = None  # of the last sync, by its reductions
        self._norm: float | None = None  # of grad_norm, once somebody asked
        self._divisor = 1.0  # by which a GradScaler has divided the gradients since
        self._is_scaled = False
        self._arena: GradientArena | None = None
        self._is_plain = compression is Compression.none and not groups and not self._factors()
        # Libdp's memory is the GPU's on a context with one, also beside a model in host memory.
        self._wants_arena = in_place and self._is_plain and not world.context.is_on_gpu
        self._number = world.count_optimizer()
        self._check = ReplicaCheck(check, self._number, process_set)
        self._register_hooks([param for group in self.param_groups for param in group["params"]])

    def _unwrap(self) -> None:
        """An optimizer of its own class again, whose gradients nobody reduces."""
        self._release()
        if self._patched_step is not None:
            self.__dict__["step"] = self._patched_step
        self.__class__ = self._kind

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are optimizers of the own class: their parameters are others, and have no hooks."""
        return object.__new__, (self._kind,), self.__getstate__()  # type: ignore[attr-defined]

    def _is_distributed(self) -> bool:
        return bool(self._process_set.included()) and (self._process_set.size() or 1) > 1

    # ---- Hooks --------------------------------------------------------------------------------

    def _register_hooks(self, params: list) -> None:
        """So that their gradients are reduced: now, or once they want one."""
        if not self._is_distributed():
            return
        self._frozen += [param for param in params if not param.requires_grad]
        for param in params:
            if param.requires_grad:
                gradient = Gradient(self._name_of(param), self.backward_passes_per_step,
                                    int(isinstance(self, torch.optim.SparseAdam)))
                self._gradient_of[param] = gradient
                self._functions.append((param, _weak_hook(self, gradient)))
                self._hooks.append(add_hook(*self._functions[-1]))
                before = world.gradient_of.get(id(param))
                if before is not None:
                    before.is_shared, before.left = True, 0
                world.gradient_of[id(param)] = gradient
        self._gradients = sorted(self._gradient_of.items(), key=lambda pair: self._parameter_names.get(pair[0], ""))

    def _register_late(self, params: list) -> None:
        """Those that come behind the constructor. Each is reduced alone, as its group may be under way without it."""
        for param in params:
            members = self._groups.pop(param, [])
            members[:] = [member for member in members if member is not param]
        self._register_hooks(params)

    def _register_unfrozen(self) -> None:
        """Parameters that want a gradient now, on all ranks alike."""
        unfrozen = [param for param in self._frozen if param.requires_grad]
        if unfrozen:
            self._frozen = [param for param in self._frozen if not param.requires_grad]
            self._register_late(unfrozen)

    def _refuse(self, param: Any, gradient: Gradient) -> None:
        name = self._parameter_names.get(param)
        if gradient.is_shared:
            raise AssertionError(f"{name} belongs to two DistributedOptimizers, and both would reduce its gradient: "
                                 "delete the older one, or give one of them all parameters")
        if param.grad is not None and param.grad.requires_grad:
            raise AssertionError(f"the gradient of {name} is part of a "
                                 "graph (create_graph=True): reduce it with hvd.allreduce()")
        raise AssertionError(f"Gradients of {name} were computed more than backward_passes_per_step times before call to "
                             "step(). Increase backward_passes_per_step to accumulate gradients locally.")

    # ---- Reductions ---------------------------------------------------------------------------

    def _start_ready(self) -> None:
        """Begins to reduce the gradients that are complete. The usual case, of little Python, is that they have places:
        libdp's thread wakes up once for all of them."""
        has_places = self._arena is not None and world.is_initialized and self._arena.is_of(self._process_set.group)
        placed, others = [], []
        for param, gradient, tensor in self._ready:
            place = gradient.place
            if not has_places or place is None or not place.accepts(tensor):
                others.append((param, gradient, tensor))
                continue
            if tensor is not place.view:
                place.view.copy_(tensor)
            param.grad = place.view
            gradient.is_started = gradient.is_measured = True
            gradient.is_missing = False
            gradient.keep(place.view)
            placed.append((param, gradient))
        self._ready, self._ready_bytes = others, 0.0
        for pair in placed:
            gradient = pair[1]
            gradient.reduction.begin(gradient.tensor, more_follow=pair is not placed[-1])  # type: ignore[union-attr]
            self._in_flight.append(pair)
        while others:
            self._start(*others.pop(0))

    def _start(self, param: Any, gradient: Gradient, tensor: Any) -> None:
        """The gradient is complete. One of a group waits for the others."""
        param.grad, gradient.tensor = tensor, None  # it may have been dropped meanwhile, perhaps on this rank alone
        gradient.is_started, gradient.is_measured = True, False
        gradient.is_missing = tensor is None
        if self._is_plain and self._reduce_plain(param, gradient):
            return
        members = self._groups.get(param)
        if members is None:
            self._reduce([param])
            return
        members = [member for member in members if member in self._gradient_of]
        if all(self._gradient_of[member].is_started for member in members):
            self._reduce(members)

    def _reduce_plain(self, param: Any, gradient: Gradient) -> bool:
        """Dense, in host memory, alone, as it is. False: it is another."""
        place = None if gradient.place is None else self._place(param, gradient)
        tensor = param.grad
        if tensor is None:
            tensor = param.grad = self._zeros(param)
        if not tensor.is_cpu or tensor.is_sparse or tensor.dtype is not param.dtype or \
                place is None and not tensor.is_contiguous() or tensor.dtype.is_complex:
            return False
        reduction = gradient.reduction
        if reduction is None or not reduction.fits(self._process_set.group, tensor) or not world.is_initialized:
            group = self._process_set.member_group("allreduce")
            try:
                reduction = gradient.reduction = Repeated(group, f"allreduce.{gradient.name}", tensor,
                                                          ops._REDUCE[self._op], shape_tag(tensor.shape))
            except dp.InvalidError as error:
                raise ValueError(f"the gradient of {self._parameter_names.get(param)}: {error}") from error
        gradient.bytes = reduction.bytes
        gradient.keep(tensor)
        gradient.is_measured = True
        # Outside of libdp's memory `.grad.data = ...` would free what is being reduced; a detached tensor keeps it.
        reduction.begin(tensor if place is not None else tensor.detach())
        self._in_flight.append((param, gradient))
        return True

    def _place(self, param: Any, gradient: Gradient) -> Any:
        """Brings `.grad` to its place. None: there is none any more, as the parameter's type or shape is another."""
        place = gradient.place
        if not place.fits(param):
            gradient.place = gradient.reduction = None
            return None
        if param.grad is not None and param.grad.is_sparse:
            if not self._sparse_as_dense:
                raise ValueError(f"{self._parameter_names.get(param)} has a sparse gradient, and had a "
                                 "dense one in the first step: sparse_as_dense=True takes both, "
                                 "in_place=False too")
            param.grad = param.grad.to_dense()
        place.take(param)
        return place

    def _make_arena(self) -> None:
        """Places for the gradients that are dense here. Others may have other places: names, sizes and bits are those
        of the way without."""
        placed = [(gradient, param) for param in reversed(list(self._parameter_names))
                  for gradient in (self._gradient_of.get(param),)
                  if gradient is not None and gradient.is_measured and param.grad is not None and is_placeable(param)]
        self._wants_arena = False
        if placed:
            self._arena = GradientArena(world.context, self._process_set.member_group("optimizer"), ops._REDUCE[self._op],
                                        [(gradient.name, param) for gradient, param in placed])
            for gradient, param in placed:
                gradient.place = self._arena.places[param]
                gradient.reduction = gradient.place.reduction

    def _factors(self) -> dict[str, Any]:
        """An average in two steps where a factor divides before the sum."""
        if self._predivide == 1.0 or self._op != ops.Average:
            return {}
        size = self._process_set.size() or 1
        return {"prescale_factor": 1.0 / self._predivide,
                "postscale_factor": self._predivide / size}

    def _name_of(self, param: Any) -> str:
        """In libdp. Two models may use the same names, so those of a second optimizer say whose they are."""
        prefix = f"optimizer {self._number} " if self._number else ""
        return prefix + self._parameter_names.get(param, "gradient")

    def _zeros(self, param: Any) -> torch.Tensor:
        """The gradient of a parameter that was not used here: as it was last, so that it fits the other ranks'."""
        sparse_dim = self._gradient_of[param].sparse_dim
        zeros = torch.zeros_like(param)
        return zeros.to_sparse(sparse_dim) if sparse_dim > 0 else zeros

    def _reduce(self, params: list) -> None:
        name = self._name_of(params[0])
        gradients, densified = [], set()
        for param in params:
            if param.grad is None:
                param.grad = self._zeros(param)
            if param.grad.is_sparse:
                self._gradient_of[param].sparse_dim = param.grad.sparse_dim()
            if param.grad.is_sparse and self._sparse_as_dense:
                param.grad = param.grad.to_dense()
                densified.add(param)
            gradients.append(param.grad)
        try:
            self._begin(name, params, gradients, densified)
        except ValueError as error:
            raise ValueError(f"the gradient of {self._parameter_names.get(params[0])}: {error}") from error

    def _begin(self, name: str, params: list, gradients: list, densified: set) -> None:
        if len(params) == 1 and gradients[0].is_sparse:
            handle: Any = ops.sparse_allreduce_async(gradients[0], name, self._op,
                                                self._process_set)
            self._reductions.append(InFlight(handle, params, [None], is_sparse=True))
            return
        factors = self._factors()
        op = ops.Sum if factors else self._op
        pairs = [self._compression.compress(ops.as_real(gradient.detach().contiguous()))
                 for gradient in gradients]
        small = [one for one, _ in pairs]
        if len(params) == 1:
            handle = ops.allreduce_async_(small[0], name=name, op=op,
                                          process_set=self._process_set, **factors)
        else:
            handle = ops.grouped_allreduce_async_(small, name=name, op=op,
                                                  process_set=self._process_set, **factors)
        for param in params:
            self._gradient_of[param].keep(param.grad)
        self._reductions.append(InFlight(handle, params, [(one, ctx) for one, ctx in pairs],
                                           densified=densified))

    def _is_under_way(self) -> bool:
        """Whether gradients wait for synchronize()."""
        return bool(self._ready or self._in_flight or self._reductions)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; those that did not come count as zeros."""
        self._finish_all()
        self._refuse_changes()
        self._is_synchronized = True

    def _finish_all(self) -> None:
        self._norm, self._divisor, self._is_scaled, self._is_for_scaler = None, 1.0, False, False
        if not self._is_distributed():
            return
        self._register_unfrozen()
        self._found, failure = None, None
        try:
            self._start_ready()
            self._ready = [(param, gradient, param.grad) for param, gradient in self._gradients if not gradient.is_started]
            self._start_ready()
            self._found = self._finish_plain()
        except HorovodInternalError as error:
            failure = error
        finally:
            self._reset()
        reductions, self._reductions = self._reductions, []
        for reduction in reductions:  # also behind a failure: none may be in flight afterwards
            try:
                self._finish(reduction)
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        self._drop_missing()
        if self._wants_arena:
            self._make_arena()

    def _refuse_changes(self) -> None:
        """A gradient that was changed while it was reduced is neither what the program nor what libdp made of it."""
        for param, gradient in self._gradients:
            if not gradient.is_as_reduced():
                raise AssertionError(
                    f"the gradient of {self._parameter_names.get(param)} was changed between backward() and "
                    "synchronize() or step(), while it was reduced over the ranks. Call optimizer.synchronize() before "
                    "clip_grad_norm_() and the like, and step() inside `with optimizer.skip_synchronize():`; "
                    "DistributedOptimizer(clip=NORM) needs neither")

    def _drop_missing(self) -> None:
        """No gradient where no rank had one, so that weight decay and momentum do not move the parameter. Ranks look at
        equal sums, so they agree on whether to tell each other what they had."""
        suspects = [(i, param) for i, (param, gradient) in enumerate(self._gradients)
                    if not gradient.is_measured or gradient.reduction is not None and gradient.reduction.is_zero()]
        if not suspects:
            return
        had = torch.tensor([not gradient.is_missing for _, gradient in self._gradients], dtype=torch.uint8)
        ops.allreduce_(had, op=ops.Max, name=f"optimizer {self._number} had gradients", process_set=self._process_set)
        for i, param in suspects:
            if not had[i]:
                param.grad = None

    def _reset(self) -> None:
        """No gradient is there."""
        self._ready, self._ready_bytes = [], 0.0
        for _, gradient in self._gradients:
            gradient.is_started = False
            gradient.left = 0 if gradient.is_shared else self.backward_passes_per_step

    def _finish_plain(self) -> Found:
        """Waits for those in flight; what was found of them. HorovodInternalError: one failed; none is in flight then."""
        squares, nonfinite, failure = [], 0, None
        in_flight, self._in_flight = self._in_flight, []
        for param, gradient in in_flight:
            reduction = gradient.reduction
            assert reduction is not None
            tensor = reduction.tensor
            error = reduction.finish()
            if error is not None:
                failure = failure or error
                continue
            squares.append(reduction.found.sum_squares)
            nonfinite += reduction.found.nonfinite
            # It was dropped or replaced meanwhile, perhaps on this rank alone.
            if param.grad is not gradient.tensor or param.grad.data_ptr() != reduction.address:
                param.grad = tensor.to(param.dtype) if gradient.place is None else gradient.place.own_view()
        if failure is not None:
            raise failure
        return Found(squares, nonfinite)

    def _finish(self, reduction: InFlight) -> None:
        output = ops.synchronize(reduction.handle)
        if reduction.is_sparse:
            reduction.params[0].grad = output
            return
        outputs = output if isinstance(output, list) else [output]
        for param, (_, ctx), reduced in zip(reduction.params, reduction.contexts, outputs):
            value = self._compression.decompress(reduced, ctx)
            if param.dtype.is_complex:
                value = torch.view_as_complex(value)
            gradient = self._gradient_of[param]
            changed = not gradient.is_as_reduced()
            if param in reduction.densified:  # optimizers as SparseAdam take nothing else
                param.grad = value.to(param.dtype).to_sparse()
            elif param.grad is None:
                param.grad = value.to(param.dtype)
            elif param.grad.data_ptr() != value.data_ptr():  # else it is reduced where it lies
                param.grad.detach().copy_(value)
            if not changed and param.grad is gradient.tensor:
                gradient.keep(param.grad)

    # ---- Norm, clipping, overflows ------------------------------------------------------------

    def _figures(self) -> "tuple[Found | None, list]":
        """What reductions found, and the gradients of which they found nothing; of sparse ones their values. Behind a
        change of a gradient by the program, what was found is of no use."""
        found = self._found
        if found is not None and any(gradient.is_measured and not gradient.is_in(param)
                                     for param, gradient in self._gradients):
            found = None
        others = []
        for param in (param for group in self.param_groups for param in group["params"]):
            gradient = self._gradient_of.get(param)
            if param.grad is None or found is not None and gradient is not None and gradient.is_measured:
                continue
            others.append(_values(param))
        return found, others

    @property
    def grad_norm(self) -> float:
        """L2 norm of all gradients of the last synchronize(), before clipping; inf behind an overflow.
        The reduction has found it already for dense gradients in host memory."""
        if self._norm is None:
            self._norm = self._norm_of(*self._figures())
        return self._norm

    def _norm_of(self, found: Found | None, others: list) -> float:
        squares = 0.0 if found is None else (found.norm / self._divisor) ** 2
        norms = [torch.linalg.vector_norm(one, dtype=torch.promote_types(one.dtype, torch.float32)) for one in others]
        squares += sum(float(one) ** 2 for one in norms)
        return math.sqrt(squares) if math.isfinite(squares) else math.inf

    @property
    def nonfinite(self) -> bool:
        """Whether the reduction gave Inf or NaN: the same on all ranks."""
        found, others = self._figures()
        return found is not None and found.nonfinite > 0 or not all(bool(torch.isfinite(one).all()) for one in others)

    def scale_gradients(self, divisor: float) -> None:
        """Divides the gradients by what the loss was multiplied with, and clips them: one pass at most.
        Called once behind synchronize(), by step() or by hvd.GradScaler."""
        factor = 1.0 / divisor
        found, others = self._figures()
        if self._clip > 0.0:
            self._norm = self._norm_of(found, others) / divisor
            factor *= min(1.0, self._clip / max(self._norm, 1e-30))
        self._divisor = divisor
        self._is_scaled = True
        if factor == 1.0:
            return
        gradients = [_values(param) for group in self.param_groups for param in group["params"] if param.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)
        if found is not None:  # they are what was found, but for the divisor
            for _, gradient in self._gradients:
                if gradient.tensor is not None:
                    gradient.keep(gradient.tensor)

    @property
    def is_synchronized(self) -> bool:
        """Between synchronize() and step()."""
        return self._is_synchronized

    def forget_step(self) -> None:
        """The step that synchronize() has prepared is over, also where a scaler skipped it."""
        self._is_synchronized = False

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() inside does not wait again: synchronize() was called, for clipping or a scaler."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes are accumulated before gradients are reduced."""
        self.backward_passes_per_step = passes
        for _, gradient in self._gradients:
            gradient.left = passes

    @property
    def param_groups(self) -> list:
        """torch's GradScaler.unscale_() reads it, and no other part of an optimizer, before it divides gradients: they must
        be reduced from here on."""
        if sys._getframe(1).f_code.co_name == "_unscale_grads_":
            self._synchronize_for_scaler()
            self._found = None  # torch does not count its writes
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups: list) -> None:
        self.__dict__["param_groups"] = groups

    def _synchronize_for_scaler(self) -> None:
        if not self._is_synchronized and self._should_synchronize:
            self.synchronize()
            self._is_for_scaler = True

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """torch's GradScaler.step() asks it first. False: the scaler divides, and finds overflows, also where the optimizer's
        own kernel could."""
        self._synchronize_for_scaler()
        return False

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        pass

    # ---- As an optimizer ----------------------------------------------------------------------

    def step(self, closure: Callable | None = None, *args: Any, **kwargs: Any) -> Any:
        """Waits for the gradients, then steps. A closure may be called several times, as LBFGS does; the gradients of
        each call are reduced before the optimizer sees them."""
        self._count_step()
        if closure is None:
            if self._should_synchronize and not self._is_synchronized:
                self.synchronize()
            elif self._should_synchronize and not self._is_for_scaler:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context "
                              "after optimizer.synchronize(). This can cause training slowdown. You "
                              "may want to consider using optimizer.skip_synchronize() context if "
                              "you use optimizer.synchronize() in your code.")
            self._clip_reduced()
            result = self._own_step(*args, **kwargs)
        else:
            if self._is_under_way():  # of a backward() before it
                self.synchronize()
            result = self._own_step(self._reducing(closure), *args, **kwargs)
        self._check.after_step(self._parameter_names)
        return result

    # The marks of torch's own wrapping of step(): hooks run around the step of the own class, and schedulers need not
    # put a counter into the object.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = step._with_counter = True  # type: ignore[attr-defined]

    def _count_step(self) -> None:
        """For schedulers, which warn where they are called before the first step()."""
        self._opt_called = True
        if hasattr(self, "_step_count"):  # torch before 2.4
            self._step_count += 1

    def _own_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._patched_step is not None:
            return self._patched_step(*args, **kwargs)
        return super().step(*args, **kwargs)  # type: ignore[misc]

    def _clip_reduced(self) -> None:
        if self._clip > 0.0 and not self._is_scaled:
            self.scale_gradients(1.0)
        self._is_synchronized = False
        for _, gradient in self._gradients:  # zero_grad() shall free them
            gradient.tensor = None

    def _reducing(self, closure: Callable) -> Callable:
        """The closure with its gradients reduced. Its loss is averaged for optimizers that compare losses to decide on
        further calls, which all ranks must make: LBFGS, and those that are not torch's."""
        compares = isinstance(self, torch.optim.LBFGS) or not self._kind.__module__.startswith("torch.optim")

        def reducing() -> Any:
            loss = closure()
            if not self._is_synchronized:
                self.synchronize()
            self._clip_reduced()
            if not compares or loss is None or not self._is_distributed():
                return loss
            loss = loss.detach().clone() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            return ops.allreduce_(loss, op=ops.Average, name=f"optimizer {self._number} loss",
                                  process_set=self._process_set)

        return reducing

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """AssertionError: gradients are in flight."""
        if self._is_under_way():
            raise AssertionError("optimizer.zero_grad() was called after loss.backward() but before "
                                 "optimizer.step() or optimizer.synchronize(). This is prohibited as "
                                 "it can cause a race condition.")
        self._reset()
        self._is_synchronized = False
        return super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, on all ranks; the gradients of these parameters are reduced too. They have the names of
        named_parameters, where those list them."""
        super().add_param_group(param_group)  # type: ignore[misc]
        number, params = len(self.param_groups) - 1, self.param_groups[-1]["params"]
        for i, param in enumerate(params):
            self._parameter_names.setdefault(param, f"{NAMELESS}{number}.{i}")
        self._register_late(params)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Forgets what is accumulated, as the state is another one's."""
        if self._is_under_way():
            self._finish_all()
        self._reset()
        self._is_synchronized = False
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]


def is_distributed_optimizer(optimizer: Any) -> bool:
    """Whether DistributedOptimizer() has wrapped it."""
    return isinstance(optimizer, _DistributedOptimizer)


def _values(param: Any) -> torch.Tensor:
    """A gradient's elements, dense: of a sparse one those that it has."""
    if param.grad.is_sparse and not param.grad.is_coalesced():
        param.grad = param.grad.coalesce()
    return param.grad._values() if param.grad.is_sparse else ops.as_real(param.grad.detach())


def _weak_hook(optimizer: _DistributedOptimizer, gradient: Gradient) -> Callable[[Any], None]:
    """A parameter's hook calls it, by the hundred in a backward pass. Parameters outlive optimizers, and hooks
    must not keep one that was dropped."""
    reference = weakref.ref(optimizer)

    def on_gradient(param: Any) -> None:
        living = reference()
        if living is None:
            return
        tensor = param.grad
        if gradient.left <= 0 or tensor is not None and tensor.requires_grad:
            living._refuse(param, gradient)
        living._is_synchronized = False
        gradient.left -= 1
        if gradient.left > 0:
            return
        if not living._ready:  # at the end of this backward pass what is left
            torch.autograd.Variable._execution_engine.queue_callback(living._start_ready)
        living._ready.append((param, gradient, tensor))
        living._ready_bytes += gradient.bytes
        if living._ready_bytes >= BURST_BYTES or not param.is_cpu:
            living._start_ready()

    return on_gradient


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Any = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: int = ops.Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set, clip: float = 0.0,
                         in_place: bool = True, check: int | None = None) -> Any:
    """Wraps an optimizer so that its gradients are reduced over the ranks. Returns the optimizer itself, whose class
    is derived from its own from now on: state, groups, defaults, hooks and schedulers stay what they are.

    named_parameters          model.named_parameters(): names for errors and the timeline
    compression               what gradients travel as: Compression.none or .fp16
    backward_passes_per_step  passes that are accumulated before a reduction
    op                        Average, Sum; Adasum is refused
    gradient_predivide_factor divides before the sum, the rest after it; with Average only
    groups                    a number of groups, or lists of parameters, that are reduced together
    sparse_as_dense           sparse gradients are reduced as dense ones
    process_set               the ranks that share the model
    clip                      largest L2 norm of all gradients together, 0: any. step() clips; grad_norm
                              tells the norm before. No pass over the gradients finds it
    in_place                  dense gradients in host memory are reduced in libdp's memory, from the second
                              step on; False: where autograd left them. The bits are the same
    check                     after so many steps the ranks compare their parameters, and a difference is an error
                              with the parameter, the ranks and both values; 0: never. None: DP_CHECK_REPLICAS
    """
    op = ops.resolve_op(op, None)
    if gradient_predivide_factor != 1.0 and op != ops.Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning)
        groups = num_groups if groups is None else groups
    if not clip >= 0.0:
        raise ValueError(f"clip {clip}: the largest norm, or 0 for any")
    if isinstance(groups, int) and groups < 0:
        raise ValueError("groups should be a non-negative integer or a list of lists of parameters")
    if check is None:
        check = int(world.context.setting("CHECK_REPLICAS") or 0)
    if check < 0:
        raise ValueError(f"check {check}: the steps between two comparisons, or 0 for none")
    names, divided = check_names(optimizer, named_parameters), divide(optimizer, groups)
    wrapped: Any = optimizer
    if isinstance(wrapped, _DistributedOptimizer):  # by new arguments, as for a second training
        wrapped._unwrap()
    kind = type(optimizer)
    wrapped.__class__ = type(kind.__name__, (_DistributedOptimizer, kind), {"_kind": kind, "__module__": kind.__module__})
    wrapped._wrap(names, divided, compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense,
                  process_set, clip, in_place, check)
    return optimizer
