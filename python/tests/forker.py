"""Imports torch once and forks into ranks; torch_ranks.Forker starts it and tells it which, over the socket argv[1].

A rank is a fork of a fork that ended, so it becomes a child of the test's process, which is a subreaper.
"""
import gc
import json
import os
import socket
import sys

gc.disable()  # a fifth of the import
import torch.distributed
import torch.nn.parallel
import torch.utils.data

try:
    import torch.distributed._functional_collectives
    import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook
    import torch.distributed.checkpoint
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.distributed.tensor
except ImportError:
    pass  # an early torch
# At its end Python visits all objects. A rank visits its own: those of torch, in pages that it shares, take it a second.
gc.freeze()
gc.enable()
channel = socket.socket(fileno=int(sys.argv[1]))
assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
while True:
    text, files, _, _ = socket.recv_fds(channel, 1 << 20, 1)
    if not text:
        sys.exit(0)
    job = json.loads(text)
    between = os.fork()
    if between == 0:
        rank = os.fork()
        if rank == 0:
            break
        channel.send(str(rank).encode())
        os._exit(0)
    os.waitpid(between, 0)
    os.close(files[0])
    channel.send(b"it has our parent")
os.dup2(files[0], 1)
os.dup2(files[0], 2)
os.close(files[0])
channel.close()
os.environ.clear()
os.environ.update(job["environment"])
sys.argv = job["arguments"]
program = job["program"]
if isinstance(program, str):
    exec(compile(program, "<a test's program>", "exec"), {"__name__": "__main__"})
else:
    sys.path.insert(0, program["folder"])
    import torch_ranks
    torch_ranks.run(**program)
