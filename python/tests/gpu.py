#!/usr/bin/env python3
"""The front ends of PyTorch on a GPU's tensors, with exact results: what only a machine with one can show.

    python/tests/gpu.py --dprun BUILD/dprun              every check, each in a job of its own; a line for each
    python/tests/gpu.py --dprun BUILD/dprun --device cpu the same on the CPU, without what is about streams
    python/tests/gpu.py --dprun BUILD/dprun --only ddp,fsdp --jobs 1
    dprun -np 2 --share-gpu python3 python/tests/gpu.py --rank ddp       one check, by hand

The package dp is the one beside this file, and libdp the one beside dprun, unless LIBDP_PATH names another. A job that does not end in time leaves the stacks of its Python
threads in its log. Ranks share a GPU where there are fewer than ranks, and then nothing here is a measurement; the
times of `speed` are of a world of one.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

CHECKS = {}  # name: function, ranks


def check(ranks=2, alone=False):
    """Registers a check for so many ranks. alone: no other job runs beside it."""
    def register(function):
        CHECKS[function.__name__.replace("_", "-")] = (function, ranks, alone)
        return function
    return register


# ---- In a rank -----------------------------------------------------------------------------------

class Place:
    """This rank, and the device that the check is on."""

    def __init__(self, kind):
        global torch
        import torch
        self.is_cuda = kind == "cuda"
        self.device = torch.device("cpu")
        if self.is_cuda:
            self.device = torch.device("cuda", int(os.environ.get("DP_LOCAL_RANK", 0)) % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def full(self, shape, value, dtype=None):
        return torch.full(shape if isinstance(shape, tuple) else (shape,), value, dtype=dtype or torch.float32,
                          device=self.device)

    def numbers(self, count, dtype):
        """0 1 2 .. 6 0 1 ..: sums of few of them are exact in every type."""
        return (torch.arange(count, device=self.device) % 7).to(dtype)

    def delay(self, ms=40):
        """The current stream is busy for so long."""
        if self.is_cuda:
            torch.cuda._sleep(int(ms * 1.5e6))


def same(found, wanted):
    wanted = torch.as_tensor(wanted, dtype=found.dtype, device=found.device)
    if not torch.equal(found, wanted.expand_as(found) if wanted.dim() == 0 else wanted):
        raise AssertionError(f"found {found.flatten()[:6].tolist()}.. of {tuple(found.shape)}, "
                             f"wanted {wanted.flatten()[:6].tolist()}.. of {tuple(wanted.shape)}")


def close(found, wanted, tolerance=1e-11):
    largest = (found - wanted).abs().max().item()
    if not largest <= tolerance:
        raise AssertionError(f"they differ by {largest}: {found.flatten()[:4].tolist()}, {wanted.flatten()[:4].tolist()}")


def passed(what):
    """A line of the log: how far it came."""
    if int(os.environ["RANK"]) == 0:
        print(f"- {what}", flush=True)


def begin_group():
    import torch.distributed as dist
    import dp.torch.backend
    dist.init_process_group("dp")
    return dist


def model_of(place):
    """A small model in fp64, the same on all ranks, so that sums in another order differ by little."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 40), torch.nn.Tanh(), torch.nn.Linear(40, 8)]
    return torch.nn.Sequential(*layers).double().to(place.device)


def batch_of(place, step, part=None):
    """The samples of a step; part: those of one rank."""
    source = torch.Generator().manual_seed(100 + step)
    inputs, targets = (torch.randn(8 * place.ranks, width, generator=source, dtype=torch.float64).to(place.device)
                       for width in (24, 8))
    if part is None:
        return inputs, targets
    return inputs[8 * part:8 * part + 8], targets[8 * part:8 * part + 8]


def train(place, model, optimizer, steps, part=None):
    for step in range(steps):
        inputs, targets = batch_of(place, step, part)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def plain_weights(place, kind, steps, **options):
    """After so many steps of one process on the whole batch."""
    model = model_of(place)
    train(place, model, kind(model.parameters(), **options), steps)
    return [weight.detach() for weight in model.parameters()]


# ---- Horovod's API -------------------------------------------------------------------------------

@check()
def hvd_operations(place):
    """Each operation of Horovod's API, on tensors of most types."""
    import dp.torch as hvd
    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    ramp = ranks * (ranks - 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int16,
                  torch.int8, torch.uint8):
        for count in (1, 1000, 70001):
            data = place.numbers(count, dtype) + rank
            same(hvd.allreduce_(data, op=hvd.Sum), place.numbers(count, dtype) * ranks + ramp)
            data = place.numbers(count, dtype) + rank
            same(hvd.allreduce(data, op=hvd.Max), place.numbers(count, dtype) + (ranks - 1))
            same(data, place.numbers(count, dtype) + rank)  # the input stays
    same(hvd.allreduce(place.full((3, 5), float(2 * rank))), float(ranks - 1))
    same(hvd.allreduce(place.full(7, 1.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), 2.0 * ranks)
    same(hvd.allreduce_(place.full(3 << 20, float(rank + 1)), op=hvd.Sum), float(ramp + ranks))
    passed("allreduce")
    for outputs in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        tensors = [place.full(count, float(rank + i)) for i, count in enumerate((1, 1000, 300000))]
        for i, output in enumerate(outputs(tensors, op=hvd.Sum)):
            same(output, float(ramp + i * ranks))
    passed("grouped_allreduce")
    for extra in (0, 1):  # rank 0 has nothing the first time
        rows = hvd.allgather(place.full((rank + extra, 3), float(rank)))
        same(rows, torch.cat([place.full((r + extra, 3), float(r)) for r in range(ranks)]))
    handles = [hvd.allgather_async(place.full((2, 2), float(rank + i)), name=f"rows {i}") for i in range(6)]
    for i in range(6)[::-1 if rank % 2 else 1]:  # ranks wait in other orders
        same(hvd.synchronize(handles[i])[-1], float(ranks - 1 + i))
    passed("allgather")
    for root in range(ranks):
        same(hvd.broadcast(place.full(1000, float(rank)), root), float(root))
        same(hvd.broadcast_(place.full(10, rank, torch.int64), root), root)
    passed("broadcast")
    splits = torch.tensor([to + 1 for to in range(ranks)])
    came, received = hvd.alltoall(place.full((int(splits.sum()), 2), float(rank)), splits=splits)
    same(came, torch.cat([place.full((rank + 1, 2), float(r)) for r in range(ranks)]))
    same(received, rank + 1)
    part = hvd.reducescatter(place.full((2 * ranks + 1, 3), 1.0), op=hvd.Sum)
    assert part.shape[0] == 2 + (rank == 0), part.shape
    same(part, float(ranks))
    passed("alltoall, reducescatter")
    places = torch.tensor([[rank, ranks]], device=place.device)
    total = hvd.sparse_allreduce_async(torch.sparse_coo_tensor(places, place.full(2, 1.0), (ranks + 1,)), "sparse",
                                       hvd.Sum)()
    same(total.to_dense(), [1.0] * ranks + [float(ranks)])
    given = place.full(4, 1.0).requires_grad_()
    hvd.allreduce(given, op=hvd.Sum).sum().backward()
    same(given.grad, float(ranks))
    given = place.full((2, 2), 1.0).requires_grad_()
    (hvd.allgather(given) * 3).sum().backward()
    same(given.grad, 3.0)
    passed("sparse, autograd")
    assert hvd.broadcast_object({"from": rank}, 0) == {"from": 0}
    assert hvd.allgather_object([rank] * (rank + 1)) == [[r] * (r + 1) for r in range(ranks)]
    same(hvd.allreduce(torch.ones(5), op=hvd.Sum), float(ranks))  # beside those of the GPU
    for output in hvd.grouped_allreduce([torch.ones(3), torch.ones(2) * 2], op=hvd.Max):
        assert output.device.type == "cpu"
    passed("objects, tensors in host memory")
    hvd.barrier()
    hvd.shutdown()


@check()
def hvd_optimizer(place):
    """Training in parts gives the weights of training on the whole batch."""
    import dp.torch as hvd
    hvd.init()
    for kind, options, more in ((torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, {}),
                                (torch.optim.AdamW, {"lr": 0.01}, {"groups": 2}),
                                (torch.optim.SGD, {"lr": 0.1}, {"gradient_predivide_factor": 2.0})):
        wanted = plain_weights(place, kind, 4, **options)
        model = model_of(place)
        for weight in model.parameters():
            weight.data += hvd.rank()  # until it is broadcast
        optimizer = hvd.DistributedOptimizer(kind(model.parameters(), **options),
                                             named_parameters=model.named_parameters(), **more)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        train(place, model, optimizer, 4, hvd.rank())
        for found, plain in zip(model.parameters(), wanted):
            close(found.detach(), plain)
            every = hvd.allgather(found.detach()[None])
            same(every[0], every[-1])
        passed(f"{kind.__name__} {more}")
    model = model_of(place).float()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), clip=0.01,
                                         named_parameters=model.named_parameters(), compression=hvd.Compression.fp16)
    inputs, targets = (one.float() for one in batch_of(place, 0, hvd.rank()))
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    assert 0.01 < optimizer.grad_norm < 100, optimizer.grad_norm
    every = hvd.allgather(torch.cat([weight.detach().flatten() for weight in model.parameters()])[None])
    same(every[0], every[-1])
    hvd.broadcast_optimizer_state(torch.optim.AdamW(model.parameters()), root_rank=0)
    passed("fp16, clip, the optimizer's state")
    hvd.shutdown()


@check()
def hvd_streams(place):
    """Results are used at once, and memory that a slow kernel reads is not given out anew."""
    import dp.torch as hvd
    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    ramp = ranks * (ranks - 1) // 2
    for step in range(10):
        place.delay(5)
        data = place.full(1 << 18, float(rank + step))
        result = hvd.allreduce(data, op=hvd.Sum, name="data") * 2
        same(result, float(2 * (ramp + step * ranks)))
    passed("behind a slow kernel")
    for step in range(5):  # what is gathered has the size of what was freed
        read = place.full((ranks << 18,), 5.0)
        rows = place.full((1 << 18,), float(rank))
        handle = hvd.allgather_async(rows, name="rows")
        place.delay(20)
        copy = read.clone()
        del read
        gathered = hvd.synchronize(handle)
        same(copy, 5.0)
        same(gathered.view(ranks, -1)[:, 0], [float(r) for r in range(ranks)])
        del gathered, copy
    passed("freed memory")
    if place.is_cuda:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            place.delay()
            data = place.full(1000, float(rank))
            handle = hvd.allreduce_async_(data, op=hvd.Sum)
        hvd.synchronize(handle)  # on another stream than it was begun
        same(data, float(ramp))
        passed("another stream")
    hvd.shutdown()


# ---- torch.distributed ---------------------------------------------------------------------------

@check()
def dist_collectives(place):
    """Each operation of torch.distributed."""
    dist = begin_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ramp = ranks * (ranks - 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        for count in (1, 1000, 70001):
            data = place.numbers(count, dtype) + rank
            dist.all_reduce(data)
            same(data, place.numbers(count, dtype) * ranks + ramp)
    ops = {dist.ReduceOp.AVG: (ramp + ranks) / ranks, dist.ReduceOp.MIN: 1.0, dist.ReduceOp.MAX: float(ranks)}
    for op, wanted in ops.items():
        data = place.full((3, 7), rank + 1.0)
        dist.all_reduce(data, op=op)
        same(data, wanted)
    data = place.full(3, 1 << rank, torch.int64)
    dist.all_reduce(data, op=dist.ReduceOp.BOR)
    same(data, (1 << ranks) - 1)
    strided = place.full((40, 6), 1.0)[:, ::2]
    dist.all_reduce(strided)
    same(strided, float(ranks))
    data = torch.full((2,), complex(rank, 1), device=place.device)
    dist.all_reduce(data)
    same(torch.view_as_real(data)[0], [float(ramp), float(ranks)])
    dist.all_reduce(place.full(0, 1.0))
    passed("all_reduce")
    rows = place.full((ranks, 1000), -1.0)
    dist.all_gather_into_tensor(rows, place.full(1000, float(rank)))
    same(rows[:, 0], [float(r) for r in range(ranks)])
    listed = [place.full(r + 1, -1.0) for r in range(ranks)]
    dist.all_gather(listed, place.full(rank + 1, float(rank)))
    for r, row in enumerate(listed):
        same(row, float(r))
    passed("all_gather_into_tensor, all_gather")
    part = place.full(1000, 0.0)
    dist.reduce_scatter_tensor(part, torch.cat([place.full(1000, float(rank + 10 * r)) for r in range(ranks)]))
    same(part, float(ramp + 10 * rank * ranks))
    dist.reduce_scatter_tensor(part, place.full(1000 * ranks, float(rank)), op=dist.ReduceOp.AVG)
    same(part, ramp / ranks)
    part = place.full(rank + 1, 0.0)
    dist.reduce_scatter(part, [place.full(r + 1, 1.0) for r in range(ranks)])
    same(part, float(ranks))
    passed("reduce_scatter_tensor, reduce_scatter")
    for root in range(ranks):
        data = place.full((5, 5), float(rank))
        dist.broadcast(data, src=root)
        same(data, float(root))
    data = place.full(9, 1.0)
    dist.reduce(data, dst=0)
    same(data if rank == 0 else place.full(1, 0.0), float(ranks if rank == 0 else 0))
    listed = [place.full(2, -1.0) for _ in range(ranks)] if rank == 0 else None
    dist.gather(place.full(2, float(rank)), listed, dst=0)
    for r, row in enumerate(listed or []):
        same(row, float(r))
    data = place.full(2, -1.0)
    dist.scatter(data, [place.full(2, float(r)) for r in range(ranks)] if rank == 0 else None, src=0)
    same(data, float(rank))
    passed("broadcast, reduce, gather, scatter")
    data = place.full(2 * ranks, -1.0)
    dist.all_to_all_single(data, torch.arange(2.0 * ranks, device=place.device) + 100 * rank)
    same(data.view(ranks, 2)[:, 0], [100.0 * r + 2 * rank for r in range(ranks)])
    passed("all_to_all_single")
    if rank < 2:
        there, came = 1 - rank, place.full(1000, -1.0)
        for i in range(10):
            if rank == 0:
                dist.send(place.full(1000, float(i)), there)
                dist.recv(came, there)
                same(came, float(i + 1))
            else:
                dist.recv(came, there)
                dist.send(came + 1, there)
        swapped = [dist.P2POp(dist.isend, place.full(50, rank + 1.0), there), dist.P2POp(dist.irecv, came[:50], there)]
        for work in dist.batch_isend_irecv(swapped):
            work.wait()
        same(came[:50], there + 1.0)
    passed("send, recv, batch_isend_irecv")
    works = [(place.full(500, float(rank + i)), i) for i in range(20)]
    works = [(data, i, dist.all_reduce(data, async_op=True)) for data, i in works]
    for data, i, work in works[::-1 if rank % 2 else 1]:
        work.wait()
        same(data, float(ramp + i * ranks))
    data = place.full(100, 1.0)
    same(dist.all_reduce(data, async_op=True).get_future().then(lambda one: one.value()[0] * 2).wait(), 2.0 * ranks)
    with dist._coalescing_manager(device=place.device, async_ops=True) as coalesced:
        one, two = place.full(20, 1.0), place.full(30, 2.0)
        dist.all_reduce(one)
        dist.all_reduce(two)
    coalesced.wait()
    same(one, float(ranks))
    same(two, 2.0 * ranks)
    passed("async, futures, coalescing")
    dist.barrier()
    dist.destroy_process_group()


@check()
def dist_life(place):
    """Tensors of both kinds in one group, groups of the world, its end, and a world behind it."""
    dist = begin_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ramp = ranks * (ranks - 1) // 2
    for i in range(10):
        near, far = torch.full((100,), float(rank + i)), place.full(100, float(rank - i))
        works = [dist.all_reduce(near, async_op=True), dist.all_reduce(far, async_op=True)]
        for work in works[::-1 if i % 2 else 1]:
            work.wait()
        same(near, float(ramp + i * ranks))
        same(far, float(ramp - i * ranks))
    listed = [None] * ranks
    dist.all_gather_object(listed, {"rank": rank})
    assert listed == [{"rank": r} for r in range(ranks)], listed
    passed("both kinds of memory, objects")
    turned = dist.new_group(list(reversed(range(ranks))))
    data = place.full(10, float(rank))
    dist.broadcast(data, src=ranks - 1, group=turned)
    same(data, float(ranks - 1))
    alone = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(data, group=alone)
        same(data, float(ranks - 1))
    passed("new_group")
    dist.barrier()
    dist.destroy_process_group()
    folder = os.environ["DP_RUN_DIR"]
    dist.init_process_group("dp", init_method=f"file://{folder}/second", rank=rank, world_size=ranks,
                            **({"device_id": place.device} if place.is_cuda else {}))
    data = place.full(10, 1.0)
    dist.all_reduce(data)
    same(data, float(ranks))
    some = dist.new_group([0])  # with a bound device, torch asks ranks outside to split
    if rank == 0:
        dist.all_reduce(data, group=some)
    passed("a second world")
    dist.all_reduce(data)
    # And out, without destroy_process_group().


@check()
def dist_streams(place):
    """What is enqueued before and behind an operation, on the same stream and on others."""
    dist = begin_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ramp = ranks * (ranks - 1) // 2
    total = place.full(1 << 18, 0.0)
    for step in range(20):  # nothing here waits for the GPU but libdp
        data = place.full(1 << 18, float(rank + step))
        dist.all_reduce(data)
        total += data * 2
    same(total, float(2 * (20 * ramp + ranks * sum(range(20)))))
    passed("used at once")
    for step in range(5):
        place.delay(20)
        data = place.full(1 << 18, float(rank + step))
        work = dist.all_reduce(data, async_op=True)
        other = place.full(1 << 18, 9.0)  # runs beside it
        work.wait()
        same(data + other, float(ramp + step * ranks + 9))
    passed("behind a slow kernel")
    for step in range(10):  # dropped in flight, and its memory is wanted
        data = place.full(1 << 20, float(rank))
        work = dist.all_reduce(data, async_op=True)
        del data
        others = [place.full(1 << 20, float(i)) for i in range(4)]
        work.wait()
        for i, other in enumerate(others):
            same(other, float(i))
    passed("dropped tensors")
    if place.is_cuda:
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        for step in range(5):
            with torch.cuda.stream(side):
                place.delay(20)
                data = place.full(1 << 18, float(rank + step))
                dist.all_reduce(data)
                more = data + 1
            current.wait_stream(side)
            same(more, float(ramp + step * ranks + 1))
        for step in range(5):  # a copy behind the sum, on another stream than its memory was made on
            strided = place.full((1 << 12, 128), 1.0)[:, ::2]
            side.wait_stream(current)
            with torch.cuda.stream(side):
                work = dist.all_reduce(strided, async_op=True)
            place.delay(20)
            work.wait()
            with torch.cuda.stream(side):
                wanted = [torch.full((1 << 18,), -7.0, device=place.device) for _ in range(4)]
            same(strided, float(ranks))
            del wanted
        passed("other streams")
    dist.barrier()
    dist.destroy_process_group()


@check()
def ddp(place):
    """DistributedDataParallel gives the weights of training on the whole batch."""
    dist = begin_group()
    import dp.torch.ddp
    wanted = plain_weights(place, torch.optim.SGD, 5, lr=0.1, momentum=0.9)
    for hook in (None, dp.torch.ddp.average):
        model = model_of(place)
        parallel = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[place.device.index] if place.is_cuda else None, bucket_cap_mb=0.005)
        if hook is not None:
            parallel.register_comm_hook(None, hook)
        train(place, parallel, torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9), 5, dist.get_rank())
        for found, plain in zip(model.parameters(), wanted):
            close(found.detach(), plain)
            every = [torch.empty_like(found) for _ in range(place.ranks)]
            dist.all_gather(every, found.detach())
            same(every[0], every[-1])
        passed("DDP" if hook is None else "with dp.torch.ddp.average")
    dist.barrier()
    dist.destroy_process_group()


@check()
def fsdp(place):
    """fully_shard() gives the weights of training on the whole batch."""
    dist = begin_group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh(place.device.type, (place.ranks,))
    wanted = plain_weights(place, torch.optim.AdamW, 3, lr=0.01)
    for allocates in (False, True):
        model = model_of(place)
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if allocates:
            for layer in model.modules():
                if hasattr(layer, "set_allocate_memory_from_process_group_for_comm"):
                    layer.set_allocate_memory_from_process_group_for_comm(True)
        train(place, model, torch.optim.AdamW(model.parameters(), lr=0.01), 3, dist.get_rank())
        for found, plain in zip(model.parameters(), wanted):
            close(found.full_tensor().detach(), plain)
        passed("FSDP2" if not allocates else "with the backend's memory")
    dist.barrier()
    dist.destroy_process_group()


@check()
def other_backend(place):
    """libdp's communicators beside those of PyTorch's own backend, in one process and over one libnccl."""
    dist = begin_group()
    other = dist.new_group(backend="nccl" if place.is_cuda else "gloo")
    for _ in range(5):
        data = place.full(1 << 16, 1.0)
        dist.all_reduce(data)
        dist.all_reduce(data, group=other)
        same(data, float(place.ranks ** 2))
    passed("in turn")
    dist.barrier()
    dist.destroy_process_group()


# ---- Times ---------------------------------------------------------------------------------------

def median_us(call, times):
    for _ in range(times // 5 + 2):
        call()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1e6)
    return statistics.median(taken)


@check(ranks=1, alone=True)
def speed(place):
    """Medians of single calls; each ends when its result is there."""
    dist = begin_group()
    wait = torch.cuda.synchronize if place.is_cuda else lambda: None
    small, large = place.full(1, 1.0), place.full(1 << 20, 1.0)

    def reduce_by(group, data):
        def call():
            dist.all_reduce(data, group=group)
            wait()
        return call

    passed(f"time dist.all_reduce 4 B: {median_us(reduce_by(None, small), 300):.1f} us")
    passed(f"time dist.all_reduce 4 MiB: {median_us(reduce_by(None, large), 100):.1f} us")
    if place.is_cuda:
        nccl = dist.new_group(backend="nccl")
        passed(f"time the same by nccl, 4 B: {median_us(reduce_by(nccl, small), 300):.1f} us")
        passed(f"time the same by nccl, 4 MiB: {median_us(reduce_by(nccl, large), 100):.1f} us")
    dist.destroy_process_group()


@check(ranks=1, alone=True)
def speed_hvd(place):
    """The same for Horovod's API."""
    import dp.torch as hvd
    hvd.init()
    wait = torch.cuda.synchronize if place.is_cuda else lambda: None
    small, large = place.full(1, 1.0), place.full(1 << 20, 1.0)

    def reduce(data, name):
        def call():
            hvd.allreduce_(data, name=name)
            wait()
        return call

    passed(f"time hvd.allreduce_ 4 B: {median_us(reduce(small, 'small'), 300):.1f} us")
    passed(f"time hvd.allreduce_ 4 MiB: {median_us(reduce(large, 'large'), 100):.1f} us")
    hvd.shutdown()


def run_rank(name, kind, limit):
    import faulthandler
    faulthandler.dump_traceback_later(limit, exit=False)  # before the job is ended for its time
    start = time.monotonic()
    place = Place(kind)
    passed(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if place.is_cuda else 'the CPU'}, "
           f"after {time.monotonic() - start:.1f} s")
    CHECKS[name][0](place)
    faulthandler.cancel_dump_traceback_later()
    passed("done")


# ---- All of them ---------------------------------------------------------------------------------

class Run:
    """The jobs of the checks, some at a time. Prints a line for each that ends."""

    def __init__(self, given):
        self.given = given
        self.lock = threading.Lock()
        self.failed, self.figures = [], []
        self.end = time.monotonic() + given.total if given.total else None

    def limit(self):
        """What a job that starts now may take."""
        return self.given.limit if self.end is None else min(self.given.limit, int(self.end - time.monotonic()))

    def command(self, name, limit):
        ranks = CHECKS[name][1]
        launcher = [self.given.dprun, "-np", str(ranks)]
        if self.given.device == "cuda" and ranks > 1 and not self.given.gpus_suffice:
            # All kernels of PyTorch at the start would take longer than the checks.
            launcher += ["--share-gpu", "--env", "CUDA_MODULE_LOADING=" + self.given.loading]
        return [*launcher, sys.executable, os.path.abspath(__file__), "--rank", name, "--device", self.given.device,
                "--limit", str(max(limit - 4, 1))]

    def job(self, name):
        path = os.path.join(self.given.logs, f"{name}.log")
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        library = os.path.join(os.path.dirname(os.path.abspath(self.given.dprun)), "libdp.so")
        environment = {"LIBDP_PATH": library, **os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": ":".join(filter(None, (package, os.environ.get("PYTHONPATH"))))}
        start, limit = time.monotonic(), self.limit()
        if limit < 5:
            self.tell(name, -1, 0.0, [f"dprun: not started: the {self.given.total} s are over"], limit)
            return
        with open(path, "w", encoding="utf-8") as log:
            done = subprocess.run(["timeout", "-k", "3", str(limit), *self.command(name, limit)], stdout=log,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                  env=environment)
        with open(path, encoding="utf-8", errors="replace") as log:
            lines = [line.rstrip() for line in log if line.strip()]
        self.tell(name, done.returncode, time.monotonic() - start, lines, limit)

    def tell(self, name, code, seconds, lines, limit):
        bare = [line.split("] ", 1)[-1].strip() for line in lines]
        steps = [line[2:] for line in bare if line.startswith("- ")]
        is_good = code == 0 and "done" in steps
        reason = ""
        if not is_good:
            errors = [line for line in bare if "Error" in line or line.startswith("dprun:")]
            reason = f"exit code {code}" + (f", no end after {limit} s" if code in (124, 137) else "")
            reason += f": {errors[0][:200]}" if errors else ""
            reason += f" (behind: {steps[-1]})" if steps else ""
        with self.lock:
            print(f"{'passed' if is_good else 'FAILED'}  {name:18s} {seconds:6.1f} s  {reason}", flush=True)
            if not is_good:
                self.failed.append(name)
            self.figures += [line for line in steps if line.startswith("time ")]

    def all(self, names):
        beside = [name for name in names if not CHECKS[name][2]]
        waiting = iter(beside)

        def lane():
            while True:
                with self.lock:
                    name = next(waiting, None)
                if name is None:
                    return
                self.job(name)

        lanes = [threading.Thread(target=lane) for _ in range(self.given.jobs)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join()
        for name in names:
            if CHECKS[name][2]:
                self.job(name)
        for line in self.figures:
            print(line)
        print(f"{len(names) - len(self.failed)} of {len(names)} passed; logs in {self.given.logs}")
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", choices=list(CHECKS), help="this process is a rank of a job, and runs this check")
    parser.add_argument("--dprun", help="the launcher")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default=",".join(CHECKS), help="checks")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--limit", type=int, default=40, help="seconds for a job")
    parser.add_argument("--total", type=int, default=0, help="seconds for all jobs, 0: any; what is left ends, or fails unstarted")
    parser.add_argument("--logs", help="a folder; a new one by default")
    parser.add_argument("--loading", choices=("LAZY", "EAGER"), default="LAZY", help="CUDA_MODULE_LOADING of ranks that share a GPU")
    parser.add_argument("--gpus-suffice", action="store_true", help="each rank has a GPU of its own")
    given = parser.parse_args()
    if given.rank:
        run_rank(given.rank, given.device, given.limit)
        return 0
    if not given.dprun:
        parser.error("--dprun or --rank")
    names = given.only.split(",")
    for name in names:
        if name not in CHECKS:
            parser.error(f"--only {name}: {', '.join(CHECKS)}")
    given.logs = given.logs or tempfile.mkdtemp(prefix="dp-python-gpu-")
    os.makedirs(given.logs, exist_ok=True)
    return Run(given).all(names)


if __name__ == "__main__":
    sys.exit(main())
