"""DistributedOptimizer: an optimizer whose gradients are reduced over the ranks while the backward pass
is still running.

A hook of each parameter starts its reduction as soon as its gradient is there; step() waits for all.
Gradients that did not come count as zeros, so ranks may take other branches through the model.

The first two steps reduce gradients where autograd left them, and ranks tell each other which are dense. From
the third on those have places in libdp's memory (arena.py), with the same bits.
"""
from __future__ import annotations

import contextlib
import math
import warnings
import weakref
from typing import Any, Callable, Iterable, Iterator

import torch

from dp.arrays import shape_tag

from . import ops
from .arena import Found, GradientArena, Place, is_placeable
from .compression import Compression
from .errors import HorovodInternalError
from .reduction import Repeated
from .runtime import ProcessSet, global_process_set, world

NAMELESS = "allreduce.noname."


def _check_names(optimizer: torch.optim.Optimizer, named_parameters: Any) -> "list[tuple[str, Any]]":
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


class _Reduction:
    """What is in flight for a parameter, or for a group of them."""

    def __init__(self, handle: Any, params: list, contexts: list, is_sparse: bool = False,
                 densified: "set[Any] | None" = None) -> None:
        self.handle = handle
        self.params = params
        self.contexts = contexts
        self.is_sparse = is_sparse
        self.densified = densified or set()  # whose gradients were sparse, and are again afterwards


class _Gradient:
    """A parameter's gradient. The parameter's hook has it, so it must not hold the parameter."""

    __slots__ = ("name", "left", "is_started", "is_shared", "sparse_dim", "place", "reduction", "__weakref__")

    def __init__(self, name: str, passes: int, sparse_dim: int) -> None:
        self.name = name  # in libdp
        self.left = passes  # that accumulate before it is reduced
        self.is_started = False  # it is reduced
        self.is_shared = False  # a later optimizer has the parameter too
        self.sparse_dim = sparse_dim  # of a sparse one as it was last; 0: dense
        self.place: Place | None = None  # in libdp's memory
        self.reduction: Repeated | None = None  # of a dense one in host memory


class _DistributedOptimizer(torch.optim.Optimizer):
    """Mixed into a class derived from the optimizer's own; never made by itself."""

    def __init__(self, params: Any, named_parameters: Any, compression: Any,
                 backward_passes_per_step: int, op: int, gradient_predivide_factor: float,
                 groups: Any, sparse_as_dense: bool, process_set: ProcessSet, clip: float,
                 in_place: bool) -> None:
        super(self.__class__, self).__init__(params)  # of the optimizer's own class
        self._compression = compression
        self._op = op
        self._predivide = gradient_predivide_factor
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self.backward_passes_per_step = backward_passes_per_step
        named = _check_names(self, named_parameters)
        self._parameter_names = {param: name for name, param in named}
        self._frozen: list[Any] = []  # parameters without a hook, as they wanted no gradient so far
        self._gradients: list[tuple[Any, _Gradient]] = []  # with their parameters, by name
        self._gradient_of: dict[Any, _Gradient] = {}
        self._in_flight: list[tuple[Any, _Gradient]] = []  # by `reduction`
        self._reductions: list[_Reduction] = []  # others in flight
        self._functions: list[tuple[Any, Callable[[Any], None]]] = []  # for a parameter's gradient, when it is there
        self._hooks: list[Any] = []
        self._is_synchronized = False
        self._should_synchronize = True
        self._groups = self._divide(groups)
        self._clip = clip
        self._found: Any = None  # of the arena's last sync
        self._norm: float | None = None  # of grad_norm, once somebody asked
        self._divisor = 1.0  # by which a GradScaler has divided the gradients since
        self._is_scaled = False
        self._arena: GradientArena | None = None
        # libdp's memory is the GPU's on a context with one, also beside a model in host memory.
        self._wants_arena = (in_place and not world.context.is_on_gpu and compression is Compression.none and op == ops.Average
                             and gradient_predivide_factor == 1.0 and not self._groups)
        self._fits: Any = None  # the handle of what all ranks say about gradients in an arena, and whose they are
        self._is_plain = compression is Compression.none and not self._groups and not self._factors()
        self._number = world.count_optimizer()
        self._register_hooks([param for group in self.param_groups for param in group["params"]])

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
                gradient = _Gradient(self._name_of(param), self.backward_passes_per_step,
                                     int(isinstance(self, torch.optim.SparseAdam)))
                self._gradient_of[param] = gradient
                self._functions.append((param, _weak_hook(self, gradient)))
                self._hooks.append(_hook(*self._functions[-1]))
                before = world.gradient_of.get(id(param), lambda: None)()
                if before is not None:
                    before.is_shared = True
                world.gradient_of[id(param)] = weakref.ref(gradient)
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

    def _refuse(self, param: Any, gradient: _Gradient) -> None:
        name = self._parameter_names.get(param)
        if gradient.is_shared:
            raise AssertionError(
                f"{name} belongs to two DistributedOptimizers, and both would "
                "reduce its gradient: delete the older one, or give one of them all parameters")
        if gradient.is_started or gradient.left <= 0:
            raise AssertionError(
                f"Gradients of {name} were computed more than "
                "backward_passes_per_step times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally.")
        raise AssertionError(f"the gradient of {name} is part of a "
                             "graph (create_graph=True): reduce it with hvd.allreduce()")

    def _divide(self, groups: Any) -> dict[Any, list]:
        """The list of parameters that are reduced together with each one."""
        params = [param for group in self.param_groups for param in group["params"]
                  if param.requires_grad]
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
            raise ValueError("groups should be a non-negative integer or a list of lists of "
                             "parameters")
        else:
            lists = []
        return {param: members for members in lists for param in members}

    # ---- Reductions ---------------------------------------------------------------------------

    def _start(self, param: Any, gradient: _Gradient) -> None:
        """The gradient is complete. One of a group waits for the others."""
        gradient.is_started = True
        if self._is_plain and self._reduce_plain(param, gradient):
            return
        members = self._groups.get(param)
        if members is None:
            self._reduce([param])
            return
        members = [member for member in members if member in self._gradient_of]
        if all(self._gradient_of[member].is_started for member in members):
            self._reduce(members)

    def _reduce_plain(self, param: Any, gradient: _Gradient) -> bool:
        """The usual case, of little Python: dense, in host memory, alone, as it is. False: it is another."""
        tensor = param.grad
        if gradient.place is not None:
            if tensor is not gradient.place.view:
                self._place(param, gradient.place)
                tensor = param.grad
        elif tensor is None:
            tensor = param.grad = self._zeros(param)
        if not tensor.is_cpu or tensor.is_sparse or tensor.dtype is not param.dtype or \
                gradient.place is None and not tensor.is_contiguous():
            return False
        reduction = gradient.reduction
        if reduction is None or not reduction.fits(self._process_set.group) or not world.is_initialized:
            group = self._process_set.member_group("allreduce")
            reduction = gradient.reduction = Repeated(group, f"allreduce.{gradient.name}", tensor,
                                                      ops._REDUCE[self._op], shape_tag(tensor.shape))
        reduction.begin(tensor)
        self._in_flight.append((param, gradient))
        return True

    def _place(self, param: Any, place: Place) -> None:
        if param.grad is not None and param.grad.is_sparse:
            if not self._sparse_as_dense:
                raise ValueError(f"{self._parameter_names.get(param)} has a sparse gradient, and had a "
                                 "dense one in the first step: sparse_as_dense=True takes both, "
                                 "in_place=False too")
            param.grad = param.grad.to_dense()
        place.take(param)

    def _candidates(self) -> list[tuple[str, Any]]:
        return [(self._name_of(param), param) for param in reversed(list(self._parameter_names))
                if param in self._gradient_of]

    def _make_arena(self) -> None:
        """Places for the gradients that are dense on every rank. Behind the first step ranks say which those
        are, behind the second they know: nobody waits, as ranks may come to two optimizers in other
        orders."""
        if self._fits is None:
            candidates = self._candidates()
            fits = [param.grad is not None and not param.grad.is_sparse and is_placeable(param)
                    for _, param in candidates]
            self._fits = ops.allreduce_async(torch.tensor(fits, dtype=torch.uint8), op=ops.Min,
                                             name=f"optimizer {self._number} in place",
                                             process_set=self._process_set), candidates
            return
        self._wants_arena = False
        handle, candidates = self._fits
        self._fits = None
        placed = [one for one, is_fit in zip(candidates, ops.synchronize(handle).tolist()) if is_fit]
        if placed:
            self._arena = GradientArena(world.context, self._process_set.member_group("optimizer"), placed)
            for param, place in self._arena.places.items():
                self._gradient_of[param].place = place
                self._gradient_of[param].reduction = place.reduction

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
        if len(params) == 1 and gradients[0].is_sparse:
            handle: Any = ops.sparse_allreduce_async(gradients[0], name, self._op,
                                                self._process_set)
            self._reductions.append(_Reduction(handle, params, [None], is_sparse=True))
            return
        factors = self._factors()
        op = ops.Sum if factors else self._op
        pairs = [self._compression.compress(gradient.detach().contiguous())
                 for gradient in gradients]
        small = [one for one, _ in pairs]
        if len(params) == 1:
            handle = ops.allreduce_async_(small[0], name=name, op=op,
                                          process_set=self._process_set, **factors)
        else:
            handle = ops.grouped_allreduce_async_(small, name=name, op=op,
                                                  process_set=self._process_set, **factors)
        self._reductions.append(_Reduction(handle, params, [(one, ctx) for one, ctx in pairs],
                                           densified=densified))

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; those that did not come count as zeros."""
        self._norm, self._divisor, self._is_scaled = None, 1.0, False
        if not self._is_distributed():
            self._is_synchronized = True
            return
        self._register_unfrozen()
        for param, gradient in self._gradients:
            if not gradient.is_started:
                self._start(param, gradient)
        reductions, self._reductions = self._reductions, []
        self._found, failure = None, None
        try:
            found = self._finish_plain()
            self._found = found if self._arena is not None else None
        except HorovodInternalError as error:
            failure = error
        finally:
            self._reset()
        for reduction in reductions:  # also behind a failure: none may be in flight afterwards
            try:
                self._finish(reduction)
            except HorovodInternalError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if self._wants_arena:
            self._make_arena()
        self._is_synchronized = True

    def _reset(self) -> None:
        """No gradient is there."""
        for _, gradient in self._gradients:
            gradient.is_started = False
            gradient.left = self.backward_passes_per_step

    def _finish_plain(self) -> Found:
        """Waits for those of _reduce_plain(); what was found of those in places. HorovodInternalError: one
        failed; none is in flight then."""
        squares, nonfinite, failure = [], 0, None
        in_flight, self._in_flight = self._in_flight, []
        for param, gradient in in_flight:
            reduction = gradient.reduction
            assert reduction is not None
            tensor = reduction.tensor
            error = reduction.finish()
            if error is not None:
                failure = failure or error
            elif gradient.place is not None:
                squares.append(reduction.found.sum_squares)
                nonfinite += reduction.found.nonfinite
            elif param.grad is None:
                param.grad = tensor
            elif param.grad is not tensor:
                param.grad.detach().copy_(tensor)
        if failure is not None:
            raise failure
        return Found(squares, nonfinite)

    def _finish(self, reduction: _Reduction) -> None:
        output = ops.synchronize(reduction.handle)
        if reduction.is_sparse:
            reduction.params[0].grad = output
            return
        outputs = output if isinstance(output, list) else [output]
        for param, (_, ctx), reduced in zip(reduction.params, reduction.contexts, outputs):
            value = self._compression.decompress(reduced, ctx)
            if param in reduction.densified:  # optimizers as SparseAdam take nothing else
                param.grad = value.to(param.dtype).to_sparse()
                continue
            if param.grad is not None and param.grad.data_ptr() == value.data_ptr():
                continue  # reduced where it lies
            if param.grad is None:
                param.grad = value.to(param.dtype)
            else:
                param.grad.detach().copy_(value)

    # ---- Norm, clipping, overflows ------------------------------------------------------------

    def _dense_gradients(self, is_placed: bool) -> list:
        """The gradients inside or outside of the arena; of sparse ones their values."""
        gradients = []
        for param in (param for group in self.param_groups for param in group["params"]):
            is_found = self._arena is not None and self._found is not None and param in self._arena
            if param.grad is None or is_found != is_placed:
                continue
            if param.grad.is_sparse and not param.grad.is_coalesced():
                param.grad = param.grad.coalesce()
            gradients.append(param.grad._values() if param.grad.is_sparse else param.grad.detach())
        return gradients

    @property
    def grad_norm(self) -> float:
        """L2 norm of all gradients of the last synchronize(), before clipping; inf behind an overflow.
        The reduction has found it already for gradients in libdp's memory."""
        if self._norm is None:
            self._norm = self._measure_norm()
        return self._norm

    def _measure_norm(self) -> float:
        squares = 0.0 if self._found is None else (self._found.norm / self._divisor) ** 2
        others = [torch.linalg.vector_norm(one, dtype=torch.promote_types(one.dtype, torch.float32))
                  for one in self._dense_gradients(False)]
        squares += sum(float(one) ** 2 for one in others)
        return math.sqrt(squares) if math.isfinite(squares) else math.inf

    @property
    def nonfinite(self) -> bool:
        """Whether the reduction gave Inf or NaN: the same on all ranks."""
        if self._found is not None and self._found.nonfinite > 0:
            return True
        return not all(bool(torch.isfinite(one).all()) for one in self._dense_gradients(False))

    def scale_gradients(self, divisor: float) -> None:
        """Divides the gradients by what the loss was multiplied with, and clips them: one pass at most.
        Called once behind synchronize(), by step() or by hvd.GradScaler."""
        factor = 1.0 / divisor
        if self._clip > 0.0:
            self._norm = self._measure_norm() / divisor
            factor *= min(1.0, self._clip / max(self._norm, 1e-30))
        self._divisor = divisor
        self._is_scaled = True
        if factor != 1.0:
            for is_placed in (True, False):
                gradients = self._dense_gradients(is_placed)
                if gradients:
                    torch._foreach_mul_(gradients, factor)

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

    # ---- As an optimizer ----------------------------------------------------------------------

    def step(self, closure: Callable | None = None) -> Any:
        """Waits for the gradients, then steps."""
        if self._should_synchronize:
            if self._is_synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() context "
                              "after optimizer.synchronize(). This can cause training slowdown. You "
                              "may want to consider using optimizer.skip_synchronize() context if "
                              "you use optimizer.synchronize() in your code.")
            self.synchronize()
        if self._clip > 0.0 and not self._is_scaled:
            self.scale_gradients(1.0)
        self._is_synchronized = False
        return super(self.__class__, self).step(closure)

    def plain_step(self) -> Any:
        """The step of the optimizer's own class, on the gradients as they are."""
        return super(self.__class__, self).step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """AssertionError: gradients are in flight."""
        if self._reductions or self._in_flight:
            raise AssertionError("optimizer.zero_grad() was called after loss.backward() but before "
                                 "optimizer.step() or optimizer.synchronize(). This is prohibited as "
                                 "it can cause a race condition.")
        self._reset()
        return super(self.__class__, self).zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, on all ranks; the gradients of these parameters are reduced too. They have the names of
        named_parameters, where those list them."""
        super(self.__class__, self).add_param_group(param_group)
        if not hasattr(self, "_number"):  # the class's own constructor calls it, for each of its groups
            return
        number, params = len(self.param_groups) - 1, self.param_groups[-1]["params"]
        for i, param in enumerate(params):
            self._parameter_names.setdefault(param, f"{NAMELESS}{number}.{i}")
        self._register_late(params)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Forgets what is accumulated, as the state is another one's."""
        if self._in_flight or self._reductions:
            self.synchronize()
        self._reset()
        self._is_synchronized = False
        return super(self.__class__, self).load_state_dict(*args, **kwargs)


def is_distributed_optimizer(optimizer: Any) -> bool:
    """Whether DistributedOptimizer() made it: its class is derived from the optimizer's own."""
    return hasattr(optimizer, "plain_step") and hasattr(optimizer, "scale_gradients")


def _weak_hook(optimizer: _DistributedOptimizer, gradient: _Gradient) -> Callable[[Any], None]:
    """A parameter's hook calls it, by the hundred in a backward pass. Parameters outlive optimizers, and hooks
    must not keep one that was dropped."""
    reference = weakref.ref(optimizer)

    def on_gradient(param: Any) -> None:
        living = reference()
        if living is None:
            return
        tensor = param.grad
        if gradient.is_shared or gradient.is_started or gradient.left <= 0 or \
                tensor is not None and tensor.requires_grad:
            living._refuse(param, gradient)
        gradient.left -= 1
        if gradient.left == 0:
            living._start(param, gradient)
        elif gradient.place is not None and tensor is not gradient.place.view:
            living._place(param, gradient.place)

    return on_gradient


def _hook(param: Any, function: Callable[[Any], None]) -> Any:
    """Calls function(param) when .grad is written. Returns what must stay alive for it."""
    if hasattr(param, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
        return param.register_post_accumulate_grad_hook(function)
    node = param.expand_as(param).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: function(param))
    return node


def DistributedOptimizer(optimizer: torch.optim.Optimizer, named_parameters: Any = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: int = ops.Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set, clip: float = 0.0,
                         in_place: bool = True) -> Any:
    """Wraps an optimizer so that its gradients are reduced over the ranks.

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
    in_place                  dense gradients in host memory are reduced in libdp's memory, from the third
                              step on; False: where autograd left them. The bits are the same
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
    world.context
    kind = type(optimizer)
    members = {name: value for name, value in vars(_DistributedOptimizer).items()
               if name not in ("__dict__", "__weakref__")}
    distributed = type(kind.__name__, (kind,), members)
    return distributed(optimizer.param_groups, named_parameters, compression,
                       backward_passes_per_step, op, gradient_predivide_factor, groups,
                       sparse_as_dense, process_set, clip, in_place)
