"""python/examples: GPT-2 by each of PyTorch's ways has the losses of the trainer in C, on one rank and on two; where a rank
has a part of the model or of the sequences, also those of gloo, bit by bit; the small network learns. Starts its own
ranks; skips where there is no PyTorch of 2.14 or later.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from measuring.process import rank_environments
from torch_ranks import ENVIRONMENT, Forker, Job

try:
    import torch
except ImportError:
    torch = None

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOP = os.path.dirname(PYTHON)
DPRUN = os.environ.get("DPRUN", os.path.join(TOP, "build-dev", "dprun"))
TRAINER = os.path.join(os.path.dirname(DPRUN), "gpt2")
EXAMPLES = os.path.join(PYTHON, "examples")
STEPS = 8
LIMIT = 600
# Those that share more than samples among ranks, with their flags; two stages of a rank want four layers.
PARTS = [("gpt2_tensor", "tiny", ()), ("gpt2_context", "tiny", ()),
         *(("gpt2_pipeline", preset, ("--schedule", schedule))
           for preset, schedule in (("tiny", "GPipe"), ("tiny", "1F1B"), ("quick", "Interleaved1F1B"),
                                    ("quick", "InterleavedZeroBubble"), ("quick", "ZBVZeroBubble")))]


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


class Example(Job):
    """A script of python/examples on two ranks that are forks of one process which has imported torch."""

    def __init__(self, name, *arguments):
        self._folder = tempfile.TemporaryDirectory(prefix="dp-torch-")
        program = f"import runpy, sys\nsys.path.insert(0, {EXAMPLES!r})\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        self.processes = [Forker.only().fork(program, [os.path.join(EXAMPLES, name + ".py"), *arguments], environment)
                          for environment in rank_environments(2, {**os.environ, **ENVIRONMENT})]


def example(ranks, name, *flags):
    return run(DPRUN, "-np", str(ranks), "--no-prefix", sys.executable,
               os.path.join(EXAMPLES, name + ".py"), *flags)


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.text = os.path.join(cls.folder.name, "text")
        with open(cls.text, "wb") as file:
            file.write(b"".join(b"The %d. line of a text. " % i for i in range(2000)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def losses(self, ranks, name):
        path = os.path.join(self.folder.name, f"{name}.{ranks}")
        out = example(ranks, name, "--data", self.text, "--steps", str(STEPS), "--csv", path)
        self.assertRegex(out, rf"learned .* on {ranks} ranks")
        return self.read(path)

    @staticmethod
    def read(path):
        with open(path) as file:
            return [float(line.split(",")[1]) for line in file]

    def losses_of_the_trainer(self, preset, steps=STEPS):
        """None: it is not built."""
        if not os.path.exists(TRAINER):
            return None
        log = os.path.join(self.folder.name, "log")
        run(TRAINER, "--preset", preset, "--data", self.text, "--steps", str(steps), "--device", "cpu",
            "--csv", log, "--log-every", "1", "--eval-batches", "1")
        with open(log) as file:
            names, *rows = [line.strip().split(",") for line in file]
        return [float(row[names.index("loss")]) for row in rows if row[0] != "0"]

    def compare(self, losses, wanted, case):
        self.assertEqual(len(losses), len(wanted))
        for step in range(len(wanted)):
            self.assertAlmostEqual(losses[step], wanted[step], delta=2e-4, msg=f"{case}, step {step}")

    def test_parts_of_the_model_or_of_sequences_have_the_losses_of_gloo(self):
        steps = 4
        trainer = {preset: self.losses_of_the_trainer(preset, steps) for preset in ("tiny", "quick")}
        for name, preset, flags in PARTS:
            found = {}
            for backend in ("dp", "gloo"):
                path = os.path.join(self.folder.name, f"{name}.{backend}")
                with Example(name, "--data", self.text, "--steps", str(steps), "--csv", path, "--preset", preset,
                             "--backend", backend, *flags) as job:
                    codes, outputs = job.finish()
                self.assertEqual(codes, [0, 0], "\n".join(outputs))
                found[backend] = self.read(path)
            self.assertEqual(found["dp"], found["gloo"], (name, *flags))
            self.compare(found["dp"], trainer[preset] or found["gloo"], (name, *flags))

    def test_gpt2_has_the_losses_of_the_trainer_in_c(self):
        found = {(name, ranks): self.losses(ranks, name)
                 for name, ranks in (("gpt2_hvd", 1), ("gpt2_hvd", 2), ("gpt2_ddp", 2), ("gpt2_fsdp", 2))}
        wanted = self.losses_of_the_trainer("tiny") or found["gpt2_hvd", 1]
        for case, losses in found.items():
            self.compare(losses, wanted, case)

    def test_the_small_network_learns(self):
        out = example(2, "mnist_like", "--pictures", "1024", "--epochs", "2")
        first, last = re.findall(r"loss ([\d.]+)", out)
        self.assertLess(float(last), float(first))

    @unittest.skipUnless(torch and importlib.util.find_spec("torch.distributed.run"), "this PyTorch has no torchrun")
    def test_torchrun_starts_them(self):
        """Its store meets the ranks of the group; libdp's own rendezvous those of hvd.init()."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc_per_node", "2",
                    "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--log_dir", self.folder.name]
        out = run(*launcher, os.path.join(EXAMPLES, "mnist_like.py"), "--pictures", "512", "--epochs", "1")
        self.assertIn("pictures on 2 ranks", out)
        out = run(*launcher, os.path.join(EXAMPLES, "gpt2_ddp.py"), "--data", self.text, "--steps", "2")
        self.assertRegex(out, "learned .* on 2 ranks")

    def test_metrics_reads_a_log(self):
        path = os.path.join(PYTHON, "examples", "metrics.py")
        specification = importlib.util.spec_from_file_location("metrics", path)
        metrics = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(metrics)
        log = os.path.join(self.folder.name, "log.jsonl")
        with open(log, "w", encoding="utf-8") as file:
            file.write('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25, "val_loss": 3}\n{"st')
        self.assertEqual(list(metrics.rows(log, False)),
                         [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25, "val_loss": 3}])
        growing = metrics.rows(log, True)
        self.assertEqual([next(growing)["step"], next(growing)["step"]], [1, 2])
        with open(log, "w", encoding="utf-8") as file:  # a run that is resumed cuts its log
            file.write('{"step": 2, "loss": 2}\n')
        self.assertEqual(next(growing), {"step": 2, "loss": 2})

    def test_help(self):
        out = run(sys.executable, os.path.join(EXAMPLES, "gpt2_hvd.py"), "--help")
        self.assertIn("--preset", out)


if __name__ == "__main__":
    if torch is None or tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14):
        print("no PyTorch of 2.14 or later is here")
        sys.exit(77)
    unittest.main()
