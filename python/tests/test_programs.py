"""Programs as users start them: a script of Horovod's by `python -m dp.horovod`, one of torch.distributed by
`python -m dp.torch`, and training under `dprun --timeline` with the marks of dp.torch.timeline. Starts its own ranks; skips where there is no PyTorch.
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from torch_ranks import ENVIRONMENT, PACKAGE, VERSION, has_backend

DPRUN = os.environ.get("DPRUN", os.path.join(os.path.dirname(PACKAGE), "build-dev", "dprun"))
LIMIT = 240
RANKS = 2
STEPS = 3
# Of Horovod's world; it finds its neighbour, and is told about elastic jobs.
SCRIPT = """
import sys
import torch
import horovod.torch as hvd
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import ModelStateHandler, TorchState
import neighbour

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
refused = 0
for kind in (ElasticSampler, ModelStateHandler, TorchState):
    try:
        kind(None)
    except NotImplementedError as error:
        refused += "elastic training is not part of libdp" in str(error)
sys.stdout.write(f"{neighbour.NAME} {sys.argv[1:]} {total:.0f} {refused}\\n")
"""
# What libdp lacks of Horovod: each line names the way to go on.
ABSENT = """
import sys
import horovod
for act in (lambda: __import__("horovod.tensorflow"), lambda: __import__("horovod.spark.torch"),
            lambda: horovod.run(print, np=2), lambda: __import__("horovod.runner.launch")):
    try:
        act()
    except (ImportError, NotImplementedError) as error:
        sys.stdout.write(f"told {error}\\n")
"""
ELASTIC = """
import sys
import horovod.torch as hvd
sys.stdout.write("began\\n")
if %s:
    @hvd.elastic.run
    def train(state):
        pass
sys.stdout.write("ended\\n")
"""
# Of torch.distributed; arguments: what init_process_group() is called with.
UNCHANGED = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group(*sys.argv[1:])
total = torch.ones(1)
dist.all_reduce(total)
group = dist.new_group([1, 0])
dist.all_reduce(total, group=group)
kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__
sys.stdout.write(f"{dist.get_backend()} {total.item():.0f} {kind.startswith('dp.') or kind == 'torch._C._distributed_c10d'}\\n")
dist.destroy_process_group()
"""
TRAINING = """
import torch
from dp.torch import timeline
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
%s
timeline.watch(model, optimizer)
for step in range(%d):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
%s
"""
HOROVOD = ("""
import dp.torch as hvd
hvd.init()
model, optimizer = net, hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1),
                                                 named_parameters=net.named_parameters())
""", "hvd.shutdown()")
DDP = ("""
import dp.torch.backend, dp.torch.ddp, torch.distributed as dist
dist.init_process_group("dp")
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
""", "dist.destroy_process_group()")


# What stands before each example of docs/pytorch.md in a program, by a text that is in the example.
SETTING = """
import torch
torch.manual_seed(0)
def make_model():
    return torch.nn.Linear(4, 2)
def backward():
    return model(torch.ones(3, 4)).square().mean()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BEFORE = {
    "hvd.broadcast_optimizer_state(optimizer": SETTING,
    "scaler = hvd.GradScaler()": SETTING + "import dp.torch as hvd\nhvd.init()\noptimizer.zero_grad()\nloss = backward()\n",
    'dist.init_process_group("dp")': SETTING,
    "timeline.watch(": SETTING + "import dp.torch as hvd\nhvd.init()\n",
    "world.empty(1000)": "",
}


def run(folder, *command):
    done = subprocess.run([DPRUN, "-np", str(RANKS), "--no-prefix", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT, cwd=folder,
                          env={**os.environ, **ENVIRONMENT})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dp-programs-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def test_a_script_of_horovod_elsewhere_imports_its_neighbours(self):
        script = self.write("of/training.py", SCRIPT)
        self.write("of/neighbour.py", "NAME = 'found'\n")
        self.write("neighbour.py", "NAME = 'of the current folder'\n")
        out = run(self.folder, sys.executable, "-m", "dp.horovod", script, "--epochs", "2")
        self.assertEqual(out.splitlines().count(f"found ['--epochs', '2'] {RANKS} 3"), RANKS, out)

    @unittest.skipUnless(has_backend(), "this PyTorch is too old for the backend")
    def test_the_examples_of_the_page_run_as_they_stand(self):
        with open(os.path.join(os.path.dirname(PACKAGE), "docs", "pytorch.md"), encoding="utf-8") as file:
            examples = re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(examples), len(BEFORE))
        for number, example in enumerate(examples):
            before = [text for found, text in BEFORE.items() if found in example]
            self.assertEqual(len(before), 1, f"nothing is known of this example:\n{example}")
            script = self.write(f"example{number}.py", before[0] + example)
            run(self.folder, sys.executable, script)

    def alone(self, *command):
        """Exit code and output of a program without ranks."""
        done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=LIMIT, cwd=self.folder, env={**os.environ, **ENVIRONMENT})
        return done.returncode, done.stdout

    def test_parts_of_horovod_that_are_absent_name_the_way_to_go_on(self):
        self.write("absent.py", ABSENT)
        for how in (("absent.py",), ("-m", "absent")):
            code, out = self.alone("dp.horovod", *how)
            self.assertEqual((code, out.count("told ")), (0, 4), out)
            self.assertEqual(out.count("Horovod's API for PyTorch (horovod.torch), and none for"), 2, out)
            self.assertEqual(out.count("dprun -np N python3 -m dp.horovod train.py"), 2, out)
        self.assertEqual(self.alone("dp.horovod", "-m")[0], 2)
        code, out = self.alone("dp.horovod", "none.py")
        self.assertEqual((code, out.count("Traceback")), (1, 0), out)
        self.assertIn("none.py", out)

    def test_an_elastic_program_is_refused_before_it_begins(self):
        self.write("elastic.py", ELASTIC % "__name__ == '__main__'")
        code, out = self.alone("dp.horovod", "elastic.py")
        self.assertEqual((code, "began" in out), (1, False), out)
        self.assertIn("elastic training is not part of libdp", out)
        self.write("chosen.py", ELASTIC % "len(sys.argv) > 1")  # elastic by an option, which is not given
        code, out = self.alone("dp.horovod", "chosen.py")
        self.assertEqual((code, "ended" in out), (0, True), out)

    @unittest.skipUnless(has_backend() and VERSION >= (2, 14), "this PyTorch takes no backend under gloo's name")
    def test_a_program_of_torch_distributed_gets_dp_under_any_name(self):
        self.write("unchanged.py", UNCHANGED)
        for arguments, asked, name in ((["unchanged.py"], [], "undefined"), (["-m", "unchanged"], [], "undefined"),
                                       (["--as", "gloo,nccl", "unchanged.py"], ["gloo"], "gloo"),
                                       (["--as=gloo,nccl", "unchanged.py"], ["cpu:gloo,cuda:nccl"], "cpu:gloo,cuda:nccl")):
            out = run(self.folder, sys.executable, "-m", "dp.torch", *arguments, *asked)
            self.assertEqual(out.splitlines().count(f"{name} 4 True"), RANKS, out)
        for wrong in (["--as", "foo", "unchanged.py"], ["--as"], ["-m"], [], ["--other", "unchanged.py"]):
            code, out = self.alone("dp.torch", *wrong)
            self.assertEqual((code, out.count("Traceback")), (2, 0), out)

    def recorded(self, parts, hook=""):
        """What each rank recorded of the training: how often each (category, name) came, by rank."""
        script = self.write("training.py", TRAINING % (parts[0] + hook, STEPS, parts[1]))
        recording = os.path.join(self.folder, "timeline.json")
        run(self.folder, "--timeline", recording, sys.executable, script)
        with open(recording, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        found = collections.defaultdict(collections.Counter)
        for event in events:
            if event["ph"] == "X":
                found[event["pid"]][event["cat"], event["name"]] += 1
        self.assertEqual(len(found), RANKS)
        for counts in found.values():
            for name in ("forward", "backward", "optimizer"):
                self.assertEqual(counts["span", name], STEPS, counts)
            for step in range(1, STEPS + 1):
                self.assertEqual(counts["step", f"step {step}"], 1, counts)
        return found.values()

    def test_horovod_s_training_is_marked_and_its_gradients_have_names(self):
        for counts in self.recorded(HOROVOD):
            named = sum(count for (category, name), count in counts.items() if category == "submit" and "weight" in name)
            self.assertEqual(named, STEPS, counts)

    @unittest.skipUnless(has_backend(), "this PyTorch is too old for the backend")
    def test_ddp_is_marked_and_its_buckets_have_names(self):
        for counts in self.recorded(DDP):
            named = sum(count for (category, name), count in counts.items()
                        if category == "submit" and "weight" in name and "bias" in name)
            self.assertEqual(named, STEPS, counts)

    @unittest.skipUnless(has_backend(), "this PyTorch is too old for the backend")
    def test_a_hook_of_the_program_is_left_and_its_buckets_have_no_names(self):
        for hook in ("model.register_comm_hook(None, dp.torch.ddp.average)",
                     "model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)"):
            for counts in self.recorded(DDP, hook):
                self.assertFalse([name for _, name in counts if "weight" in name])


if __name__ == "__main__":
    if VERSION == (0, 0):
        print("no PyTorch is here")
        sys.exit(77)
    unittest.main()
