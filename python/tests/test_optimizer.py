"""DistributedOptimizer on every rank of a world: gradients in libdp's memory, norm, clipping, GradScaler, and
what is refused. Skips where there is no PyTorch.

    dprun -np 2 python3 python/tests/test_optimizer.py
"""
import copy
import gc
import io
import sys
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    print("no PyTorch is here")
    sys.exit(77)

import dp.torch as hvd
from dp.torch import ops
from dp.torch.reduction import Repeated
from dp.torch.runtime import world

torch.set_num_threads(1)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss_of(net, step, rank, width=6):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return net(torch.randn(5, width, generator=generator)).square().mean()


def distributed(net, kind=torch.optim.AdamW, **keywords):
    return hvd.DistributedOptimizer(kind(net.parameters(), lr=0.01),
                                    named_parameters=net.named_parameters(), **keywords)


def weights(net):
    return torch.cat([param.detach().flatten() for param in net.parameters()])


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Optimizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def train(self, net, optimizer, steps=5, passes=1):
        for step in range(steps):
            optimizer.zero_grad()
            for one in range(passes):
                loss_of(net, passes * step + one, self.rank).backward()
            optimizer.step()
        return weights(net)

    def has_arena(self, optimizer):
        return optimizer._arena is not None

    def takes_arena(self):
        return self.size > 1 and not world.context.is_on_gpu

    def test_in_place_gives_the_bits_of_the_copying_path(self):
        for passes in (1, 3):
            found = []
            for in_place in (True, False):
                net = model()
                optimizer = distributed(net, in_place=in_place, backward_passes_per_step=passes)
                found.append(self.train(net, optimizer, passes=passes))
                self.assertEqual(self.has_arena(optimizer), in_place and self.takes_arena())
            self.assertTrue(torch.equal(*found))

    def test_gradients_are_views_of_one_block(self):
        net = model()
        optimizer = distributed(net)
        self.train(net, optimizer)
        if not self.takes_arena():
            return
        first = [param.grad.data_ptr() for param in net.parameters()]
        self.train(net, optimizer)
        self.assertEqual(first, [param.grad.data_ptr() for param in net.parameters()])
        self.assertLess(max(first) - min(first), 1 << 16)

    def test_zeroed_gradients_stay_in_place(self):
        found = []
        for set_to_none in (True, False):
            net = model()
            optimizer = distributed(net)
            for step in range(4):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss_of(net, step, self.rank).backward()
                optimizer.step()
            found.append(weights(net))
        self.assertTrue(torch.equal(*found))

    def test_channels_last_parameters_keep_their_strides(self):
        torch.manual_seed(0)
        net = torch.nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        optimizer = distributed(net)
        for step in range(3):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            net(torch.randn(2, 4, 8, 8, generator=generator)).square().mean().backward()
            optimizer.step()
            self.assertEqual(net.weight.grad.stride(), net.weight.stride())

    def test_norm_and_clipping_are_those_of_torch(self):
        for in_place in (True, False):
            ours, theirs = model(), model()
            clipped = distributed(ours, clip=0.05, in_place=in_place)
            plain = distributed(theirs, in_place=False)
            for step in range(4):
                for net, optimizer in ((ours, clipped), (theirs, plain)):
                    optimizer.zero_grad()
                    loss_of(net, step, self.rank).backward()
                plain.synchronize()
                norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
                with plain.skip_synchronize():
                    plain.step()
                clipped.step()
                self.assertAlmostEqual(clipped.grad_norm, norm.item(), delta=1e-5 * norm.item())
            torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-4, atol=1e-5)

    @unittest.skipUnless(hasattr(torch.amp, "GradScaler"), "torch before 2.3 scales on GPUs alone")
    def test_a_scaler_skips_an_overflow_of_any_rank_and_only_that(self):
        ours, theirs = model(), model()
        scaled, plain = distributed(ours, clip=0.05), distributed(theirs, clip=0.05)
        scaler = hvd.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        for step in range(5):
            before = weights(ours)
            loss = loss_of(ours, step, self.rank)
            overflows = step in (0, 3)  # without libdp's memory, and in it
            if overflows and self.rank == self.size - 1:
                loss = loss * float("inf")
            scaled.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(scaled)
            scaler.update()
            self.assertEqual(scaled.nonfinite, overflows)
            if overflows:
                self.assertTrue(torch.equal(before, weights(ours)))
                self.assertEqual(scaled.grad_norm, float("inf"))
                continue
            plain.zero_grad()
            loss_of(theirs, step, self.rank).backward()
            plain.step()
            self.assertAlmostEqual(scaled.grad_norm, plain.grad_norm, delta=1e-5 * plain.grad_norm)
        self.assertEqual(scaler.get_scale(), 256.0)
        torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)

    def test_a_last_step_with_fewer_passes_takes_what_is_there(self):
        found = []
        for in_place in (True, False):
            net = model()
            optimizer = distributed(net, in_place=in_place, backward_passes_per_step=2)
            self.train(net, optimizer, steps=3, passes=2)
            optimizer.zero_grad()
            loss_of(net, 99, self.rank).backward()
            optimizer.step()
            found.append(weights(net))
        self.assertTrue(torch.equal(*found))

    def test_ranks_may_use_other_parameters(self):
        found = []
        for in_place in (True, False):
            torch.manual_seed(0)
            branches = torch.nn.ModuleList([torch.nn.Linear(6, 3) for _ in range(self.size + 1)])
            optimizer = distributed(branches, in_place=in_place)
            for step in range(4):
                optimizer.zero_grad()
                used = branches[(self.rank + step) % (self.size + 1)]
                loss_of(used, step, self.rank).backward()
                optimizer.step()
            found.append(weights(branches))
        self.assertTrue(torch.equal(*found))

    def test_sparse_gradients_beside_dense_ones(self):
        found = []
        for keywords in ({}, {"in_place": False}, {"sparse_as_dense": True}):
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Embedding(7, 4, sparse=True), torch.nn.Linear(4, 2))
            optimizer = distributed(net, torch.optim.SGD, clip=0.5, **keywords)
            for step in range(4):
                optimizer.zero_grad()
                net(torch.tensor([step, self.rank, 6])).square().sum().backward()
                optimizer.step()
            found.append(weights(net))
        torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-6)

    def test_two_optimizers_of_two_parts(self):
        found = []
        for in_place in (True, False):
            first, second = model(1), model(2)
            optimizers = [distributed(first, in_place=in_place), distributed(second, in_place=in_place)]
            for step in range(4):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                (loss_of(first, step, self.rank) + loss_of(second, step, self.rank)).backward()
                for optimizer in optimizers if self.rank == 0 else reversed(optimizers):
                    optimizer.synchronize()
                for optimizer in optimizers:
                    with optimizer.skip_synchronize():
                        optimizer.step()
            found.append(torch.cat([weights(first), weights(second)]))
        self.assertTrue(torch.equal(*found))

    def test_a_parameter_in_two_optimizers_is_refused_and_a_dropped_one_harms_nothing(self):
        net = model()
        older = distributed(net)
        newer = distributed(net)
        if self.size > 1:
            with self.assertRaisesRegex(AssertionError, "0.weight|2.bias|belongs to two"):
                loss_of(net, 0, self.rank).backward()
        del older
        newer.zero_grad()
        self.train(net, newer)

    def test_double_backward_is_refused_by_name(self):
        if self.size == 1:
            return
        net = model()
        optimizer = distributed(net)
        for _ in range(4):
            with self.assertRaisesRegex(AssertionError, r"create_graph=True.*hvd\.allreduce"):
                loss_of(net, 0, self.rank).backward(create_graph=True)
            optimizer.synchronize()
            net.zero_grad()
            optimizer.forget_step()

    def test_gradients_in_flight_are_guarded(self):
        if self.size == 1:
            return
        for keywords in ({}, {"in_place": False}, {"compression": hvd.Compression.fp16}, {"groups": 2},
                         {"gradient_predivide_factor": 2.0}):
            net = model()
            optimizer = distributed(net, **keywords)
            self.train(net, optimizer, steps=3)
            loss_of(net, 7, self.rank).backward()
            with self.assertRaisesRegex(AssertionError, "race"):
                optimizer.zero_grad()
            with self.assertRaisesRegex(AssertionError, "more than backward_passes_per_step"):
                loss_of(net, 8, self.rank).backward()
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            self.train(net, optimizer, steps=2)

    def test_gradients_are_submitted_by_so_many_bytes(self):
        """A burst ends with the gradient that fills it, and with the last one. In libdp's memory its last gradient alone
        wakes libdp's thread."""
        if self.size == 1:
            return
        begin, ready, waking = Repeated.begin, [], []

        def counting(reduction, tensor, more_follow=False):
            ready.append(sum(gradient.left == 0 for gradient in optimizer._gradient_of.values()))
            waking.append(int(not more_follow))
            begin(reduction, tensor, more_follow)

        for keywords in ({}, {"in_place": False}):
            for most, expected, last in ((1 << 20, [4, 4, 4, 4], [0, 0, 0, 1]), (4 * (3 + 24 + 8), [3, 3, 3, 4], [0, 0, 1, 1]),
                                         (1, [1, 2, 3, 4], [1, 1, 1, 1])):
                net = model()
                optimizer = distributed(net, **keywords)
                self.train(net, optimizer, steps=2)
                ready.clear()
                waking.clear()
                with unittest.mock.patch.object(Repeated, "begin", counting), \
                        unittest.mock.patch("dp.torch.optimizer.BURST_BYTES", most):
                    loss_of(net, 2, self.rank).backward()
                self.assertEqual(ready, expected)
                self.assertEqual(waking, last if self.has_arena(optimizer) else [1, 1, 1, 1])
                optimizer.step()

    def test_behind_a_failure_no_gradient_is_in_flight(self):
        """Each gradient's shape differs between the ranks, so all reductions fail."""
        if self.size == 1:
            return
        for compression in (hvd.Compression.none, hvd.Compression.fp16):
            net = torch.nn.Linear(6, 3 if self.rank == 0 else 2)
            optimizer = distributed(net, compression=compression, in_place=False)
            before = len(ops._operations)
            for step in range(2):
                net.zero_grad()
                loss_of(net, step, self.rank).backward()
                with self.assertRaisesRegex(hvd.HorovodInternalError, "bias|weight"):
                    optimizer.synchronize()
                self.assertEqual(len(ops._operations), before)
            optimizer.zero_grad()

    def test_parameters_that_come_later_are_reduced(self):
        """By add_param_group() or unfrozen, in each step of those that make the arena; the weights are those of a rank
        with the samples of all."""
        for start in range(4):
            for way in ("added", "named", "unfrozen"):
                for keywords in ({}, {"groups": 2, "op": hvd.Sum}, {"groups": "one", "op": hvd.Sum},
                                 {"compression": hvd.Compression.fp16}):
                    net, reference = model(), model()
                    self.train_with_a_late_layer(net, way, start, keywords)
                    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
                    factor = 1 if keywords.get("op") == hvd.Sum else self.size
                    for step in range(6):
                        plain.zero_grad()
                        sum(loss_of(reference, step, rank) for rank in range(self.size)).div(factor).backward()
                        if step < start:
                            reference[2].zero_grad(set_to_none=True)
                        plain.step()
                    tolerance = 5e-3 if "compression" in keywords else 1e-5
                    torch.testing.assert_close(weights(net), weights(reference), rtol=tolerance, atol=tolerance)

    def train_with_a_late_layer(self, net, way, start, keywords):
        """The last layer is trained from step `start` on."""
        late = list(net[2].parameters())
        own = [param for param in net.parameters() if way == "unfrozen" or not any(param is one for one in late)]
        for param in late:
            param.requires_grad_(False)
        named = [pair for pair in net.named_parameters() if way != "added" or not pair[0].startswith("2.")]
        if keywords.get("groups") == "one":
            keywords = {**keywords, "groups": [list(net.parameters())]}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(own, lr=0.1), named_parameters=named, **keywords)
        for step in range(6):
            optimizer.zero_grad()
            if step == start:
                for param in late:
                    param.requires_grad_()
                if way != "unfrozen":
                    optimizer.add_param_group({"params": late, "lr": 0.1})
            loss_of(net, step, self.rank).backward()
            optimizer.step()

    def test_what_changes_gradients_in_flight_is_refused_in_a_sentence(self):
        """In the first step and in later ones."""
        if self.size == 1:
            return
        for keywords in ({}, {"in_place": False}, {"compression": hvd.Compression.fp16}, {"groups": 2}):
            for steps in (0, 3):
                net = model()
                optimizer = distributed(net, **keywords)
                self.train(net, optimizer, steps)
                optimizer.zero_grad()
                loss_of(net, 7, self.rank).backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
                with self.assertRaisesRegex(AssertionError, "(bias|weight) was changed.*synchronize"):
                    optimizer.step()
                optimizer.zero_grad()
                self.train(net, optimizer, 1)

    @unittest.skipUnless(hasattr(torch.amp, "GradScaler"), "torch before 2.3 scales on GPUs alone")
    def test_a_scaler_of_torch_waits_and_all_ranks_skip_alike(self):
        for kind, options in ((torch.optim.SGD, {}), (torch.optim.AdamW, {"fused": True})):
            for way in ("clip", "unscale", "unscale and clip"):
                ours, theirs = model(), model()
                keywords = {} if way == "unscale and clip" else {"clip": 0.05}
                scaled = hvd.DistributedOptimizer(kind(ours.parameters(), lr=0.01, **options), **keywords)
                plain = hvd.DistributedOptimizer(kind(theirs.parameters(), lr=0.01, **options), clip=0.05)
                scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
                for step in range(5):
                    loss = loss_of(ours, step, self.rank)
                    if step == 3 and self.rank == self.size - 1:
                        loss = loss * float("inf")
                    scaled.zero_grad()
                    scaler.scale(loss).backward()
                    if way != "clip":
                        scaler.unscale_(scaled)
                    if way == "unscale and clip":
                        torch.nn.utils.clip_grad_norm_(ours.parameters(), 0.05)
                    scaler.step(scaled)
                    scaler.update()
                    if step != 3:
                        plain.zero_grad()
                        loss_of(theirs, step, self.rank).backward()
                        plain.step()
                self.assertEqual(scaler.get_scale(), 512.0)
                torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-4, atol=1e-6)

    def test_a_parameter_of_another_type_or_shape_is_reduced_as_it_is(self):
        def rows(net):
            net.weight.data = net.weight.data[:4].clone()

        def grow(net):
            net.weight.data = torch.cat([net.weight.data, net.weight.data])

        changes = [lambda net, dtype=dtype: net.to(dtype) for dtype in (torch.float64, torch.bfloat16)]
        if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # torch before 2.1 keeps shapes with its hooks
            changes += [rows, grow, torch.nn.Module.half]
        for change in changes:
            for in_place in (True, False):
                for before in (1, 3):
                    torch.manual_seed(0)
                    net = torch.nn.Linear(64, 16, bias=False)
                    optimizer = distributed(net, torch.optim.SGD, in_place=in_place)
                    self.train_inputs(net, optimizer, range(before))
                    change(net)
                    self.train_inputs(net, optimizer, range(before, before + 3))

    def train_inputs(self, net, optimizer, steps):
        """Checks the gradients of each step."""
        def loss(weight, rank, step):
            inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(100 * step + rank))
            return torch.nn.functional.linear(inputs.to(weight.dtype), weight).float().square().mean()

        for step in steps:
            optimizer.zero_grad()
            loss(net.weight, self.rank, step).backward()
            optimizer.synchronize()
            weight = net.weight.detach().clone().requires_grad_()
            (sum(loss(weight, rank, step) for rank in range(self.size)) / self.size).backward()
            error = (net.weight.grad.float() - weight.grad.float()).abs().max() / weight.grad.float().abs().max()
            self.assertLess(error.item(), 0.02 if net.weight.element_size() == 2 else 1e-5)
            with optimizer.skip_synchronize():
                optimizer.step()

    def test_a_gradient_that_moves_while_it_is_reduced(self):
        """`.grad.data = ...` frees or leaves the memory that libdp writes to."""
        found = []
        for moves in (False, True):
            for in_place in (True, False):
                net = model()
                optimizer = distributed(net, in_place=in_place)
                for step in range(4):
                    optimizer.zero_grad()
                    loss_of(net, step, self.rank).backward()
                    if moves and self.size > 1:
                        for param in net.parameters():
                            param.grad.data = param.grad.data / 3
                    optimizer.step()
                found.append(weights(net))
        for one in found[1:]:
            self.assertTrue(torch.equal(found[0], one))

    def test_complex_parameters_are_averaged_and_other_types_are_named(self):
        torch.manual_seed(0)
        values = torch.randn(3, 2, 2)
        weight = torch.nn.Parameter(torch.view_as_complex(values.clone() * (self.rank + 1)))
        hvd.broadcast_parameters({"weight": weight}, root_rank=0)
        self.assertTrue(torch.equal(torch.view_as_real(weight.detach()), values))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], clip=100.0)
        for step in range(3):
            optimizer.zero_grad()
            (weight.real * (self.rank + 1)).sum().backward()
            optimizer.step()
            self.assertAlmostEqual(optimizer.grad_norm, 3 ** 0.5 * 2 ** 0.5 * (self.size + 1) / 2, places=4)
        expected = values.clone()
        expected[..., 0] -= 3 * (self.size + 1) / 2
        torch.testing.assert_close(torch.view_as_real(weight.detach()), expected)
        if self.size > 1 and hasattr(torch, "float8_e4m3fn"):
            odd = torch.nn.Parameter(torch.zeros(4, dtype=torch.float8_e4m3fn))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([odd], lr=1.0), [("odd.weight", odd)])
            with self.assertRaisesRegex(ValueError, "odd.weight.*float8_e4m3fn"):
                optimizer.synchronize()

    def test_replicas_are_compared(self):
        if self.size == 1:
            return
        net = model()
        optimizer = distributed(net, check=2)
        self.train(net, optimizer, steps=4)
        if self.rank == 1:
            net[2].weight.data[1, 3] += 0.5
        optimizer.zero_grad()
        loss_of(net, 5, self.rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(net, 6, self.rank).backward()
        with self.assertRaisesRegex(hvd.HorovodInternalError, r"differ after step 6: 2.weight.*element 11 is -?\d\.\d+ on rank 0, "
                                    r"-?\d\.\d+ on rank 1"):
            optimizer.step()

    def test_copies_and_pickles_are_plain_optimizers(self):
        net = model()
        optimizer = distributed(net)
        self.train(net, optimizer)
        file = io.BytesIO()
        torch.save(optimizer, file)
        file.seek(0)
        loaded = torch.load(file, **({"weights_only": False} if hasattr(torch, "compile") else {}))
        for one in (loaded, copy.deepcopy(optimizer)):
            self.assertIs(type(one), torch.optim.AdamW)
            one.step()
            self.assertEqual(len(one.state_dict()["state"]), 4)

    def test_a_dropped_optimizer_leaves_nothing_behind(self):
        if self.size == 1:
            return
        torch.manual_seed(0)
        net = torch.nn.Linear(512, 512)
        sizes = []
        for trial in range(24):
            optimizer = distributed(net, torch.optim.SGD)
            self.train_inputs_of(net, optimizer)
            del optimizer
            gc.collect()
            net.zero_grad(set_to_none=True)
            sizes.append(resident())
            if hasattr(net.weight, "_post_accumulate_grad_hooks"):
                self.assertFalse(net.weight._post_accumulate_grad_hooks)
        self.assertLess(sizes[-1] - sizes[7], 8 << 20, sizes)  # 16 of 1 MiB gradients, twice and more

    def train_inputs_of(self, net, optimizer):
        for step in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 512)).sum().backward()
            optimizer.step()

    def test_a_state_of_some_parameters_is_broadcast_and_other_groups_are_refused(self):
        for wrapped in (False, True):
            net = model(self.rank)
            optimizer = torch.optim.Adam(net.parameters(), lr=0.1 * (self.rank + 1))
            if self.rank == 0:  # a checkpoint of a run that did not use the first layer
                net[2](torch.ones(1, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            if wrapped:
                optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())
            hvd.broadcast_optimizer_state(optimizer, 0)
            every = hvd.allgather_object([(key, name, value.tolist()) for key, state in optimizer.state_dict()["state"].items()
                                          for name, value in state.items()])
            self.assertEqual(len(every[0]), 6)
            self.assertTrue(all(one == every[0] for one in every))
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
        if self.size == 1:
            return
        net = model()
        groups = [{"params": net[0].parameters()}, {"params": net[2].parameters()}] if self.rank == 0 else net.parameters()
        with self.assertRaisesRegex(ValueError, r"\[2, 2\] parameters on rank 0, of \[4\] on rank 1.*0.weight"):
            hvd.broadcast_optimizer_state(hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), net.named_parameters()), 0)
        other = torch.nn.Linear(4, 3 if self.rank == 0 else 2)
        with self.assertRaisesRegex(ValueError, r"weight is float32 \[3, 4\] on rank 0, weight is float32 \[2, 4\] on rank 1"):
            hvd.broadcast_optimizer_state(distributed(other), 0)

    def test_a_compiled_model(self):
        if not hasattr(torch, "compile"):
            return
        found = []
        for is_compiled in (True, False):
            net = model()
            optimizer = distributed(net)
            run = torch.compile(net, backend="aot_eager") if is_compiled else net
            for step in range(4):
                optimizer.zero_grad()
                loss_of(run, step, self.rank).backward()
                optimizer.step()
            found.append(weights(net))
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)

    def test_ranks_that_joined_count_in_the_average(self):
        if self.size == 1:
            return
        found = []
        for in_place in (True, False):
            net = model()
            optimizer = distributed(net, in_place=in_place)
            for step in range(4 if self.rank == 0 else 2):
                optimizer.zero_grad()
                loss_of(net, step, self.rank).backward()
                optimizer.step()
            hvd.join()
            found.append(hvd.broadcast(weights(net), 0, name="after join"))
        self.assertTrue(torch.equal(*found))


if __name__ == "__main__":
    unittest.main()
