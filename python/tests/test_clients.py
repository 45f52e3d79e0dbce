"""Frameworks over "dp" as their users start them, beside gloo: each program of clients/ prints equal results.

    python/tests/run.sh BUILD clients          under an interpreter (CLIENTS_PYTHON) that has the packages

nanoGPT and the examples of PyTorch are programs of repositories, in $CLIENTS_SOURCES (build-clients/). What is not
installed is skipped by name. Exits with 77 where there is nothing of it.
"""
import array
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from torch_ranks import ENVIRONMENT, PACKAGE

HERE = os.path.dirname(os.path.abspath(__file__))
DPRUN = os.environ.get("DPRUN", os.path.join(os.path.dirname(PACKAGE), "build-dev", "dprun"))
LIMIT = 300
RANKS = 2
SOURCES = os.environ.get("CLIENTS_SOURCES") or os.path.join(os.path.dirname(PACKAGE), "build-clients")
IMAGENET = os.path.join(SOURCES, "examples", "imagenet", "main.py")
NANOGPT = os.path.join(SOURCES, "nanoGPT")
# nanoGPT's train.py knows DDP on GPUs alone.
TO_CPU = {"device = f'cuda:{ddp_local_rank}'": "device = 'cpu'", "torch.cuda.set_device(device)": "pass",
          "DDP(model, device_ids=[ddp_local_rank])": "DDP(model)"}
TINY = ["--dataset=tiny", "--compile=False", "--dtype=float32", "--eval_iters=2", "--eval_interval=10", "--max_iters=30",
        "--batch_size=4", "--block_size=32", "--n_layer=2", "--n_head=2", "--n_embd=32",
        "--gradient_accumulation_steps=4", "--warmup_iters=5", "--lr_decay_iters=30"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
UNDER_DPRUN = [DPRUN, "-np", str(RANKS), "--no-prefix", sys.executable]
# package: program, what starts it, how it gets "dp" and gloo, how many ranks print the result.
CLIENTS = {
    "accelerate": ("accelerate_loop.py", TORCHRUN, (["-m", "dp.torch", "--as", "gloo"], []), ([], []), RANKS),
    "transformers": ("trainer.py", TORCHRUN, (["-m", "dp.torch", "--as", "gloo"], []), ([], []), RANKS),
    "lightning": ("lightning_ddp.py", UNDER_DPRUN, ([], []), (["dp"], ["gloo"]), RANKS),
    "deepspeed": ("deepspeed_zero.py", TORCHRUN, ([], []), (["dp"], ["gloo"]), 3 * RANKS),
    "ray": ("ray_train.py", [sys.executable], ([], []), (["dp"], ["gloo"]), 1),
}


def is_there(package):
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """What the installed wheel tells of itself, by which torch finds the backend's name."""
        folder = tempfile.TemporaryDirectory(prefix="dp-clients-")
        cls.addClassCleanup(folder.cleanup)
        cls.site = folder.name
        info = os.path.join(cls.site, "libdp-0.dist-info")
        os.mkdir(info)
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: libdp\nVersion: 0\n"),
                           ("entry_points.txt", "[torch.distributed.backends]\ndp = dp.torch.backend:register\n")):
            with open(os.path.join(info, name), "w", encoding="ascii") as file:
                file.write(text)

    def run_to_its_end(self, command, cwd=None):
        """What it and its ranks print."""
        environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{PACKAGE}:{self.site}", "ACCELERATE_USE_CPU": "true",
                       "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_MODE": "disabled"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                                   cwd=cwd, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            self.fail(f"did not end in {LIMIT} s\n{out[-4000:]}")
        self.assertEqual(process.returncode, 0, out[-4000:])
        return out

    def run_one(self, package, which):
        program, start, before, behind, lines = CLIENTS[package]
        out = self.run_to_its_end([*start, *before[which], os.path.join(HERE, "clients", program), *behind[which]])
        found = [line[line.index("RESULT"):] for line in out.splitlines() if "RESULT" in line]
        self.assertEqual(len(found), lines, out[-4000:])
        carried = {line[line.index("CARRIED"):] for line in out.splitlines() if "CARRIED" in line}
        self.assertEqual(carried, {"CARRIED other" if which else "CARRIED dp"}, out[-4000:])
        return sorted(found)

    @unittest.skipUnless(is_there("accelerate"), "accelerate is not installed")
    def test_accelerate_s_own_scripts_pass(self):
        for name in ("test_script", "test_ops", "test_sync"):
            self.run_to_its_end([*TORCHRUN, "-m", "dp.torch", "--as", "gloo", "-m", f"accelerate.test_utils.scripts.{name}"])


    def compare(self, count, lines, folder, *command):
        """What the program prints of its training is the same over gloo: `count` lines, found by `lines`."""
        dp, gloo = (sorted(re.findall(lines, self.run_to_its_end([*UNDER_DPRUN, *command, backend], folder)))
                    for backend in ("dp", "gloo"))
        self.assertEqual(len(dp), count, dp)
        self.assertEqual(dp, gloo)

    @unittest.skipUnless(os.path.exists(IMAGENET) and is_there("torchvision"), "PyTorch's example of imagenet is not here")
    def test_imagenet_gets_the_digits_of_gloo(self):
        from PIL import Image
        with tempfile.TemporaryDirectory() as folder:
            for part in ("train", "val"):
                for kind in ("cat", "dog"):
                    os.makedirs(os.path.join(folder, "data", part, kind))
                    for i in range(4 * RANKS):
                        image = Image.frombytes("RGB", (32, 32), random.Random(f"{part}{kind}{i}").randbytes(3 * 32 * 32))
                        image.save(os.path.join(folder, "data", part, kind, f"{i}.png"))
            self.compare(2 * RANKS * 2 + RANKS, r"(?:Epoch|Test): \[.*?\]|Loss.*| \* +Acc@1.*", folder, IMAGENET, "data", "-a",
                         "shufflenet_v2_x0_5", "-b", str(4 * RANKS), "-j", "0", "--epochs", "1", "--seed", "1", "-p", "1",
                         "--dist-url", "env://", "--dist-backend")

    @unittest.skipUnless(os.path.exists(NANOGPT), "nanoGPT is not here")
    def test_nanogpt_gets_the_digits_of_gloo(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "data", "tiny"))
            for name in ("model.py", "configurator.py"):
                shutil.copy(os.path.join(NANOGPT, name), folder)
            with open(os.path.join(NANOGPT, "train.py")) as file:
                program = file.read()
            for line, instead in TO_CPU.items():
                self.assertIn(line, program)
                program = program.replace(line, instead)
            # Its flags are --name=value.
            with open(os.path.join(folder, "train.py"), "w") as file:
                file.write("import sys\nsys.argv[-1] = f'--backend={sys.argv[-1]}'\n" + program)
            for part, count in (("train", 20000), ("val", 4000)):
                with open(os.path.join(folder, "data", "tiny", part + ".bin"), "wb") as file:
                    array.array("H", random.Random(part).choices(range(64), k=count)).tofile(file)
            self.compare(31 + 4, r"iter \d+: loss [^,]*|step \d+: .*", folder, "train.py", *TINY)


def add(package):
    @unittest.skipUnless(is_there(package), f"{package} is not installed")
    def test(self):
        self.assertEqual(self.run_one(package, 0), self.run_one(package, 1))
    setattr(Clients, f"test_{package}_gets_the_results_of_gloo", test)


for name in CLIENTS:
    add(name)

if __name__ == "__main__":
    if not any(map(is_there, CLIENTS)) and not os.path.exists(SOURCES):
        print(f"none of {', '.join(CLIENTS)} is installed, and nothing is in {SOURCES}")
        sys.exit(77)
    unittest.main(verbosity=2)
