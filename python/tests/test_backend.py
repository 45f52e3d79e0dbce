"""torch.distributed over libdp, with what users build on it: DDP and FSDP2. Starts its own ranks; skips
where there is no PyTorch of 2.14 or later.

It tests the form of Python. `LIBDP_TORCH=native` in the environment tests the one of C++ instead, from
torch 2.4 on, and compiles it where that was not done.
"""
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    torch = None

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT = 240
FORM = os.environ.get("LIBDP_TORCH") or "python"
MINIMUM = (2, 14) if FORM == "python" else (2, 4)
# Every rank; `here` is its number, `ranks` how many there are.
PRELUDE = """
import datetime, sys, torch, torch.distributed as dist
import dp.torch.backend
backend, here, ranks, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group(backend, init_method="file://" + place, rank=here, world_size=ranks,
                        timeout=datetime.timedelta(seconds=120))
"""
COLLECTIVES = """
x = torch.full((3, 4), here + 1.0)
dist.all_reduce(x)
assert x[2, 3] == ranks * (ranks + 1) / 2, x
strided = torch.ones(4, 6)[:, ::2]
dist.all_reduce(strided)
assert strided[3, 2] == ranks, strided
bits = torch.tensor([1 << here])
dist.all_reduce(bits, op=dist.ReduceOp.BOR)
assert bits.item() == (1 << ranks) - 1, bits
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
last = dist.split_group(split_ranks=[[ranks - 1, 0]])
if here in (0, ranks - 1):
    assert dist.get_rank(last) == (here == 0)
    value = torch.tensor([here])
    dist.broadcast(value, group=last, group_src=0)
    assert value.item() == ranks - 1, value
    dist.destroy_process_group(last)
dist.monitored_barrier()
dist.barrier()
dist.destroy_process_group()
print("passed")
"""
# Two ranks: what the form of Python alone has; what differs is named at once, and the next operation works.
OF_PYTHON = """
import warnings
bits = torch.full((ranks,), 1 << here)
part = torch.zeros(1, dtype=torch.int64)
dist.reduce_scatter_tensor(part, bits, op=dist.ReduceOp.BOR)
assert part.item() == (1 << ranks) - 1, part
sparse = torch.sparse_coo_tensor([[0, here]], [1.0, 2.0], (ranks,))
dist.all_reduce(sparse)
assert sparse.to_dense()[0] == ranks + 2 and sparse.to_dense()[ranks - 1] == 2 + (ranks == 1), sparse
def fails(call, *words):
    try:
        call()
    except RuntimeError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("nothing was told")
fails(lambda: dist.all_reduce(torch.ones(3 + here)), "count", "3 on rank 0", "4 on rank 1")
fails(lambda: dist.all_reduce(torch.ones(2, dtype=torch.float32 if here else torch.float64)), "f64", "f32")
fails((lambda: dist.broadcast(torch.ones(2), 0)) if here else (lambda: dist.all_reduce(torch.ones(2))),
      "broadcast", "allreduce")
fails(lambda: dist.broadcast(torch.ones(2), here), "root", "0 on rank 0", "1 on rank 1")
fails(lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(3)), "3 elements came", "room for 2")
x = torch.ones(2)
dist.all_reduce(x)
assert x[0] == 2
if here == 0:
    fails(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.1)), "Rank 1 failed")
    fails(lambda: dist.barrier(timeout=datetime.timedelta(seconds=0.1)), "Timed out waiting 100ms for barrier")
    dist.distributed_c10d._get_default_store().set("is late", "yes")
else:  # a rank that leaves would end the barrier sooner
    dist.distributed_c10d._get_default_store().wait(["is late"], datetime.timedelta(seconds=100))
warnings.simplefilter("ignore")  # it says why the world ended
dist.destroy_process_group()  # an operation of rank 0 is under way, which rank 1 never calls
print("passed")
"""
TRAINING = """
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6, whose FSDP2 wants a GPU
    fully_shard = None
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
def train(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        net(torch.randn(8, 32, generator=torch.Generator().manual_seed(10 * step + here))).square().mean().backward()
        optimizer.step()
ddp = torch.nn.parallel.DistributedDataParallel(model())
train(ddp)
sharded = ddp
if fully_shard is not None:
    sharded, mesh = model(), init_device_mesh("cpu", (ranks,))
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    train(sharded)
for kind, net in (("ddp", ddp), ("fsdp", sharded)):
    whole = [getattr(param, "full_tensor", lambda: param)() for param in net.parameters()]
    print(kind, " ".join("%.9g" % value for param in whole for value in param.detach().flatten()[:40].tolist()))
dist.destroy_process_group()
"""


def world(body, backend, ranks, forms=()):
    """What rank 0 prints; each rank must end with 0. forms: those of ranks that do not take FORM."""
    with tempfile.TemporaryDirectory(prefix="dp-torch-") as folder:
        command = [sys.executable, "-c", PRELUDE + body, backend]
        processes = [subprocess.Popen([*command, str(rank), str(ranks), os.path.join(folder, "store")],
                                      env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1",
                                           "LIBDP_TORCH": dict(forms).get(rank, FORM)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, output in zip(processes, outputs):
            assert process.returncode == 0, output
        return [line for line in outputs[0].splitlines() if "Warning" not in line]


def has_backend():
    return torch is not None and tuple(int(n) for n in torch.__version__.split(".")[:2]) >= MINIMUM


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Backend(unittest.TestCase):
    def test_collectives(self):
        for ranks in (2, 3):
            self.assertIn("passed", world(COLLECTIVES, "dp", ranks))

    @unittest.skipUnless(FORM == "python", "of the form of Python")
    def test_mistakes_are_named(self):
        self.assertIn("passed", world(OF_PYTHON, "dp", 2))

    def test_rank_0_says_the_form(self):
        if FORM == "python" or tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 14):
            self.skipTest("one form is here")
        body = """
from dp.torch.backend_native import World
worlds = dp.torch.backend._worlds.values()
print("form", *(type(one) is World for one in worlds))
dist.destroy_process_group()
"""
        self.assertIn("form False", world(body, "dp", 2, {0: "python"}))
        self.assertIn("form True", world(body, "dp", 2, {1: "python"}))

    def test_ddp_and_fsdp_train_as_over_gloo(self):
        ours, theirs = world(TRAINING, "dp", 2), world(TRAINING, "gloo", 2)
        self.assertEqual([line for line in ours if line.startswith(("ddp", "fsdp"))],
                         [line for line in theirs if line.startswith(("ddp", "fsdp"))])
        self.assertEqual(ours[0].split()[1:], ours[1].split()[1:])


if __name__ == "__main__":
    if not has_backend():
        print(f"no PyTorch of {MINIMUM[0]}.{MINIMUM[1]} or later is here")
        sys.exit(77)
    unittest.main()
