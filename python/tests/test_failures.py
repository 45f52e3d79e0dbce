"""Every way in which a collective of torch.distributed can fail, under everything that waits for one: the rank that waits
gets an exception with libdp's words, its `except` runs, and dprun names the rank that was at fault. Starts its own ranks.
"""
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from torch_ranks import ENVIRONMENT, MINIMUM, PACKAGE, VERSION, Forker, Job, has_backend

DPRUN = os.environ.get("DPRUN", os.path.join(os.path.dirname(PACKAGE), "build-dev", "dprun"))
LIMIT_S = 3  # of the group, where a rank is late
AT_ONCE = 4  # jobs, most of which wait
# Each defines step(), which both ranks call. What waits for the collectives of a step?
WAITERS = {
    "a call": "step = lambda: dist.all_reduce(torch.ones(2))",
    "a Work": "step = lambda: dist.all_reduce(torch.ones(2), async_op=True).wait()",
    "then()": """
step = lambda: dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda one: one.value()).wait()
""",
    "objects": "step = lambda: dist.all_gather_object([None] * ranks, here)",
    "a barrier": "step = lambda: dist.barrier()",
    "DDP": "model = DDP(torch.nn.Linear(4, 4)); step = lambda: model(torch.ones(2, 4)).sum().backward()",
    "DDP's hook": """
import dp.torch.ddp
model = DDP(torch.nn.Linear(4, 4)); model.register_comm_hook(None, dp.torch.ddp.average)
step = lambda: model(torch.ones(2, 4)).sum().backward()
""",
    "PowerSGD": """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
model = DDP(torch.nn.Linear(8, 8))
model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.5),
                         powerSGD_hook.powerSGD_hook)
step = lambda: model(torch.ones(2, 8)).square().sum().backward()
""",
    "FSDP2": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(4, 4)
fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
step = lambda: model(torch.ones(2, 4)).sum().backward()
""",
    "a functional collective": """
import torch.distributed._functional_collectives as functional
step = lambda: functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
""",
    "DTensor": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
mesh = init_device_mesh("cpu", (ranks,))
step = lambda: distribute_tensor(torch.ones(4), mesh, [Shard(0)]).full_tensor()
""",
    "DCP": """
import torch.distributed.checkpoint as dcp
step = lambda: dcp.save({"weights": torch.ones(4)}, checkpoint_id=place + ".saved")
""",
}
MINIMA = {"FSDP2": (2, 6), "DTensor": (2, 5)}
# Rank 1 does this where rank 0 makes its last step; and what rank 0 is told.
CAUSES = {
    "raises": ('raise ValueError("the data is bad")', "rank 1.*ValueError: the data is bad"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "rank 1"),
    "is late": ('store.wait(["told"], long)', f"rank 0: Timed out waiting {LIMIT_S}000ms for .* of the group of ranks"),
    "calls one too many": ('fails(lambda: dist.all_reduce(torch.ones(7, dtype=torch.int16)), "rank 0"); fails(step, "rank 0")',
                           "(rank 1.*rank 0|rank 0.*rank 1)"),
    "aborts": ('dp.torch.backend._default.abort("no more of this"); step = lambda: None', "rank 1.*no more of this"),
}
BODY = """
import re, dp.torch.backend
from torch.nn.parallel import DistributedDataParallel as DDP
long = datetime.timedelta(seconds=100)
def meet(name):
    store.set(f"{name} {here}", "yes")
    store.wait([f"{name} {rank}" for rank in range(ranks)], long)
meet("before")
<waiter>
meet("after")
for _ in range(4):  # PowerSGD compresses from the third on, and DDP makes its buckets anew behind the first
    step()
meet("done")
if here == 1:
    <cause>
else:
    try:
        step()
        raise AssertionError("nothing was told")
    except BaseException as error:  # torch's of a checkpoint is no Exception
        assert re.search(<words>, str(error), re.S), error
        assert isinstance(error, RuntimeError), type(error)
    store.set("told", "yes")
warnings.simplefilter("ignore")
dist.destroy_process_group()
print("told")
"""
# A training script whose rank 1 fails, for dprun.
SCRIPT = """
import os, signal, torch, torch.distributed as dist
import dp.torch.backend
dist.init_process_group("dp")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
try:
    for step in range(4):
        if step == 3 and dist.get_rank() == 1:
            <cause>
        model(torch.ones(2, 4)).sum().backward()
except RuntimeError as error:
    print("saves what it has:", error, flush=True)
    raise
"""


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Failures(unittest.TestCase):
    def run_one(self, waiter, cause):
        does, words = CAUSES[cause]
        body = BODY.replace("<waiter>", WAITERS[waiter]).replace("<cause>", does).replace("<words>", repr(words))
        with Job(body, seconds=LIMIT_S if cause == "is late" else 120) as job:
            codes, outputs = job.finish()
        if codes[0] != 0 or "told" not in outputs[0]:
            return f"{waiter}, and rank 1 {cause}: exit codes {codes}\n{outputs[0][-2000:]}\n{outputs[1][-1000:]}"
        if cause == "calls one too many" and codes[1] != 0:
            return f"{waiter}, and rank 1 {cause}: rank 1 ended with {codes[1]}\n{outputs[1][-2000:]}"
        return None

    def test_each_failure_reaches_whatever_waits(self):
        self.run_all([(waiter, cause) for waiter in WAITERS if VERSION >= MINIMA.get(waiter, MINIMUM) for cause in CAUSES])

    def test_some_failures_reach_what_waits(self):
        self.run_all([("DDP", "raises"), ("PowerSGD", "is killed"), ("then()", "is late"), ("a Work", "calls one too many"),
                      ("a functional collective", "aborts")])

    def run_all(self, wanted):
        Forker.only()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
            wrong = [text for text in threads.map(lambda one: self.run_one(*one), wanted) if text]
        self.assertEqual(wrong, [], f"{len(wrong)} of {len(wanted)}:\n" + "\n".join(wrong))

    def test_dprun_names_the_rank_at_fault(self):
        for cause, words in (('raise ValueError("the data is bad")', "ValueError: the data is bad"),
                             ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")):
            with tempfile.TemporaryDirectory(prefix="dp-torch-") as folder:
                script = os.path.join(folder, "train.py")
                with open(script, "w") as file:
                    file.write(SCRIPT.replace("<cause>", cause))
                done = subprocess.run([DPRUN, "-np", "2", "--no-prefix", sys.executable, script], text=True, timeout=240,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT})
            self.assertIn("saves what it has:", done.stdout)
            self.assertRegex(done.stdout, r"FAILED\s+rank 1 ", done.stdout)
            self.assertIn(words, done.stdout)
            self.assertNotIn("SIGSEGV", done.stdout)


if __name__ == "__main__":
    if not has_backend():
        print(f"no PyTorch of {MINIMUM[0]}.{MINIMUM[1]} or later is here")
        sys.exit(77)
    unittest.main()
