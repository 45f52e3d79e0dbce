"""What speed.py times, on one of two ranks: each function of Ways makes figures, all ranks call it.

Ways take turns within a function, so that both sides of a ratio see the machine as it is in that minute.
Results are checked before they are timed. Rank 0 prints each figure as a line of JSON.
"""
import argparse
import json
import os
import statistics
import sys
import time

WIDTH = 768
TENSORS = 148  # gradients of GPT-2


def gpt2_counts():
    """The 148 gradients of GPT-2 124M, in elements."""
    block = [3 * WIDTH, 3 * WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, 4 * WIDTH,
             4 * WIDTH * WIDTH, WIDTH, 4 * WIDTH * WIDTH, WIDTH, WIDTH]
    return [50257 * WIDTH, 1024 * WIDTH] + block * 12 + [WIDTH, WIDTH]


def in_turns(ways, rounds, repeat=1, warm=2):
    """Seconds of each way in each round; ways take turns. As many rounds before them as `warm` says are not told."""
    times = {name: [] for name in ways}
    for turn in range(warm + rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(repeat):
                way()
            if turn >= warm:
                times[name].append((time.perf_counter() - begin) / repeat)
    return times


def paired(ways, rounds, repeat=1, warm=2):
    """Median seconds of each way; ways take turns."""
    return {name: statistics.median(found) for name, found in in_turns(ways, rounds, repeat, warm).items()}


def paired_calls(ways, rounds, repeats):
    """Median seconds of a single call of each way; ways take turns, each with its number of calls, of which the
    first tenth warms up: behind another way, Linux may have both ranks on one core for milliseconds."""
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            for call in range(repeats[name]):
                begin = time.perf_counter()
                way()
                if call >= repeats[name] // 10:
                    times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def tell(rank, name, **seconds):
    """A figure of speed.py's list, in seconds."""
    if rank == 0:
        print(json.dumps({"figure": name, **seconds}), flush=True)


class Ways:
    def __init__(self, rank, init_method):
        import torch
        import torch.distributed as dist

        import dp.torch.backend  # noqa: F401  (makes the name known)
        self.torch, self.dist, self.rank = torch, dist, rank
        torch.set_num_threads(1)
        dist.init_process_group("dp", init_method=init_method, rank=rank, world_size=2)
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo")
        if rank == 0:
            print(json.dumps({"torch": torch.__version__}), flush=True)

    def hvd(self):
        """Horovod's API in its own world, which dprun describes."""
        import dp.torch as hvd
        hvd.init()
        return hvd

    # ---- Small tensors ------------------------------------------------------------------------

    def small(self):
        """Four bytes, submit and wait in a loop: the median call."""
        torch, dist, hvd = self.torch, self.dist, self.hvd()
        x = torch.ones(1)
        found = paired_calls({
            "hvd": lambda: hvd.allreduce_(x, op=hvd.Average, name="x"),
            "dist": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX),
            "gloo": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.gloo)},
            20, {"hvd": 4000, "dist": 2000, "gloo": 200})
        assert x[0] == 1.0, x
        tell(self.rank, "4 B, hvd", ours=found["hvd"], beside=found["gloo"])
        tell(self.rank, "4 B, dist", ours=found["dist"], beside=found["gloo"])

    def unrecorded(self):
        """The same without torch's flight recorder, which PyTorch 2.15 attaches to every backend."""
        torch, dist = self.torch, self.dist
        x = torch.ones(1)
        found = paired_calls({"dist": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX),
                              "gloo": lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX, group=self.gloo)},
                             20, {"dist": 2000, "gloo": 200})
        tell(self.rank, "4 B, dist, unrecorded", ours=found["dist"], beside=found["gloo"])

    def submit(self):
        """CPU time of the submitting thread for each of 148 small tensors; waits are another figure."""
        torch, hvd = self.torch, self.hvd()
        from dp.torch import reduction
        names = hvd.runtime.global_process_set.names
        tensors = [torch.ones(1) for _ in range(TENSORS)]
        given = [f"t{i}" for i in range(TENSORS)]
        spent = {"submit": [], "wait": [], "bare": []}
        for turn in range(42):
            begin = time.thread_time()
            handles = [hvd.allreduce_async_(x, name=n, op=hvd.Average) for x, n in zip(tensors, given)]
            middle = time.thread_time()
            for handle in handles:
                hvd.synchronize(handle)
            end = time.thread_time()
            # The same calls of libdp again, without anything around them.
            submissions = [names.submissions[name] for name in given]
            again = time.thread_time()
            for submission in submissions:
                reduction._allreduce(*submission.arguments)
            bare = time.thread_time() - again
            for submission, x in zip(submissions, tensors):
                reduction.Reduction(submission.context, submission.handle.value, x, x).wait()
            if turn >= 2:
                for name, seconds in (("submit", middle - begin), ("wait", end - middle), ("bare", bare)):
                    spent[name].append(seconds / TENSORS)
        found = {name: statistics.median(times) for name, times in spent.items()}
        tell(self.rank, "submit", ours=found["submit"], beside=found["bare"])
        tell(self.rank, "synchronize", ours=found["wait"])

    # ---- GPT-2's gradients --------------------------------------------------------------------

    def gradients(self):
        """GPT-2's 148 gradients, complete at once: DistributedOptimizer's hooks beside dp_gradients_*()."""
        torch, hvd = self.torch, self.hvd()
        self._gradients(hvd, "optimizer", False, lambda count: torch.zeros(count))
        context = hvd.runtime.world.context
        self._gradients(hvd, "optimizer in place", True, lambda count: torch.frombuffer(
            context.alloc(4 * count), dtype=torch.float32))

    def _gradients(self, hvd, name, in_place, make):
        """make(count): memory of dp_gradients'."""
        import dp
        torch, value = self.torch, self.rank + 1.0
        params = [torch.nn.Parameter(torch.empty(n)) for n in gpt2_counts()]
        made = [torch.full_like(param, value) for param in params]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.0), in_place=in_place)
        functions = optimizer._functions  # what autograd calls
        theirs = [make(n) for n in gpt2_counts()]
        gradients = dp.Gradients(hvd.runtime.world.context,
                                 [(f"{name} {i}", None, one) for i, one in enumerate(theirs)])

        class Backward(torch.autograd.Function):
            """Calls what autograd calls when each gradient is there."""

            @staticmethod
            def forward(ctx, number):
                return number.clone()

            @staticmethod
            def backward(ctx, number):
                for param, on_gradient in functions:
                    on_gradient(param)

        def by_optimizer():
            Backward.apply(torch.zeros(1, requires_grad=True)).backward()
            optimizer.synchronize()

        def as_autograd():  # leaves gradients in memory of its own in each step
            for param, gradient in zip(params, made):
                param.grad = gradient
            by_optimizer()

        def by_c():
            for i in range(len(params)):
                gradients.ready(i)
            gradients.sync()

        for _ in range(3):  # the arena comes with the third step
            as_autograd()
        assert in_place == (optimizer._arena is not None)
        assert in_place or params[5].grad[0] == 1.5, params[5].grad[0]
        for gradient in made:
            gradient.fill_(value)
        as_autograd()
        assert params[5].grad[0] == 1.5, params[5].grad[0]
        for one in theirs:
            one.fill_(value)
        by_c()
        assert theirs[5][0] == 1.5, theirs[5][0]
        ways = {"ours": by_optimizer, "beside": by_c}
        if in_place:
            ways["autograd"] = as_autograd
        found = paired(ways, 30)
        tell(self.rank, name, ours=found["ours"], beside=found["beside"])
        if in_place:
            tell(self.rank, "optimizer, autograd's gradients", ours=found["autograd"], beside=found["beside"])
        gradients.destroy()

    # ---- torch.distributed --------------------------------------------------------------------

    def _model(self):
        """GPT-2's 148 parameters with a backward that computes nothing but fills gradients."""
        torch = self.torch

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

        return Model()

    def _ddp(self, group, hook=None):
        """A step of DDP over the group, and the model."""
        torch = self.torch
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(self._model(), process_group=group, gradient_as_bucket_view=True)
        if hook is not None:
            model.register_comm_hook(group, hook)

        def step():
            (model(torch.tensor(1.0, requires_grad=True)) * (self.rank + 1.0)).backward()

        step()
        found = float(model.module.weights[3].grad[0])
        assert found == 1.5, found
        return model, step

    def _own_group(self):
        """For a second model: the operations of a group repeat as those of one model do."""
        return self.dist.new_group(backend="dp")

    def ddp(self):
        """DDP of GPT-2's gradients; communication is what a backward takes more than one without exchange."""
        from dp.torch.ddp import average
        ours, by_dp = self._ddp(self.ours)
        _, averaged = self._ddp(self._own_group(), average)
        _, by_gloo = self._ddp(self.gloo)

        def alone():
            with ours.no_sync():
                by_dp()

        times = in_turns({"dp": by_dp, "averaged": averaged, "gloo": by_gloo, "alone": alone}, 10)

        def more(way):  # than alone, in the same round: the machine's speed drifts
            return statistics.median(whole - alone for whole, alone in zip(times[way], times["alone"]))

        for name, way in (("DDP", "dp"), ("DDP, averaged", "averaged")):
            tell(self.rank, name, ours=more(way), beside=more("gloo"))
        tell(self.rank, "DDP, whole", ours=statistics.median(times["dp"]), beside=statistics.median(times["gloo"]))

    def gpt2(self):
        """A training step of python/examples, by Horovod's API and by DDP over dp, and the CPU time of each."""
        torch, dist, hvd = self.torch, self.dist, self.hvd()
        sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples"))
        import gpt2
        sys.argv[1:] = ["--preset", "tiny", "--steps", "1000"]
        options, group = gpt2.options_of(""), self._own_group()
        samples, local, busy = gpt2.Samples(options), options.batch // 2, {"hvd": [], "dp": []}

        def way(name, model, optimizer, clip, average):
            step = 0

            def train():
                nonlocal step
                inputs, targets = samples.take(step * options.batch + self.rank * local, local)
                begin, step = time.process_time(), step + 1
                loss = model(inputs, targets)
                loss.backward()
                clip()
                optimizer.step()
                optimizer.zero_grad()
                average(loss.detach())
                busy[name].append(time.process_time() - begin)

            return train

        mine, theirs = gpt2.model_of(options), gpt2.model_of(options)
        reduced = hvd.DistributedOptimizer(gpt2.adamw(mine), named_parameters=mine.named_parameters(), clip=gpt2.CLIP)
        ddp = torch.nn.parallel.DistributedDataParallel(theirs, process_group=group, gradient_as_bucket_view=True)
        found = paired({
            "hvd": way("hvd", mine, reduced, lambda: None, lambda loss: hvd.allreduce(loss, name="loss")),
            "dp": way("dp", ddp, gpt2.adamw(theirs),
                      lambda: torch.nn.utils.clip_grad_norm_(theirs.parameters(), gpt2.CLIP),
                      lambda loss: dist.all_reduce(loss, dist.ReduceOp.AVG, group=group))}, 20, repeat=10)
        assert all(torch.allclose(one, other, atol=0.05) for one, other in zip(mine.parameters(), theirs.parameters()))
        tell(self.rank, "GPT-2", ours=found["hvd"], beside=found["dp"])
        tell(self.rank, "GPT-2, CPU", ours=statistics.median(busy["hvd"]), beside=statistics.median(busy["dp"]))

    def fsdp(self):
        """FSDP2 of eight layers of 4 M weights, a batch of one row: forward and backward."""
        torch = self.torch
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

        found = paired({"dp": over(self.ours, False), "shared": over(self._own_group(), True),
                        "gloo": over(self.gloo, False)}, 10)
        tell(self.rank, "FSDP2", ours=found["dp"], beside=found["gloo"])
        tell(self.rank, "FSDP2, its memory", ours=found["shared"], beside=found["gloo"])

    def link(self):
        """DDP's fp16 hook over gloo, and DDP over dp with DP_WIRE=fp16, in two namespaces."""
        from dp.torch.ddp import average
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        _, by_dp = self._ddp(self.ours)
        _, averaged = self._ddp(self._own_group(), average)
        _, by_gloo = self._ddp(self.gloo, default_hooks.fp16_compress_hook)
        # libdp compresses a sum once its step is known to repeat, so the first steps send fp32; they are not told.
        found = paired({"dp": by_dp, "averaged": averaged, "gloo": by_gloo}, 7, warm=8)
        tell(self.rank, "link", ours=found["dp"], beside=found["gloo"])
        tell(self.rank, "link, averaged", ours=found["averaged"], beside=found["gloo"])


def horovod():
    """Four bytes by Horovod itself, started by its own launcher."""
    import horovod.torch as hvd
    import torch
    hvd.init()
    torch.set_num_threads(1)
    x = torch.ones(1)
    found = paired_calls({"hvd": lambda: hvd.allreduce_(x, op=hvd.Average, name="x")}, 20, {"hvd": 50})
    tell(hvd.rank(), "Horovod", ours=found["hvd"])
    hvd.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--init-method")
    parser.add_argument("figures", nargs="+")
    args = parser.parse_args()
    if args.figures == ["horovod"]:
        return horovod()
    ways = Ways(int(os.environ["RANK"]), args.init_method)
    for name in args.figures:
        getattr(ways, name)()
    return ways.dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
