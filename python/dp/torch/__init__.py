"""Horovod's API for PyTorch over libdp, in the place of horovod.torch:

    import dp.torch as hvd

    hvd.init()                                  # under dprun, torchrun, srun, mpirun, or alone
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""
from __future__ import annotations

from . import elastic
from .amp import GradScaler
from .batch_norm import SyncBatchNorm
from .compression import Compression
from .errors import HorovodInternalError, HostsUpdatedInterrupt
from .functions import (allgather_object, broadcast_object, broadcast_optimizer_state,
                        broadcast_parameters)
from .ops import (Adasum, Average, Max, Min, Product, Sum, allgather, allgather_async, allreduce,
                  allreduce_, allreduce_async, allreduce_async_, alltoall, alltoall_async, barrier,
                  broadcast, broadcast_, broadcast_async, broadcast_async_, grouped_allgather,
                  grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
                  grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter,
                  grouped_reducescatter_async, join, poll, reducescatter, reducescatter_async,
                  sparse_allreduce_async, synchronize)
from .optimizer import DistributedOptimizer
from .runtime import (ProcessSet, add_process_set, ccl_built, cross_rank, cross_size, cuda_built,
                      ddl_built, get_process_set_ids_and_ranks, global_process_set, gloo_built,
                      gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size,
                      mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rank,
                      remove_process_set, rocm_built, shutdown, size, start_timeline,
                      stop_timeline)

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]
