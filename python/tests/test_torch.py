"""dp.torch on every rank of a world; skips where there is no PyTorch.

    dprun -np 3 python3 python/tests/test_torch.py
"""
import sys
import threading
import unittest
import warnings
import weakref

try:
    import torch
except ImportError:
    print("no PyTorch is here")
    sys.exit(77)

import dp.torch as hvd
from dp.torch import ops, runtime


def model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss_of(net, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return net(torch.randn(5, 6, generator=generator)).square().mean()


def distributed(net, **keywords):
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
                                    named_parameters=net.named_parameters(), **keywords)


class Operations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def test_sums_averages_and_in_place(self):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32,
                      torch.int64, torch.uint8):
            tensor = torch.full((3, 4), self.rank + 2).to(dtype)
            total = sum(rank + 2 for rank in range(self.size))
            self.assertEqual(hvd.allreduce(tensor, op=hvd.Sum)[2, 3].item(), total)
            self.assertEqual(tensor[0, 0].item(), self.rank + 2)
            hvd.allreduce_(tensor, op=hvd.Max)
            self.assertEqual(tensor[0, 0].item(), self.size + 1)
        self.assertAlmostEqual(hvd.allreduce(torch.tensor(float(self.rank))).item(),
                               (self.size - 1) / 2, places=6)

    def test_gradients_flow_through_operations(self):
        x = torch.ones(4, requires_grad=True)
        hvd.allreduce(x * (self.rank + 1), op=hvd.Sum).sum().backward()
        self.assertEqual(x.grad[0].item(), self.size * (self.rank + 1))
        y = torch.ones(self.rank + 1, 2, requires_grad=True)
        gathered = hvd.allgather(y)
        self.assertEqual(gathered.shape[0], self.size * (self.size + 1) // 2)
        gathered.sum().backward()
        self.assertEqual(y.grad[0, 0].item(), 1.0)
        z = torch.ones(2, requires_grad=True)
        hvd.broadcast(z, 0).sum().backward()
        self.assertEqual(z.grad[0].item(), 1.0 if self.rank == 0 else 0.0)

    def test_rows_travel(self):
        rows = torch.arange(self.size).repeat_interleave(2).reshape(-1, 1).float()
        came, splits = hvd.alltoall(rows, splits=[2] * self.size)
        self.assertEqual(splits.tolist(), [2] * self.size)
        self.assertTrue((came == self.rank).all())
        part = hvd.reducescatter(torch.ones(2 * self.size + 1, 3), op=hvd.Sum)
        self.assertEqual(part.shape[0], 2 + (self.rank == 0))
        self.assertEqual(part[0, 0].item(), self.size)

    def test_rows_that_came_are_told_in_the_kind_of_the_splits(self):
        rows = torch.full((self.size, 2), float(self.rank))
        for splits, dtype in ((None, torch.int32), ([1] * self.size, torch.int32),
                              (torch.ones(self.size, dtype=torch.int32), torch.int32),
                              (torch.ones(self.size, dtype=torch.int64), torch.int64)):
            came, received = hvd.synchronize(hvd.alltoall_async(rows, splits))
            self.assertEqual(came[:, 1].tolist(), list(range(self.size)))
            self.assertEqual((received.dtype, received.tolist()), (dtype, [1] * self.size))
            came = hvd.alltoall(rows.requires_grad_(), splits)
            if splits is not None:
                came, received = came
                self.assertEqual(received.dtype, dtype)
            rows.grad = None
            (came * (self.rank + 1)).sum().backward()
            self.assertEqual(rows.grad[:, 0].tolist(), list(range(1, self.size + 1)))

    def test_errors_are_told_and_the_next_operation_works(self):
        with self.assertRaises(ValueError):
            hvd.allreduce(torch.ones(4, 4).t())
        with self.assertRaises(NotImplementedError):
            hvd.allreduce(torch.ones(3), op=hvd.Adasum)
        if self.size > 1:
            with self.assertRaisesRegex(hvd.HorovodInternalError, "count|tag"):
                hvd.allreduce(torch.ones(3 + self.rank % 2), name="differs")
        self.assertEqual(hvd.allreduce(torch.ones(3), op=hvd.Sum, name="differs")[0].item(),
                         self.size)

    def test_a_name_may_stand_for_other_tensors_each_time(self):
        """Arguments of libdp's call are kept by name, and must not outlive what they were made of."""
        for shape, dtype, op, factor in (((6,), torch.float32, hvd.Sum, 1.0), ((2, 3), torch.float32, hvd.Sum, 1.0),
                                         ((2, 3), torch.float64, hvd.Sum, 1.0), ((2, 3), torch.float64, hvd.Max, 1.0),
                                         ((2, 3), torch.float64, hvd.Sum, 0.5), ((7,), torch.int64, hvd.Sum, 1.0)):
            for _ in range(2):
                tensor = torch.full(shape, self.rank + 1.0).to(dtype)
                other = hvd.allreduce(tensor, name="changing", op=op, postscale_factor=factor)
                total = self.size if op == hvd.Max else factor * self.size * (self.size + 1) / 2
                self.assertTrue((other == total).all(), (shape, dtype, op, other))
                self.assertTrue((tensor == self.rank + 1).all())
        with self.assertRaisesRegex(hvd.HorovodInternalError, "changing"):
            hvd.allreduce_(torch.ones((2, 3) if self.rank == 0 else (3, 2)), name="changing")
        self.assertEqual(hvd.allreduce(torch.ones(2, 3), name="changing")[1, 2].item(), 1.0)

    def test_a_name_in_flight_is_refused_and_a_dropped_handle_keeps_its_memory(self):
        def begin():
            return hvd.allreduce_async(torch.full((4,), float(self.rank)), name="once", op=hvd.Sum)

        if self.rank == 0:
            begun = begin()
            if self.size > 1:
                with self.assertRaisesRegex(ValueError, "once is in flight"):
                    hvd.allreduce_async_(torch.ones(4), name="once")
        hvd.barrier()  # so far nobody else has submitted it, so it was in flight
        if self.rank != 0:
            begun = begin()
        self.assertEqual(hvd.synchronize(begun)[0].item(), sum(range(self.size)))
        self.assertIsNone(hvd.synchronize(begun))
        for _ in range(100):  # names take turns before any is waited for
            hvd.allreduce_async_(torch.ones(1 << 14))
        self.assertEqual(hvd.allreduce(torch.ones(3))[0].item(), 1.0)

    def test_an_operation_that_nobody_waited_for_keeps_its_output(self):
        first, second = torch.full((3,), 1.0), torch.full((3,), 10.0)
        for turn in range(3):
            early = hvd.allreduce_async_(first.fill_(1.0), name="twice", op=hvd.Sum)
            while not hvd.poll(early):
                pass
            late = hvd.allreduce_async_(second.fill_(10.0), name="twice", op=hvd.Sum)
            self.assertIs(hvd.synchronize(early), first)
            self.assertIs(hvd.synchronize(late), second)
            self.assertEqual(first.tolist(), [self.size] * 3)
            self.assertEqual(second.tolist(), [10.0 * self.size] * 3)

    def test_outputs_are_the_callers_alone_once_they_were_waited_for(self):
        """Names are kept for ever, and must not keep the last tensor under each."""
        rows = torch.ones(self.size, 2)
        calls = {
            "allreduce": lambda name: hvd.allreduce_async(rows, name=name),
            "scaled": lambda name: hvd.allreduce_async(rows, name=name, prescale_factor=0.5),
            "grouped_allreduce": lambda name: hvd.grouped_allreduce_async([rows, rows], name=name),
            "allgather": lambda name: hvd.allgather_async(rows, name=name),
            "grouped_allgather": lambda name: hvd.grouped_allgather_async([rows, rows], name=name),
            "broadcast": lambda name: hvd.broadcast_async(rows, 0, name=name),
            "alltoall": lambda name: hvd.alltoall_async(rows, splits=[1] * self.size, name=name),
            "reducescatter": lambda name: hvd.reducescatter_async(rows, name=name)}
        for name, call in calls.items():
            for given in (f"kept {name}", None):
                output = hvd.synchronize(call(given))
                if not isinstance(output, torch.Tensor):
                    output = output[0]
                seen = weakref.ref(output)
                del output
                self.assertIsNone(seen(), f"{name} under the name {given}")

    def test_threads_under_one_name_get_their_own_output_or_a_refusal(self):
        # Alone in its process set, as the order of threads differs between ranks.
        alone = [hvd.runtime.world.register([rank]) for rank in range(self.size)][self.rank]
        outputs, refused = [], []

        def work(value):
            tensor = torch.empty(5)
            for turn in range(200):
                try:
                    output = hvd.allreduce_(tensor.fill_(value), name="shared", op=hvd.Max, process_set=alone)
                except ValueError as error:
                    refused.append(str(error))
                else:
                    outputs.append((output is tensor, output.tolist() == [value] * 5))

        threads = [threading.Thread(target=work, args=(value,)) for value in (1.0, 2.0, 3.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(outputs) + len(refused), 600)
        self.assertEqual(set(outputs), {(True, True)})
        self.assertEqual([text for text in refused if "in flight" not in text], [])

    def test_several_threads_wait_at_the_same_time(self):
        found, failed = [0] * 4, []

        def work(number):
            try:
                for turn in range(60):
                    value = hvd.allreduce_(torch.full((8,), float(turn)), name=f"thread.{number}", op=hvd.Sum)
                    found[number] += value[3].item() == turn * self.size
            except Exception as error:  # an exception of a thread is lost otherwise
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((found, failed), ([60] * 4, []))

    def test_objects(self):
        self.assertEqual(hvd.broadcast_object({"rank": self.rank}, root_rank=self.size - 1),
                         {"rank": self.size - 1})
        self.assertEqual(hvd.allgather_object("x" * self.rank),
                         ["x" * rank for rank in range(self.size)])

    def test_a_timeline_of_one_rank_is_refused_with_a_warning(self):
        with self.assertWarnsRegex(UserWarning, "writes nothing: dprun --timeline FILE"):
            hvd.start_timeline("timeline.json")
        hvd.stop_timeline()

    def test_objects_of_other_types_on_each_rank(self):
        mine = [None, {"a": 1}, "text", 4][self.rank % 4]
        self.assertEqual(hvd.broadcast_object(mine), None)
        self.assertEqual(hvd.allgather_object(mine), [[None, {"a": 1}, "text", 4][rank % 4] for rank in range(self.size)])

    def test_poll_tells_of_sparse_operations_and_refuses_what_is_no_handle(self):
        sparse = torch.eye(3).to_sparse()
        if self.rank == 0:
            handle = hvd.sparse_allreduce_async(sparse, "polled", hvd.Sum)
            self.assertEqual(hvd.poll(handle), self.size == 1)
        hvd.barrier()
        if self.rank != 0:
            handle = hvd.sparse_allreduce_async(sparse, "polled", hvd.Sum)
        while not hvd.poll(handle):
            pass
        self.assertEqual(hvd.synchronize(handle).to_dense()[1, 1].item(), self.size)
        dense = hvd.allreduce_async(torch.ones(2))
        hvd.synchronize(dense)
        for none in (dense, handle, -1, len):
            with self.assertRaisesRegex(ValueError, "is no handle"):
                hvd.poll(none)

    def test_one_of_several_that_fails_leaves_no_handle(self):
        before = len(ops._operations)
        if self.size > 1:
            differing = torch.ones(2 + self.rank)
            with self.assertRaisesRegex(hvd.HorovodInternalError, "first"):
                hvd.broadcast_parameters([("first", differing), ("second", torch.ones(2)), ("third", differing)], 0)
            dtype = torch.float32 if self.rank == 0 else torch.float64
            with self.assertRaisesRegex(hvd.HorovodInternalError, "values"):
                hvd.synchronize(hvd.sparse_allreduce_async(torch.eye(3, dtype=dtype).to_sparse(), "differs", hvd.Sum))
        with self.assertRaisesRegex(ValueError, "sparse"):
            hvd.broadcast_parameters([("dense", torch.ones(2)), ("sparse", torch.eye(3).to_sparse())], 0)
        self.assertEqual(len(ops._operations), before)

    def test_shutdown_and_init_again(self):
        hvd.shutdown()
        self.assertFalse(hvd.is_initialized())
        with self.assertRaises(ValueError):
            hvd.rank()
        hvd.init()
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), self.size)


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def train(self, net, optimizer, steps=4):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(net, step, self.rank).backward()
            optimizer.step()
        return torch.cat([param.detach().flatten() for param in net.parameters()])

    def reference(self, steps=4):
        """The same on one rank: the average of all ranks' gradients."""
        net = model(0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            optimizer.zero_grad()
            sum(loss_of(net, step, rank) for rank in range(self.size)).div(self.size).backward()
            optimizer.step()
        return torch.cat([param.detach().flatten() for param in net.parameters()])

    def test_training_is_that_of_one_rank_with_all_samples(self):
        for keywords in ({}, {"groups": 2}, {"compression": hvd.Compression.fp16},
                         {"gradient_predivide_factor": 2.0}):
            net = model(self.rank)  # other weights on each rank, until they are broadcast
            optimizer = distributed(net, **keywords)
            hvd.broadcast_parameters(net.state_dict() if self.rank else net.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            tolerance = 5e-3 if "compression" in keywords else 1e-5
            torch.testing.assert_close(self.train(net, optimizer), self.reference(), rtol=tolerance,
                                       atol=tolerance)

    def test_accumulation_clipping_and_unused_parameters(self):
        net, unused = model(0), torch.nn.Linear(3, 3)
        parameters = [*net.named_parameters(), *[(f"unused.{n}", p) for n, p in unused.named_parameters()]]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p for _, p in parameters], lr=0.1), named_parameters=parameters,
            backward_passes_per_step=2)
        for step in range(2):
            optimizer.zero_grad()
            for passes in range(2):
                loss_of(net, 2 * step + passes, self.rank).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        own = torch.cat([p.detach().flatten() for p in net.parameters()])
        torch.testing.assert_close(hvd.broadcast(own, 0), own, rtol=0, atol=0)

    def test_sparse_gradients_stay_sparse(self):
        for sparse_as_dense in (False, True):
            net = torch.nn.Embedding(10, 3, sparse=True)
            optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(list(net.parameters()), lr=0.1),
                                                 named_parameters=net.named_parameters(),
                                                 sparse_as_dense=sparse_as_dense)
            net(torch.tensor([0, self.rank + 1])).sum().backward()
            optimizer.synchronize()
            gradient = net.weight.grad
            self.assertTrue(gradient.is_sparse)
            torch.testing.assert_close(gradient.to_dense()[:2, 0], torch.tensor([1.0, 1 / self.size]))
            with optimizer.skip_synchronize():  # SparseAdam takes no other gradients
                optimizer.step()

    def test_sparse_gradients_of_parameters_that_a_rank_does_not_use(self):
        """SGD's are known to be sparse from the first step on, SparseAdam's before it."""
        for kind, sparse_as_dense in ((torch.optim.SGD, False), (torch.optim.SparseAdam, False),
                                      (torch.optim.SparseAdam, True)):
            torch.manual_seed(0)
            nets = [torch.nn.Embedding(10, 3, sparse=True) for _ in range(2)]
            nets[1].load_state_dict(nets[0].state_dict())
            ours, theirs = [kind(list(net.parameters()), lr=0.1) for net in nets]
            ours = hvd.DistributedOptimizer(ours, named_parameters=nets[0].named_parameters(),
                                            sparse_as_dense=sparse_as_dense)
            for step in range(4):
                users = range(self.size) if step == 0 and kind is torch.optim.SGD else range(1)
                ours.zero_grad(set_to_none=True)
                theirs.zero_grad(set_to_none=True)
                if self.rank in users:
                    nets[0](torch.tensor([step, self.rank + 4])).square().sum().backward()
                sum(nets[1](torch.tensor([step, rank + 4])).square().sum() for rank in users).div(self.size).backward()
                ours.step()
                theirs.step()
            torch.testing.assert_close(nets[0].weight, nets[1].weight, rtol=1e-5, atol=1e-5)

    def test_state_of_optimizers_of_sparse_gradients_is_broadcast(self):
        for kind, keywords in ((torch.optim.SparseAdam, {}), (torch.optim.SGD, {"momentum": 0.5, "nesterov": True})):
            net = torch.nn.Embedding(10, 3, sparse=True)
            hvd.broadcast_parameters(net.state_dict(), root_rank=0)
            optimizer = hvd.DistributedOptimizer(kind(list(net.parameters()), lr=0.1 * (self.rank + 1), **keywords),
                                                 named_parameters=net.named_parameters())
            gradient = torch.ones(10, 3).to_sparse()
            net.weight.grad = gradient
            before = net.weight.detach().clone()
            hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=net)
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
            self.assertIs(net.weight.grad, gradient)
            self.assertTrue(torch.equal(net.weight, before))
            optimizer.zero_grad()
            net(torch.tensor([0, self.rank + 1])).sum().backward()
            optimizer.step()

    def test_sparse_state_of_the_root_replaces_dense_state(self):
        """As of a checkpoint that the root has read."""
        net = torch.nn.Embedding(10, 3, sparse=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
        if self.rank == 0:
            net(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        momentum = optimizer.state[net.weight]["momentum_buffer"]
        self.assertTrue(momentum.is_sparse)
        self.assertEqual(momentum.to_dense()[:, 0].tolist(), [0, 1, 1] + 7 * [0])

    def test_names_that_never_come_again_are_forgotten(self):
        names = hvd.global_process_set.names
        for step in range(2 * runtime.KEPT + 10):
            hvd.allreduce_(torch.ones(2), name=f"loss/{step}")
        for step in range(runtime.KEPT + 10):
            hvd.broadcast_(torch.ones(2), 0, name=f"weight/{step}")
        self.assertLess(len(names.pending) + len(names.submissions), 2 * runtime.KEPT + 10)
        kept = hvd.allreduce_async(torch.ones(2), name="still in flight", op=hvd.Sum)
        for step in range(runtime.KEPT + 10):
            hvd.allreduce_(torch.ones(2), name=f"loss/{step}")
        self.assertEqual(hvd.synchronize(kept).tolist(), 2 * [self.size])

    def test_misuse_is_told(self):
        net = model(0)
        named = list(net.named_parameters())
        with self.assertRaisesRegex(ValueError, "unique"):
            hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1),
                                     named_parameters=named + named[:1])
        if self.size == 1:
            return
        optimizer = distributed(net)
        loss_of(net, 0, 0).backward()
        with self.assertRaisesRegex(AssertionError, "race"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(AssertionError, "more than backward_passes_per_step"):
            loss_of(net, 0, 0).backward()
        with self.assertRaisesRegex(AssertionError, "was changed"):
            optimizer.step()

    def test_sync_batch_norm_is_that_of_all_batches(self):
        every = torch.randn(4 * self.size, 3, 5, generator=torch.Generator().manual_seed(1))
        own = every[4 * self.rank:4 * self.rank + 4].clone().requires_grad_()
        every.requires_grad_()
        ours, theirs = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
        output, wanted = ours(own), theirs(every)
        torch.testing.assert_close(output, wanted[4 * self.rank:4 * self.rank + 4], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-4, atol=1e-4)
        output.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close(own.grad, every.grad[4 * self.rank:4 * self.rank + 4], rtol=1e-3,
                                   atol=1e-3)

    def normalized(self, dtype, offset):
        """Output, gradient and statistics of this rank's part of a batch, and those that torch finds in fp64 for
        the whole batch. Ranks have different numbers of samples."""
        counts = [3 + rank for rank in range(self.size)]
        every = offset + torch.randn(sum(counts), 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        pull = torch.randn(every.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        own = slice(sum(counts[:self.rank]), sum(counts[:self.rank + 1]))
        found = []
        for layer, batch, weights in ((hvd.SyncBatchNorm(3).to(dtype), every[own].to(dtype), pull[own].to(dtype)),
                                      (torch.nn.BatchNorm1d(3).double(), every.to(dtype).double(), pull)):
            batch.requires_grad_()
            output = layer(batch)
            (output * weights).sum().backward()
            found.append((output.detach(), batch.grad, layer.running_mean, layer.running_var))
        ours, theirs = found
        return ours, (theirs[0][own], theirs[1][own], *theirs[2:])

    def test_sync_batch_norm_does_not_cancel_beside_a_large_mean(self):
        for ours, theirs in zip(*self.normalized(torch.float32, 1000.0)):
            torch.testing.assert_close(ours.double(), theirs, rtol=5e-4, atol=5e-4)

    def test_sync_batch_norm_of_fp64_is_exact(self):
        for ours, theirs in zip(*self.normalized(torch.float64, 1.0)):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)

    def test_sync_batch_norm_without_statistics_uses_all_batches_in_evaluation_too(self):
        every = torch.randn(4 * self.size, 3, generator=torch.Generator().manual_seed(3))
        own = slice(4 * self.rank, 4 * self.rank + 4)
        layers = [kind(3, track_running_stats=False, momentum=None).eval()
                  for kind in (hvd.SyncBatchNorm, torch.nn.BatchNorm1d)]
        torch.testing.assert_close(layers[0](every[own]), layers[1](every)[own], rtol=1e-5, atol=1e-5)
        ours, theirs = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
        ours.train()(every[own]), theirs.train()(every)
        torch.testing.assert_close(ours.eval()(every[own]), theirs.eval()(every)[own], rtol=1e-5, atol=1e-5)

    def test_sync_batch_norm_goes_on_without_ranks_that_have_joined(self):
        every = torch.randn(4 * max(self.size - 1, 1), 3, generator=torch.Generator().manual_seed(4))
        if self.rank < self.size - 1:
            own = slice(4 * self.rank, 4 * self.rank + 4)
            batch, whole = every[own].clone().requires_grad_(), every.clone().requires_grad_()
            output, wanted = hvd.SyncBatchNorm(3)(batch), torch.nn.BatchNorm1d(3)(whole)
            torch.testing.assert_close(output, wanted[own], rtol=1e-5, atol=1e-5)
            output[:, 0].square().sum().backward()
            wanted[:, 0].square().sum().backward()
            torch.testing.assert_close(batch.grad, whole.grad[own], rtol=1e-4, atol=1e-4)
        hvd.join()


if __name__ == "__main__":
    warnings.simplefilter("error", DeprecationWarning)
    unittest.main()
