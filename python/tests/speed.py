#!/usr/bin/env python3
"""speed.py - what Python and PyTorch cost over libdp, beside gloo in the same processes.

    LIBDP_PATH=build/libdp.so.0 python/tests/speed.py [BUILD] [--only NAME] [--form native|python]

Starts two ranks by dprun of the build folder (build, by default), without which no figure is printed.
Ways take turns within one run, so that both see the machine as it is in that minute; figures are medians
of rank 0. Results of collectives are checked before they are timed. Run it by hand on an idle machine.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
WIDTH = 768


def gpt2_counts():
    """The 148 gradients of GPT-2 124M, in elements."""
    block = [3 * WIDTH, 3 * WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, 4 * WIDTH,
             4 * WIDTH * WIDTH, WIDTH, 4 * WIDTH * WIDTH, WIDTH, WIDTH]
    return [50257 * WIDTH, 1024 * WIDTH] + block * 12 + [WIDTH, WIDTH]


def paired(ways, rounds, repeat=1):
    """Median seconds of each way; ways take turns."""
    times = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(repeat):
                way()
            if turn >= 2:  # the first two warm up
                times[name].append((time.perf_counter() - begin) / repeat)
    return {name: statistics.median(found) for name, found in times.items()}


def say(what, figures, unit=1e6, word="us"):
    print(f"{what:44} " + "  ".join(f"{name} {unit * value:.1f} {word}" for name, value in figures.items()),
          flush=True)


class Rank:
    """One rank of the two; all of it is called by both."""

    def __init__(self, rank, place):
        import torch
        import torch.distributed as dist

        import dp.torch as hvd
        import dp.torch.backend  # noqa: F401  (makes the name known)
        self.torch, self.dist, self.hvd, self.rank = torch, dist, hvd, rank
        torch.set_num_threads(1)
        hvd.init()
        dist.init_process_group("dp", init_method="file://" + place, rank=rank, world_size=2)
        self.gloo = dist.new_group(backend="gloo")
        self.ours = dist.group.WORLD

    def small(self):
        """Four bytes, submit and wait in a loop."""
        torch, dist, hvd = self.torch, self.dist, self.hvd
        x = torch.ones(1)
        ways = {"hvd.allreduce_": lambda: hvd.allreduce_(x, op=hvd.Average),
                "the same, named": lambda: hvd.allreduce_(x, op=hvd.Average, name="x"),
                "dist.all_reduce dp": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX),
                "gloo": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.gloo)}
        return [("4 bytes", paired(ways, 20, 200), 1e6, "us")]

    def submit(self):
        """CPU time of the submitting thread for one of 148 small tensors; waits are not in it."""
        torch, hvd = self.torch, self.hvd
        tensors = [torch.ones(1) for _ in range(148)]
        names = [f"t{i}" for i in range(148)]
        spent, waited = [], []
        for _ in range(30):
            begin = time.thread_time()
            handles = [hvd.allreduce_async_(x, name=n, op=hvd.Average) for x, n in zip(tensors, names)]
            middle = time.thread_time()
            for handle in handles:
                hvd.synchronize(handle)
            spent.append((middle - begin) / 148)
            waited.append((time.thread_time() - middle) / 148)
        return [("one of 148 tensors, CPU time of Python",
                 {"submit": statistics.median(spent), "synchronize": statistics.median(waited)}, 1e6, "us")]

    def gradients(self):
        """GPT-2's 148 gradients, complete at once: DistributedOptimizer's hooks beside dp_gradients_*()."""
        import dp
        torch, hvd = self.torch, self.hvd
        context = hvd.runtime.world.context
        params = [torch.nn.Parameter(torch.zeros(n)) for n in gpt2_counts()]
        for param in params:
            param.grad = torch.full_like(param, self.rank + 1.0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0))
        gradients = dp.Gradients(context, [(f"g{i}", None, p.grad) for i, p in enumerate(params)])

        def by_optimizer():
            for param in params:
                optimizer._on_gradient(param)
            optimizer.synchronize()

        def by_c():
            for i in range(len(params)):
                gradients.ready(i)
            gradients.sync()

        by_optimizer()
        assert params[5].grad[0] == 1.5, params[5].grad[0]
        found = paired({"DistributedOptimizer": by_optimizer, "dp_gradients": by_c}, 8)
        gradients.destroy()
        return [("GPT-2's 148 gradients, ordinary memory", found, 1e3, "ms")]

    def ddp(self):
        """DDP of GPT-2's 148 parameters with a backward that computes nothing."""
        torch, dist = self.torch, self.dist
        from torch.nn.parallel import DistributedDataParallel

        class Gradient(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight, number):
                ctx.count = weight.numel()
                return number.clone()

            @staticmethod
            def backward(ctx, number):
                return torch.full((ctx.count,), float(number)), number

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(n)) for n in gpt2_counts())

            def forward(self, number):
                for weight in self.weights:
                    number = Gradient.apply(weight, number)
                return number

        def over(group):
            model = DistributedDataParallel(Model(), process_group=group, gradient_as_bucket_view=True)

            def step(sync=True):
                loss = model(torch.tensor(self.rank + 1.0, requires_grad=True)) * (self.rank + 1.0)
                loss.backward()
                return model

            return model, step

        ours, by_dp = over(self.ours)
        theirs, by_gloo = over(self.gloo)

        def alone():
            with ours.no_sync():
                by_dp()

        by_dp(), by_gloo()
        for model in (ours, theirs):
            assert float(model.module.weights[3].grad[0]) == 1.5, model.module.weights[3].grad[0]
        found = paired({"dp": by_dp, "gloo": by_gloo, "no exchange": alone}, 6)
        both = {name: found[name] - found["no exchange"] for name in ("dp", "gloo")}
        return [("DDP, GPT-2's gradients, whole backward", found, 1e3, "ms"),
                ("  of it communication", {**both, "gloo/dp": both["gloo"] / both["dp"] / 1e3}, 1e3, "ms")]

    def fsdp(self):
        """FSDP2 of eight layers of 4 M weights, a batch of one row: forward and backward."""
        torch, dist = self.torch, self.dist
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        def over(group, shared):
            torch.manual_seed(0)
            net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)])
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in (*net, net):
                fully_shard(layer, mesh=mesh)
            if shared:
                for layer in (*net, net):
                    layer.set_allocate_memory_from_process_group_for_comm(True)
            x = torch.ones(1, 2048)
            return lambda: net(x).sum().backward()

        ways = {"dp": over(self.ours, False), "dp, its memory": over(self.ours, True),
                "gloo": over(self.gloo, False)}
        return [("FSDP2, 8 x 4 M weights, a step", paired(ways, 8), 1e3, "ms")]


ALL = ("small", "submit", "gradients", "ddp", "fsdp")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--only", choices=ALL, action="append")
    parser.add_argument("--form", choices=("native", "python"), default="")
    parser.add_argument("--place", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.place is None:
        build = os.path.abspath(args.build)
        with tempfile.TemporaryDirectory(prefix="dp-speed-") as folder:
            environment = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1",
                           "LIBDP_PATH": os.path.join(build, "libdp.so.0"), "LIBDP_TORCH": args.form}
            return subprocess.run([os.path.join(build, "dprun"), "--no-prefix", "-np", "2", sys.executable,
                                   os.path.abspath(__file__), *sys.argv[1:], "--place",
                                   os.path.join(folder, "store")], env=environment).returncode
    rank = Rank(int(os.environ["DP_RANK"]), args.place)
    if rank.rank == 0:
        form = type(rank.ours._get_backend(rank.torch.device("cpu"))).__name__
        print(f"torch {rank.torch.__version__}, the backend's form: "
              f"{'Python' if form == 'DpBackend' else 'C++'}", flush=True)
    for name in args.only or ALL:
        for what, figures, unit, word in getattr(rank, name)():
            if rank.rank == 0:
                say(what, figures, unit, word)
    rank.dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
