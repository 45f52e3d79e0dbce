"""torch_gpt2.py - trains GPT-2 as a peer does, over the same weights, samples and rates as ours, and
writes a summary as gpt2 --summary does.

    [RANK= WORLD_SIZE= MASTER_ADDR= MASTER_PORT=] torch_gpt2.py MODE JOB.json

JOB is written by bench.py. Modes: single, ddp, ddp-bf16, ddp-fp16, zero1, fsdp2, horovod, deepspeed.
Only rank 0 writes. Gradients are averaged however the mode does it; where a library over gloo sums
instead of averaging, the loss is divided before, and the norm in the summary shows either.

The norm in the summary is computed here, in fp64 and outside of what is timed, from the gradients
that the mode then clips by its own means: clip_grad_norm_() adds the squares of a tensor in fp32,
and of the 38.6 million elements of GPT-2 124M's embedding it loses 0.1 to 0.3 percent.
"""
import contextlib
import json
import math
import os
import resource
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import model as gpt2  # noqa: E402


def read_tokens(path):
    """A text's bytes, or the tokens of a file as llm.c writes them."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if len(data) >= 1024 and struct.unpack("<i", data[:4])[0] == 20240520:
        return torch.frombuffer(data, dtype=torch.int16, offset=1024).to(torch.int64) & 0xffff
    return torch.frombuffer(data, dtype=torch.uint8).to(torch.int64)


def memory():
    """(PSS, bytes that no other process maps) of this process."""
    pss = own = 0.0
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[0] == "Pss:":
                pss = 1024.0 * float(words[1])
            elif words[0] in ("Private_Clean:", "Private_Dirty:"):
                own += 1024.0 * float(words[1])
    return pss, own


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Plain:
    """One process; and what the other modes share."""

    def __init__(self, job):
        self.job = job
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.scaler = None
        self.precision = None
        self.divisor = 1.0
        self.norm = 0.0  # of this step's averaged gradients, before clipping
        self.measuring = 0.0  # seconds of the run that went into it; no time contains them

    def prepare(self, model):
        self.model = self.trained = model
        self.optimizer = self.adamw(model)

    def adamw(self, model):
        return torch.optim.AdamW(gpt2.groups_of(model, self.job["decay"]), lr=1e-4,
                                 betas=tuple(self.job["betas"]), eps=1e-8)

    def casts(self):
        if self.precision is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=self.precision)

    def backward(self, loss):
        loss = loss / self.divisor
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def measure_norm(self):
        """self.norm, from gradients that are complete; adds to self.measuring."""
        began = time.monotonic()
        squares = 0.0
        for weight in self.trained.parameters():
            if weight.grad is not None:
                part = weight.grad.to_local() if hasattr(weight.grad, "to_local") else weight.grad
                squares += float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
        squares = self.sum_of_parts(squares)
        self.norm = math.sqrt(squares) if math.isfinite(squares) else squares
        self.measuring += time.monotonic() - began

    def sum_of_parts(self, squares):
        """Over all gradients, of those that are this rank's; each rank has all of them here."""
        return squares

    def update(self):
        """Clips and steps; (loss scale, whether the step was skipped)."""
        scale = 1.0
        if self.scaler is not None:
            scale = self.scaler.get_scale()
            self.scaler.unscale_(self.optimizer)
        self.measure_norm()
        torch.nn.utils.clip_grad_norm_(self.trained.parameters(), self.job["clip"])
        skipped = False
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = self.scaler.get_scale() < scale
        self.optimizer.zero_grad(set_to_none=True)
        return scale, skipped

    def set_rate(self, rate):
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def gather(self, value):
        """A number of every rank, in their order."""
        if self.size == 1:
            return [value]
        parts = torch.zeros(self.size, dtype=torch.float64)
        parts[self.rank] = value
        dist.all_reduce(parts)
        return parts.tolist()

    def close(self):
        if self.size > 1:
            dist.barrier()


class DDP(Plain):
    def __init__(self, job, precision=None, scales=False):
        super().__init__(job)
        if self.size > 1:
            dist.init_process_group("gloo")
        self.precision = precision
        if scales:
            self.scaler = torch.amp.GradScaler("cpu")

    def prepare(self, model):
        super().prepare(model)
        if self.size > 1:
            self.trained = torch.nn.parallel.DistributedDataParallel(
                model, gradient_as_bucket_view=True)


class Zero1(DDP):
    def adamw(self, model):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        if self.size == 1:
            return super().adamw(model)
        return ZeroRedundancyOptimizer(
            gpt2.groups_of(model, self.job["decay"]), optimizer_class=torch.optim.AdamW, lr=1e-4,
            betas=tuple(self.job["betas"]), eps=1e-8)


class FSDP2(DDP):
    def prepare(self, model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        self.model = self.trained = model
        if self.size > 1:
            self.divisor = self._average_of_ones()
            mesh = init_device_mesh("cpu", (self.size,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.optimizer = self.adamw(model)

    def sum_of_parts(self, squares):
        return sum(self.gather(squares))

    def _average_of_ones(self):
        """1, or the number of ranks where this gloo sums when it is asked for an average."""
        part = torch.zeros(1)
        dist.reduce_scatter_tensor(part, torch.ones(self.size), op=dist.ReduceOp.AVG)
        return float(part)


class Horovod(Plain):
    def __init__(self, job):
        import horovod.torch as hvd
        super().__init__(job)
        self.hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def prepare(self, model):
        self.model = self.trained = model
        self.optimizer = self.hvd.DistributedOptimizer(
            self.adamw(model), named_parameters=model.named_parameters())
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def update(self):
        self.optimizer.synchronize()
        self.measure_norm()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job["clip"])
        with self.optimizer.skip_synchronize():
            self.optimizer.step()
        self.optimizer.zero_grad()
        return 1.0, False

    def gather(self, value):
        parts = torch.zeros(self.size, dtype=torch.float64)
        parts[self.rank] = value
        return self.hvd.allreduce(parts, op=self.hvd.Sum, name="figures").tolist()

    def close(self):
        self.hvd.shutdown()


class DeepSpeed(DDP):
    def prepare(self, model):
        import deepspeed
        # Kernels for inference, which would be compiled for minutes when ranks meet; training over
        # gloo does not call them.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.model = model
        batch = self.job["batch"]
        self.trained, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=self.adamw(model), dist_init_required=False,
            config={"train_batch_size": batch,
                    "train_micro_batch_size_per_gpu": batch // self.size,
                    "gradient_clipping": self.job["clip"], "zero_optimization": {"stage": 2},
                    "zero_allow_untested_optimizer": True})

    def backward(self, loss):
        self.trained.backward(loss)

    def update(self):
        self.trained.step()
        self.norm = float(self.trained.get_global_grad_norm())  # it has freed the gradients by now
        return 1.0, False


MODES = {
    "single": Plain,
    "ddp": DDP,
    "ddp-bf16": lambda job: DDP(job, torch.bfloat16),
    "ddp-fp16": lambda job: DDP(job, torch.float16, scales=True),
    "zero1": Zero1,
    "fsdp2": FSDP2,
    "horovod": Horovod,
    "deepspeed": DeepSpeed,
}
COLUMNS = ["step", "seconds", "ms", "forward_ms", "backward_ms", "optimizer_ms", "loss", "lr",
           "norm", "clip", "scale", "skipped"]


def train(way, job):
    """Columns of all steps. Loss and bookkeeping are outside of what is timed."""
    tokens = read_tokens(job["data"])
    with open(job["samples"], "rb") as file:
        data = file.read()
    places = torch.tensor(struct.unpack(f"<{len(data) // 8}Q", data))
    local = job["batch"] // way.size
    columns = {name: [] for name in COLUMNS}
    start = time.monotonic()
    for step in range(job["steps"]):
        first = step * job["batch"] + way.rank * local
        at = places[first:first + local, None] + torch.arange(job["seq"])
        inputs, targets = tokens[at], tokens[at + 1]
        way.set_rate(job["rates"][step])
        began = time.monotonic() - way.measuring
        with way.casts():
            loss = way.trained(inputs, targets)
        forward = time.monotonic() - way.measuring
        way.backward(loss)
        backward = time.monotonic() - way.measuring
        scale, skipped = way.update()
        end = time.monotonic() - way.measuring
        norm = way.norm
        mean = sum(way.gather(float(loss.detach()))) / way.size
        clip = min(1.0, job["clip"] / (norm + 1e-6)) if norm == norm else None
        row = [step + 1, end - start, 1e3 * (end - began), 1e3 * (forward - began),
               1e3 * (backward - forward), 1e3 * (end - backward), mean, job["rates"][step], norm,
               clip, scale, int(skipped)]
        for name, value in zip(COLUMNS, row):
            columns[name].append(value if value is None or abs(value) < 1e300 else None)
    return columns


def heads_of(path):
    with open(os.path.join(os.path.dirname(path), "config.json"), encoding="utf-8") as file:
        return json.load(file)["n_head"]


def main():
    mode, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    before = memory()[0]
    way = MODES[mode](job)
    way.prepare(gpt2.load(job["init"], heads_of(job["init"])))
    used = cpu_seconds()
    columns = train(way, job)
    used = cpu_seconds() - used
    pss, own = memory()
    ranks = {"memory_before": way.gather(before), "memory_pss": way.gather(pss),
             "memory_own": way.gather(own), "cpu_seconds": way.gather(used)}
    blas = [line.split("=")[1].split(",")[0] for line in torch.__config__.show().split(" ")
            if line.startswith("BLAS_INFO=")]
    if way.rank == 0:
        with open(job["summary"] + ".new", "w", encoding="utf-8") as file:
            json.dump({"format": job["format"],
                       "configuration": {"strategy": mode, "ranks": way.size, "batch": job["batch"],
                                         "seq": job["seq"], "run_steps": job["steps"],
                                         "seed": job["seed"], "clip": job["clip"]},
                       "device": f"torch {torch.__version__}, {job['threads']} threads, BLAS "
                                 + (blas[0] if blas else "?"),
                       "divisor": way.divisor, "ranks": ranks, "steps": columns}, file)
        os.replace(job["summary"] + ".new", job["summary"])
    way.close()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads need no farewell


if __name__ == "__main__":
    main()
