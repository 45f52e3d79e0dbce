"""torch.distributed over libdp, with what users build on it: DDP and FSDP2. Starts its own ranks; skips
where there is no PyTorch of 2.4 or later. test_backend_life.py has what goes wrong, and ends.
"""
import datetime
import inspect
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

from torch_ranks import (ENVIRONMENT, LIMIT, MINIMUM, PACKAGE, VERSION, Forker, dist, fails, has_backend, torch,
                         world)


def collectives(here, ranks):
    x = torch.full((3, 4), here + 1.0)
    dist.all_reduce(x)
    assert x[2, 3] == ranks * (ranks + 1) / 2, x
    strided = torch.ones(4, 6)[:, ::2]
    dist.all_reduce(strided)
    assert strided[3, 2] == ranks, strided
    bits = torch.tensor([1 << here])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == (1 << ranks) - 1, bits
    if hasattr(dist, "_make_nccl_premul_sum"):  # FSDP2's, where it divides gradients
        for factor in (0.5, torch.tensor([0.5])):
            scaled = torch.full((3,), here + 1.0)
            dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(factor))
            assert scaled[2] == ranks * (ranks + 1) / 4, scaled
            part = torch.zeros(2)
            dist.reduce_scatter_tensor(part, torch.arange(2.0 * ranks), op=dist._make_nccl_premul_sum(factor))
            assert part.tolist() == [here * ranks, (here + 0.5) * ranks], part
    complex_ = torch.full((2,), complex(here, 1))
    dist.all_reduce(complex_)
    assert complex_[1] == complex(ranks * (ranks - 1) / 2, ranks), complex_
    rows = [torch.zeros(2) for _ in range(ranks)]
    dist.all_gather(rows, torch.full((2,), float(here)))
    assert [row[0].item() for row in rows] == list(range(ranks)), rows
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": here})
    assert objects == [{"rank": i} for i in range(ranks)], objects
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * ranks))
    assert part.tolist() == [2.0 * here * ranks, (2.0 * here + 1) * ranks], part
    part = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(part, torch.full((ranks,), 1 << here), op=dist.ReduceOp.BOR)
    assert part.item() == (1 << ranks) - 1, part
    bits = torch.tensor([7 - (1 << here), 5 << here])
    dist.all_reduce(bits, op=dist.ReduceOp.BAND)
    assert bits[0] == 7 - ((1 << ranks) - 1), bits
    uneven = [torch.full((i + 1,), (1 << here) + 8 * i) for i in range(ranks)]
    part = torch.zeros(here + 1, dtype=torch.int64)
    dist.reduce_scatter(part, uneven, op=dist.ReduceOp.BXOR)
    assert part.tolist() == [((1 << ranks) - 1) ^ (8 * here * (ranks % 2))] * (here + 1), part
    sums = torch.zeros(here + 1, dtype=torch.int64)
    dist.reduce_scatter(sums, uneven)
    assert sums.tolist() == [(1 << ranks) - 1 + 8 * here * ranks] * (here + 1), sums
    for number in (1.0, 2.5):  # rank 2 has fewer coordinates
        places = torch.tensor([[0, here]] if here < 2 else [[]], dtype=torch.int64)
        sparse = torch.sparse_coo_tensor(places, torch.tensor([number, 2 * number])[:places.shape[1]], (ranks,))
        dist.all_reduce(sparse)
        wanted = torch.zeros(ranks, dtype=sparse.dtype)
        wanted[0], wanted[1] = 4 * number, 2 * number
        assert sparse.to_dense().equal(wanted), (sparse, wanted)
    rows = torch.sparse_coo_tensor([[here, 1]], torch.ones(2, 3), (ranks, 3))  # values of more than one number
    dist.all_reduce(rows)
    assert rows.to_dense()[1].tolist() == [ranks + 1.0] * 3 and rows.to_dense().sum() == 6 * ranks, rows
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (ranks,))
    dist.all_reduce(empty)
    assert empty._nnz() == 0, empty
    value = torch.tensor([here])
    dist.broadcast(value, src=ranks - 1)
    assert value.item() == ranks - 1
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)] if here == 0 else None
    dist.gather(torch.tensor([here]), gathered, dst=0)
    assert here != 0 or [one.item() for one in gathered] == list(range(ranks)), gathered
    mine = torch.zeros(2)
    dist.scatter(mine, [torch.full((2,), float(i)) for i in range(ranks)] if here == 0 else None, src=0)
    assert mine[0] == here, mine
    swapped = torch.zeros(2 * ranks)
    dist.all_to_all_single(swapped, torch.arange(2.0 * ranks) + 10 * here)
    assert swapped.tolist()[-2:] == [10.0 * (ranks - 1) + 2 * here, 10.0 * (ranks - 1) + 2 * here + 1], swapped
    if here == 0:
        for i in range(20):
            dist.send(torch.full((3,), float(i)), 1, tag=i % 2)
    elif here == 1:
        for i in range(20):
            got = torch.zeros(3)
            dist.recv(got, 0, tag=i % 2)
            assert got[2] == i, got
    group = dist.new_group([ranks - 1, 0])
    if here in (0, ranks - 1):
        one = torch.ones(1)
        dist.all_reduce(one, group=group)
        assert one == 2
    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(30)]
    for work in reversed(works):
        work.wait()
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    assert future.wait()[0] == ranks
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as coalesced:
        one, two = torch.ones(2), torch.ones(3)
        dist.all_reduce(one)
        dist.all_reduce(two)
    coalesced.wait()
    assert one[0] == ranks and two[0] == ranks, (one, two)
    if here < 2:
        there, got = 1 - here, torch.zeros(2)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), here + 1.0), there),
                                            dist.P2POp(dist.irecv, got, there)]):
            work.wait()
        assert got[1] == there + 1, got
    if VERSION >= (2, 14):  # before, torch has it for gloo alone
        dist.monitored_barrier()
    dist.barrier()
    dist.destroy_process_group()
    print("passed")


def split(here, ranks):
    """Groups that are split from the world: some of its ranks, and all of them in another order."""
    last = dist.split_group(split_ranks=[[ranks - 1, 0]])
    if here in (0, ranks - 1):
        assert dist.get_rank(last) == (here == 0)
        value = torch.tensor([here])
        dist.broadcast(value, group=last, group_src=0)
        assert value.item() == ranks - 1, value
        dist.destroy_process_group(last)
    else:
        assert last is dist.GroupMember.NON_GROUP_MEMBER, last
    # A group whose ranks are not in the order of the world's.
    turned = dist.split_group(split_ranks=[list(reversed(range(ranks)))]) if ranks > 1 else None
    me = ranks - 1 - here
    assert dist.get_rank(turned) == me
    rows = [torch.zeros(1) for _ in range(ranks)]
    dist.all_gather(rows, torch.tensor([float(me)]), group=turned)
    assert [row.item() for row in rows] == list(range(ranks)), rows
    part = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(part, torch.arange(ranks), group=turned)
    assert part.item() == me * ranks, part
    dist.reduce_scatter_tensor(part, 1 << torch.arange(ranks), group=turned, op=dist.ReduceOp.BOR)
    assert part.item() == 1 << me, part
    got = torch.zeros(ranks)
    dist.all_to_all_single(got, torch.full((ranks,), float(me)), group=turned)
    assert got.tolist() == list(range(ranks)), got
    dist.destroy_process_group(turned)
    dist.barrier()
    dist.destroy_process_group()
    print("passed")


def mistakes(here, ranks, store):
    """Two ranks: what differs is named at once, and the next operation works."""
    fails(lambda: dist.all_reduce(torch.ones(3 + here)), "count", "3 on rank 0", "4 on rank 1")
    fails(lambda: dist.all_reduce(torch.ones(2, dtype=torch.float32 if here else torch.float64)), "f64", "f32")
    fails((lambda: dist.broadcast(torch.ones(2), 0)) if here else (lambda: dist.all_reduce(torch.ones(2))),
          "broadcast", "allreduce")
    fails(lambda: dist.broadcast(torch.ones(2), here), "root", "0 on rank 0", "1 on rank 1")
    fails(lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(3)), "can take 4", "6 come")
    wrong = dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(3), async_op=True)
    fails(wrong.wait, "can take 4", "6 come")
    fails(wrong.wait, "can take 4", "6 come")  # and again
    fails(lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (2 + here,))), "tag")
    fails(lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (2,)), op=dist.ReduceOp.MAX), "only sum")
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x[0] == 2
    short = datetime.timedelta(seconds=0.1)
    if VERSION < (2, 14):
        pass
    elif here == 0:
        fails(lambda: dist.monitored_barrier(timeout=short), "Rank 1 failed to pass monitoredBarrier in 100 ms")
        store.set("is late", "yes")
    else:
        store.wait(["is late"], datetime.timedelta(seconds=100))
        fails(lambda: dist.monitored_barrier(timeout=short), "Rank 1 successfully reached", "rank 0")
    if VERSION >= (2, 14):
        dist.monitored_barrier()
    if here == 0:
        work = dist.barrier(async_op=True)
        fails(lambda: work.wait(short), "Timed out waiting 100ms for barrier", "ranks [0, 1]")
        store.set("is later", "yes")
    else:  # a rank that leaves would end the barrier sooner
        store.wait(["is later"], datetime.timedelta(seconds=100))
    began = time.monotonic()
    warnings.simplefilter("ignore")  # it says why the world ended
    dist.destroy_process_group()  # an operation of rank 0 is under way, which rank 1 never calls
    assert time.monotonic() - began < 60, "the end waited for an operation that had timed out"
    print("passed")


def three_missing(here, store):
    limit = datetime.timedelta(seconds=0.2)
    if here == 0:
        fails(lambda: dist.monitored_barrier(timeout=limit, wait_all_ranks=True), "Ranks 1, 3 failed")
        store.set("is over", "yes")
    elif here == 2:
        fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=60)), "Rank 2 successfully reached")
    else:
        store.wait(["is over"], datetime.timedelta(seconds=100))
    dist.destroy_process_group()
    print("passed")


def types(here, ranks):
    """Types that libdp lacks move as bytes, and are not reduced as bytes."""
    kinds = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)] + [torch.complex64]
    def make(kind, rank, count=8):
        values = torch.arange(float(count)) + 8 * rank
        return torch.complex(values, -values) if kind.is_complex else values.to(kind)
    def same(one, other):
        return one.shape == other.shape and one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8))
    for kind in kinds:
        mine = make(kind, here)
        x = mine.clone()
        dist.broadcast(x, 1)
        assert same(x, make(kind, 1)), x
        strided = torch.zeros(8, 2, dtype=kind)[:, 0]
        strided.copy_(mine)
        dist.broadcast(strided, 1)
        assert same(strided, make(kind, 1)), strided
        rows = [torch.zeros(8, dtype=kind) for _ in range(ranks)]
        dist.all_gather(rows, mine)
        assert all(same(row, make(kind, rank)) for rank, row in enumerate(rows)), rows
        whole = torch.zeros(8 * ranks, dtype=kind)
        dist.all_gather_into_tensor(whole, mine)
        assert all(same(row, make(kind, rank)) for rank, row in enumerate(whole.chunk(ranks))), whole
        got = torch.zeros(8, dtype=kind)
        dist.all_to_all_single(got, mine)
        assert same(got, torch.cat([make(kind, rank).chunk(ranks)[here] for rank in range(ranks)])), got
        rows = [torch.zeros(8, dtype=kind) for _ in range(ranks)] if here == 0 else None
        dist.gather(mine, rows, dst=0)
        assert here != 0 or all(same(row, make(kind, rank)) for rank, row in enumerate(rows)), rows
        dist.scatter(got, [make(kind, rank) for rank in range(ranks)] if here == 0 else None, src=0)
        assert same(got, mine), got
        if here == 0:
            dist.send(mine, 1)
        elif here == 1:
            dist.recv(got, 0)
            assert same(got, make(kind, 0)), got
        refused = ("complex numbers",) if kind.is_complex else ("no reduction of", str(kind)[len("torch.f"):])
        op = dist.ReduceOp.PRODUCT if kind.is_complex else dist.ReduceOp.SUM
        x = mine.clone()
        if not kind.is_complex:  # torch itself refuses those of complex numbers
            fails(lambda: dist.all_reduce(x, op=op), *refused)
        fails(lambda: dist.reduce(x, 0, op=op), *refused)
        fails(lambda: dist.reduce_scatter_tensor(torch.zeros(8 // ranks, dtype=kind), x, op=op), *refused)
        parts = [make(kind, here, rank + 1) for rank in range(ranks)]  # of different sizes
        fails(lambda: dist.reduce_scatter(torch.zeros(here + 1, dtype=kind), parts, op=op), *refused)
        assert same(x, mine), x
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x[0] == ranks
    sums = torch.full((2,), complex(here, 1))
    dist.reduce(sums, 0)
    assert here != 0 or sums[1] == complex(ranks * (ranks - 1) / 2, ranks), sums
    dist.destroy_process_group()
    print("passed")


def works(here, store, own):
    x = torch.ones(3)
    if here == 0:
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
        store.set("looked", "yes")
    else:
        store.wait(["looked"], datetime.timedelta(seconds=100))
        work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success()
    assert VERSION < (2, 14) or work.exception() is None  # before, Python has no form of it
    assert work.result()[0].tolist() == [2.0] * 3, work.result()
    if hasattr(work, "get_future_result"):
        assert work.get_future_result().wait() == 0
    wrong = dist.all_reduce(torch.ones(3 + here), async_op=True)
    while not wrong.is_completed():
        time.sleep(0.001)
    assert not wrong.is_success()
    assert VERSION < (2, 14) or "count" in str(wrong.exception()), wrong.exception()
    fails(wrong.wait, "count", "3 on rank 0", "4 on rank 1")
    fails(wrong.get_future().wait, "3 on rank 0")
    assert own is None or not hasattr(own, "get_error") or own.get_error().value == 0
    # The future of the second is over before the first has been called by rank 1.
    if here == 0:
        first = dist.all_reduce(torch.ones(1), group=None, async_op=True).get_future()
        second = dist.irecv(x, 1)
        future = second.get_future()
        future.wait()
        assert x[0] == 5 and not first.done()
        store.set("came", "yes")
        first.wait()
    else:
        dist.send(torch.full((3,), 5.0), 0)
        store.wait(["came"], datetime.timedelta(seconds=100))
        dist.all_reduce(torch.ones(1))
    assert dist.irecv(x, 1)._source_rank() == 1 if here == 0 else dist.isend(x, 0) is not None
    dist.barrier()
    dist.destroy_process_group()
    print("passed")


def any_source(here, ranks, store):
    got = torch.zeros(4)
    def value(sender, number, tag=0):
        return torch.full((4,), 100.0 * sender + 10 * number + tag)
    if here == 0:
        seen = {}
        for _ in range(3 * (ranks - 1)):  # each sends three
            sender = dist.recv(got)
            assert got.equal(value(sender, seen.get(sender, 0))), (sender, got)
            seen[sender] = seen.get(sender, 0) + 1
        assert seen == {i: 3 for i in range(1, ranks)}, seen
        store.set("three", "yes")
        # Tags are apart, and a receive that names its sender takes what is next of that one.
        assert dist.recv(got, tag=5) == 1 and got.equal(value(1, 0, 5)), got
        dist.recv(got, 1)
        assert got.equal(value(1, 7)), got
        works = [dist.irecv(torch.zeros(4)) for _ in range(2)]
        assert not works[0].is_completed()
        store.set("posted", "yes")
        for work in works:
            work.wait()
            assert work.result()[0].equal(value(work._source_rank(), 8)), work.result()
        assert {work._source_rank() for work in works} == {1, 2}
        dropped = dist.irecv(got)  # nobody sends that
        short = datetime.timedelta(seconds=0.1)
        fails(lambda: dropped.wait(short), "Timed out waiting 100ms for recvAnySource")
    else:
        for number in range(3):
            dist.send(value(here, number), 0)
        if here == 1:
            store.wait(["three"], datetime.timedelta(seconds=100))  # or it could come before another rank's third
            dist.isend(value(1, 0, 5), 0, tag=5)
            dist.send(value(1, 7), 0)
        store.wait(["posted"], datetime.timedelta(seconds=100))
        if here < 3:
            dist.send(value(here, 8), 0)
    group = dist.new_group([2, 0])
    if here == 2:
        dist.send(value(2, 9), 0, group=group)
    elif here == 0:
        assert dist.recv(got, group=group) == 2 and got.equal(value(2, 9)), got
    dist.barrier()
    # The end of rank 0, whose dropped receive is under way for ever, is an abort: the others have left the barrier.
    store.set(f"over {here}", "yes")
    store.wait([f"over {i}" for i in range(ranks)], datetime.timedelta(seconds=100))
    warnings.simplefilter("ignore")
    dist.destroy_process_group()
    print("passed")


def no_any_source():
    fails(lambda: dist.recv(torch.zeros(1)), "receives from any rank want PyTorch 2.14")
    dist.barrier()
    dist.destroy_process_group()
    print("passed")


def memory(here, own):
    import dp.torch.backend
    def take(size, dtype=torch.float32):
        return own.allocate_tensor(size, dtype=dtype, device=torch.device("cpu"))
    pool = next(iter(dp.torch.backend._worlds.values())).pool
    first = take(100000)
    address = first.data_ptr()
    first.fill_(here + 1)
    dist.all_reduce(first)
    assert first[99999] == 3 and first.dtype == torch.float32 and first.shape == (100000,)
    half = first[10:20]  # a view keeps the block
    del first
    other = take(100000)
    assert other.data_ptr() != address and pool.made == 2
    del half, other
    again = [take(99000), take(100000, torch.int32)]  # of one size class
    assert address in [one.data_ptr() for one in again] and pool.made == 2, pool.made
    assert take(0).numel() == 0 and pool.made == 2
    del again
    # More than there is: ordinary memory, and blocks of other sizes make room.
    large = [take(6 << 20) for _ in range(3)]  # 24 MiB each of 64, of which libdp has some itself
    made = pool.made
    for one in large:
        one.fill_(here + 1)
        dist.all_reduce(one)
        assert one[-1] == 3 and one[0] == 3
    assert made < 2 + 3, made
    del large, one
    wide = take(9 << 20)
    wide.fill_(1)
    dist.all_reduce(wide)
    assert wide[-1] == 2 and pool.made == made + 1, pool.made
    kept = take(1000)
    kept.fill_(7 + here)
    views = kept[5:]
    dist.destroy_process_group()
    assert kept[999] == 7 + here and wide[-1] == 2  # they outlive the world
    kept.add_(1)
    views.add_(1)
    assert kept[999] == 9 + here
    del kept, views, wide
    print("passed")


def steps_on_a_wire(here):
    """Twenty buckets of DDP between two nodes. It makes them anew behind its first step."""
    import dp.torch.backend
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(120 + i, 121 + i) for i in range(20)])
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001, gradient_as_bucket_view=here == 0)
    context, sent = dp.torch.backend._default, [0]
    def step():
        net.zero_grad(set_to_none=False)
        (model(torch.ones(2, 120)) * (here + 1)).sum().backward()
        sent.append(context.stats()["bytes_wire"])
    for _ in range(6):
        step()
    bytes_of = [after - before for before, after in zip(sent, sent[1:])]
    wide = 4 * sum(param.numel() for param in net.parameters())
    assert wide <= bytes_of[1] < 1.1 * wide, bytes_of
    assert all(one < 0.55 * wide for one in bytes_of[3:]), bytes_of
    narrow = [param.grad.clone() for param in net.parameters()]
    with model.no_sync():
        net.zero_grad()
        (model(torch.ones(2, 120)) * 1.5).sum().backward()
    for param, was in zip(net.parameters(), narrow):
        assert (param.grad - was).abs().max() <= 2 ** -10 * was.abs().max(), (param.grad - was).abs().max()
    # One that ranks disagree about is told, and those behind it have the same names on both.
    fails(lambda: dist.all_reduce(torch.ones(3 + here)), "count", "3 on rank 0", "4 on rank 1")
    for _ in range(4):
        step()
    assert sent[-1] - sent[-2] < 0.55 * wide, sent
    # Large magnitudes in the place of small ones do not take their scale.
    for _ in range(3):
        for i in range(20):
            large = torch.full((5000,), 2.0 ** (40 if i % 3 else 0))
            dist.all_reduce(large)
            assert large[0] == 2 * 2.0 ** (40 if i % 3 else 0), large
    dist.destroy_process_group()
    print("passed")


def training(here, ranks, backend):
    import dp.torch.backend
    from torch.distributed.device_mesh import init_device_mesh
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6, whose FSDP2 wants a GPU
        fully_shard = None
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    def train(net, after_step=lambda: None):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            after_step()
            optimizer.zero_grad()
            net(torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + here))).square().mean().backward()
            optimizer.step()
    ddp = torch.nn.parallel.DistributedDataParallel(model())
    train(ddp)
    if backend == "dp":
        import dp.torch.ddp
        averaged = torch.nn.parallel.DistributedDataParallel(model())
        averaged.register_comm_hook(None, dp.torch.ddp.average)
        train(averaged)
        assert all(one.equal(other) for one, other in zip(averaged.parameters(), ddp.parameters()))
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks
    hooked = {}
    hooks = [("powersgd", powerSGD_hook.powerSGD_hook,
              powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.5))]
    if ".cuda(" not in inspect.getsource(quantization_hooks):  # early ones want a GPU
        hooks += [("pertensor", quantization_hooks.quantization_pertensor_hook, dist.group.WORLD),
                  ("perchannel", quantization_hooks.quantization_perchannel_hook, dist.group.WORLD)]
    for kind, hook, state in hooks:
        hooked[kind] = torch.nn.parallel.DistributedDataParallel(model())
        hooked[kind].register_comm_hook(state, hook)
        train(hooked[kind])
    sharded = ddp
    if fully_shard is not None:
        sharded, mesh = model(), init_device_mesh("cpu", (ranks,))
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer, mesh=mesh)
        train(sharded)
    own_memory, made = sharded, []
    if fully_shard is not None and backend == "dp" and hasattr(sharded, "set_allocate_memory_from_process_group_for_comm"):
        own_memory = model()
        for layer in (own_memory[0], own_memory[2], own_memory):
            fully_shard(layer, mesh=mesh)
            layer.set_allocate_memory_from_process_group_for_comm(True)
        pool = next(iter(dp.torch.backend._worlds.values())).pool
        train(own_memory, lambda: made.append(pool.made))
        assert made[1] > 0 and made[1] == made[2] == made[3] == pool.made, made  # the second step makes nothing
    for kind, net in (("ddp", ddp), ("fsdp", sharded), ("own", own_memory), *hooked.items()):
        whole = [getattr(param, "full_tensor", lambda: param)() for param in net.parameters()]
        print(kind, " ".join("%.9g" % value for param in whole for value in param.detach().flatten()[:40].tolist()))
    dist.destroy_process_group()


def world_of_one():
    """A world of one, whose backend torch itself has to find."""
    sys.path.insert(0, sys.argv[1])
    dist.init_process_group("dp", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == 1 and dist.get_backend() == "dp"
    dist.destroy_process_group()
    print("passed")


def srun_task():
    """A task of srun: what register() has set, and a world by it."""
    import dp.torch.backend  # noqa: F401, registers "dp"
    print(*(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")))
    dist.init_process_group("dp")
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    assert x == 3 and dist.get_rank() == int(os.environ["SLURM_PROCID"])
    dist.destroy_process_group()
    print("passed")


STEP = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-09,12],old1",
        "SLURM_JOB_NODELIST": "gpu[01-20]", "SLURM_STEP_NUM_NODES": "4", "SLURM_NNODES": "20"}


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Slurm(unittest.TestCase):
    def variables(self, *without, **others):
        from dp.torch.backend_slurm import variables
        return variables({**{name: value for name, value in STEP.items() if name not in without}, **others})

    def test_a_task_of_a_step_gets_torch_s_variables(self):
        found = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu07", "MASTER_PORT": "19711"}
        self.assertEqual(self.variables(), found)
        self.assertEqual(self.variables(PMI_RANK="5", PMI_SIZE="8"), found)  # srun --mpi=pmi2
        self.assertEqual(self.variables("SLURM_STEP_NUM_TASKS")["WORLD_SIZE"], "16")
        self.assertEqual(self.variables("SLURM_STEP_NODELIST")["MASTER_ADDR"], "gpu01")
        self.assertEqual(self.variables(SLURM_STEP_NUM_NODES="1")["MASTER_ADDR"], "127.0.0.1")
        self.assertNotIn("LOCAL_RANK", self.variables("SLURM_LOCALID"))

    def test_steps_and_jobs_have_ports_of_their_own(self):
        ports = [self.variables(SLURM_STEP_ID=str(step), SLURM_JOB_ID=str(job))["MASTER_PORT"]
                 for job in range(9990, 10010) for step in range(20)]
        self.assertEqual(len(set(ports)), len(ports))
        self.assertTrue(all(15000 <= int(port) < 25000 for port in ports))

    def test_what_is_no_task_of_a_step_gets_none(self):
        for name in ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_JOB_ID"):
            self.assertEqual(self.variables(name), {}, name)
        for others in ({"RANK": "0"}, {"SLURM_STEP_ID": str(0xfffffffb)}, {"SLURM_STEP_ID": "batch"},
                       {"OMPI_COMM_WORLD_RANK": "5"}, {"PMI_RANK": "1", "PMI_SIZE": "8"},
                       {"PMI_RANK": "5", "PMI_SIZE": "64"}):
            self.assertEqual(self.variables(**others), {}, others)

    def test_the_first_node_of_a_list(self):
        from dp.torch.backend_slurm import first_node
        for nodes, first in (("a", "a"), ("a,b", "a"), ("a[1-3,5],b", "a1"), ("a[01-10]", "a01"), ("a[7]", "a7"),
                             ("r[1-2]n[08,10]-ib,b", "r1n08-ib"), ("a-1.b", "a-1.b"), ("", "")):
            self.assertEqual(first_node(nodes), first, nodes)

    def test_any_list_and_any_variables(self):
        """As the fuzzers do with parsers in C: lists that are known, and texts that are none."""
        from dp.torch.backend_slurm import first_node
        draw = random.Random(1)
        for _ in range(2000):
            parts = [(draw.choice(("a", "n-", "x.y")), draw.choice(([], ["07"], ["1", "5"], ["08", "10"])))
                     for _ in range(draw.randint(1, 3))]
            text = "".join(name + (f"[{draw.choice('-,').join(numbers)}{draw.choice(('', ',20'))}]" if numbers else "")
                           for name, numbers in parts)
            first = "".join(name + (numbers[0] if numbers else "") for name, numbers in parts)
            self.assertEqual(first_node(text + draw.choice(("", ",b", ",b[1-2],c"))), first, text)
            noise = "".join(draw.choice("a1[]-,.\x00\u0663 ") for _ in range(draw.randint(0, 40)))
            self.assertIsInstance(first_node(noise), str)
            found = self.variables(**{name: draw.choice((noise, "9" * draw.randint(1, 5000), "3")) for name in
                                      ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_JOB_ID")})
            self.assertTrue(not found or int(found["MASTER_PORT"]) in range(15000, 25000), found)

    def test_tasks_of_a_step_meet(self):
        def is_free(port):
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) != 0
        port = next(port for port in range(16000, 25000) if is_free(port))
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI_", "OMPI_"))
                   and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
        step = {**outside, **ENVIRONMENT, **STEP, "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(port - 15000), "WORLD_SIZE": "2"}
        tasks = [Forker.only().fork(srun_task, ["-c"], {**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
                 for rank in range(2)]
        try:
            for rank, task in enumerate(tasks):
                output = task.communicate(time.monotonic() + LIMIT)
                self.assertIn(f"{rank} 2 {rank} 127.0.0.1 {port}", output)
                self.assertIn("passed", output)
                self.assertEqual(task.returncode, 0, output)
        finally:
            for task in tasks:
                task.send_signal(signal.SIGKILL)
                task.wait()
                task.stdout.close()


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Backend(unittest.TestCase):
    def test_collectives(self):
        for ranks in (2, 3):
            self.assertIn("passed", world(collectives, "dp", ranks))

    @unittest.skipUnless(VERSION >= (2, 14), "before, torch splits groups of one device alone")
    def test_groups_are_split(self):
        for ranks in (2, 3):
            self.assertIn("passed", world(split, "dp", ranks))

    def test_mistakes_are_named(self):
        self.assertIn("passed", world(mistakes, "dp", 2))

    @unittest.skipUnless(VERSION >= (2, 15), "before, torch looks for no entry points")
    def test_an_installed_package_needs_no_import(self):
        with open(os.path.join(PACKAGE, "pyproject.toml")) as file:
            value = re.search(r'entry-points."torch.distributed.backends"\]\ndp = "(.*)"', file.read())[1]
        with tempfile.TemporaryDirectory(prefix="dp-torch-") as folder:
            about = os.path.join(folder, "libdp-0.dist-info")  # as pip leaves it
            os.mkdir(about)
            with open(os.path.join(about, "METADATA"), "w") as file:
                file.write("Metadata-Version: 2.1\nName: libdp\nVersion: 0\n")
            with open(os.path.join(about, "entry_points.txt"), "w") as file:
                file.write(f"[torch.distributed.backends]\ndp = {value}\n")
            alone = Forker.only().fork(world_of_one, ["-c", folder], {**os.environ, **ENVIRONMENT})
            output = alone.communicate(time.monotonic() + LIMIT)
            alone.stdout.close()
        self.assertIn("passed", output)

    def test_without_a_compiler_the_import_says_what_to_install(self):
        with tempfile.TemporaryDirectory(prefix="dp-torch-") as folder:
            done = subprocess.run([sys.executable, "-c", "import dp.torch.backend"], text=True, capture_output=True, timeout=LIMIT,
                                  env={**os.environ, **ENVIRONMENT, "CXX": "", "PATH": folder, "XDG_CACHE_HOME": folder})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^RuntimeError: the backend dp is compiled once for each PyTorch, and for .* that is not possible: "
                         r"there is no C\+\+ compiler \(Debian: g\+\+\); install it, or a wheel of libdp")

    def test_types_that_libdp_lacks_move_and_are_not_reduced(self):
        self.assertIn("passed", world(types, "dp", 2))

    @unittest.skipUnless(VERSION >= (2, 14), "before, torch has monitored_barrier() for gloo alone")
    def test_missing_ranks_are_named(self):
        self.assertIn("passed", world(three_missing, "dp", 4))

    def test_a_work_says_how_it_stands(self):
        self.assertIn("passed", world(works, "dp", 2))

    def test_receives_from_any_rank(self):
        if VERSION >= (2, 14):
            self.assertIn("passed", world(any_source, "dp", 4))
        else:
            self.assertIn("passed", world(no_any_source, "dp", 2))

    @unittest.skipUnless(VERSION >= (2, 7), "torch asks no backend for memory before 2.7")
    def test_memory_is_used_again_runs_out_and_outlives_the_world(self):
        self.assertIn("passed", world(memory, "dp", 2, DP_ARENA_BYTES="64M", DP_FUSION_BYTES="1M"))

    def test_buckets_of_ddp_travel_as_fp16(self):
        self.assertIn("passed", world(steps_on_a_wire, "dp", 2, DP_PRETEND_NODES="2", DP_WIRE="fp16"))

    def test_ddp_and_fsdp_train_as_over_gloo(self):
        ours, theirs = world(training, "dp", 2), world(training, "gloo", 2)
        kinds = ("ddp", "fsdp", "powersgd", "pertensor", "perchannel")
        same = [line for line in ours if line.startswith(kinds)]
        self.assertEqual(same, [line for line in theirs if line.startswith(kinds)])
        by_ddp = [line.split(" ", 1)[1] for line in same if not line.startswith("fsdp")]
        self.assertEqual(len(set(by_ddp)), len(by_ddp), "a hook did nothing")
        self.assertEqual(ours[0].split()[1:], ours[1].split()[1:])
        self.assertEqual(ours[1].split()[1:], ours[2].split()[1:])  # in its own memory


if __name__ == "__main__":
    if not has_backend():
        print(f"no PyTorch of {MINIMUM[0]}.{MINIMUM[1]} or later is here")
        sys.exit(77)
    unittest.main()
