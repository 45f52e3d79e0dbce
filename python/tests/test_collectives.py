"""Collectives over NumPy and plain buffers. Run by every rank of a world:

    dprun -np 3 python3 -m unittest python/tests/test_collectives.py

unittest runs the tests in one order on all ranks, which is what collectives want.
"""
import array
import gc
import threading
import unittest

import numpy as np

import dp

TYPES = (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32, np.int64, np.uint64,
         np.float16, np.float32, np.float64)
world: dp.Context


def setUpModule():
    global world
    world = dp.init()


def tearDownModule():
    world.finalize(force=True)


class Exchanged:
    """Memory of an array that has DLPack and nothing else, as JAX's have."""

    def __init__(self, values, is_bf16=False):
        self.values, self.is_bf16 = values, is_bf16

    def __dlpack__(self):
        capsule = self.values.__dlpack__()
        if self.is_bf16:  # NumPy has no such type: its bits are those of uint16
            dp.arrays._DLTensor.from_address(dp.arrays._pointer_of(capsule, b"dltensor")).code = 4
        return capsule


class Collectives(unittest.TestCase):
    def sum_of_ranks(self):
        return world.size * (world.size - 1) // 2

    def test_allreduce_in_place_and_into_another_array(self):
        for kind in TYPES:
            for shape in ((), (1,), (7,), (3, 5), (0,), (2, 1000)):
                data = np.full(shape, world.rank + 1, kind)
                result = world.allreduce(data).wait()
                self.assertIs(result.value, data)
                np.testing.assert_array_equal(data, np.full(shape, self.sum_of_ranks() + world.size, kind))
                source, out = np.full(shape, world.rank, kind), np.empty(shape, kind)
                world.allreduce(source, out, op=dp.MAX).wait()
                np.testing.assert_array_equal(out, np.full(shape, world.size - 1, kind))
                np.testing.assert_array_equal(source, np.full(shape, world.rank, kind))

    def test_memory_of_a_gpu_wants_a_context_with_one(self):
        far = dp.arrays.Array(4096, dp.arrays.F32, (3,), False, None)
        if not world.is_on_gpu:
            with self.assertRaisesRegex(dp.UnsupportedError, "DP_DEVICE=cuda"):
                world.allreduce(far)

    def test_bool_is_or_and_and(self):
        data = np.array([world.rank == 0, True, False])
        np.testing.assert_array_equal(world.allreduce(data.copy(), op=dp.MAX).wait().value,
                                      [True, True, False])
        np.testing.assert_array_equal(world.allreduce(data.copy(), op=dp.MIN).wait().value,
                                      [world.size == 1, True, False])

    def test_average_scales_and_figures(self):
        data = np.array([1.0, np.inf if world.rank == 0 else 0.0, -3.0], np.float32)
        result = world.allreduce(data, op=dp.AVERAGE, prescale=2.0, postscale=0.5).wait()
        self.assertEqual(data[2], -3.0)
        self.assertEqual((result.nonfinite, result.absmax, result.contributors),
                         (1, 3.0, world.size))
        self.assertEqual(result.sum_squares, 10.0)

    def test_other_buffers(self):
        numbers = array.array("d", [1.0, 2.0])
        world.allreduce(numbers).wait()
        self.assertEqual(list(numbers), [world.size, 2.0 * world.size])
        text = bytearray(b"\x01\x02")
        world.allreduce(text).wait()
        self.assertEqual(list(text), [world.size, 2 * world.size])

    def test_arrays_that_have_dlpack_alone(self):
        for kind in TYPES:
            values = np.full((2, 3), world.rank, kind)
            world.allreduce(Exchanged(values)).wait()
            np.testing.assert_array_equal(values, np.full((2, 3), self.sum_of_ranks(), kind))
        whole = world.allgather(Exchanged(np.full((2, 3), world.rank, np.float32))).wait().value
        self.assertEqual(whole.shape, (world.size, 2, 3))
        np.testing.assert_array_equal(np.asarray(whole)[:, 1, 2], np.arange(world.size))
        came = world.allgatherv(Exchanged(np.full(world.rank, world.rank, np.int64))).wait()
        self.assertEqual(list(came.value), [rank for rank in range(world.size) for _ in range(rank)])
        none = world.allgatherv(Exchanged(np.zeros(0, np.float32))).wait()
        self.assertEqual(list(none.value), [])
        with self.assertRaisesRegex(dp.InvalidError, "not dense"):
            world.allreduce(Exchanged(np.zeros((4, 4))[:, 1]))
        with self.assertRaisesRegex(dp.InvalidError, "no type of libdp"):
            world.allreduce(Exchanged(np.zeros(3, np.complex64)))

    def test_arrays_of_jax_are_read_and_never_written(self):
        class Immutable(Exchanged):
            __module__ = "jaxlib._jax"

        values, out = np.full(3, world.rank, np.float32), np.zeros(3, np.float32)
        with self.assertRaisesRegex(dp.InvalidError, "array of jaxlib, which never changes"):
            world.allreduce(Immutable(values))
        with self.assertRaisesRegex(dp.InvalidError, "array of jaxlib, which never changes"):
            world.broadcast(Immutable(values), root=0)
        world.allreduce(Immutable(values), out).wait()
        np.testing.assert_array_equal(out, np.full(3, self.sum_of_ranks(), np.float32))
        np.testing.assert_array_equal(values, np.full(3, world.rank, np.float32))

    def test_bf16_by_dlpack(self):
        one, two, three = 0x3f80, 0x4000, 0x4040
        values = np.full(5, one, np.uint16)
        world.allreduce(Exchanged(values, is_bf16=True)).wait()
        np.testing.assert_array_equal(values, np.full(5, (one, two, three)[world.size - 1]))
        out = np.zeros((world.size, 5), np.uint16)
        world.allgather(Exchanged(values, is_bf16=True), Exchanged(out, is_bf16=True)).wait()
        np.testing.assert_array_equal(out, np.tile(values, (world.size, 1)))
        with self.assertRaisesRegex(dp.UnsupportedError, "bf16.*Give the output"):
            world.allgather(Exchanged(values, is_bf16=True))

    def test_memory_that_cannot_be_used_is_told(self):
        with self.assertRaisesRegex(dp.InvalidError, "not dense"):
            world.allreduce(np.zeros((4, 4))[:, 1])
        with self.assertRaisesRegex(dp.InvalidError, "read-only"):
            world.allreduce(b"bytes")
        with self.assertRaisesRegex(dp.InvalidError, "no type of libdp"):
            world.allreduce(np.zeros(3, np.complex64))
        with self.assertRaisesRegex(dp.InvalidError, "neither the buffer protocol"):
            world.allreduce([1, 2, 3])
        with self.assertRaisesRegex(dp.InvalidError, "input is of f32, the output of f64"):
            world.allreduce(np.zeros(3, np.float32), np.zeros(3))

    def test_copies(self):
        root = world.size - 1
        data = np.full((2, 3), world.rank, np.int32)
        self.assertEqual(world.broadcast(data, root=root).wait().value[1, 2], root)
        row = np.full((2, 3), world.rank, np.float32)
        gathered = world.allgather(row).wait().value
        self.assertEqual(gathered.shape, (world.size, 2, 3))
        np.testing.assert_array_equal(gathered[:, 1, 1], np.arange(world.size))
        on_root = world.gather(row, root=root).wait().value
        self.assertEqual(on_root is None, world.rank != root)
        table = np.arange(world.size * 4, dtype=np.int64).reshape(world.size, 4)
        mine = np.empty(4, np.int64)
        world.scatter(table if world.rank == root else None, mine, root=root).wait()
        np.testing.assert_array_equal(mine, table[world.rank])
        swapped = world.alltoall(np.full((world.size, 2), world.rank, np.int16)).wait().value
        np.testing.assert_array_equal(swapped[:, 0], np.arange(world.size))
        own = world.reduce_scatter(table).wait().value
        np.testing.assert_array_equal(own, table[world.rank] * world.size)
        total = world.reduce(np.ones(3, np.float32), root=root).wait().value
        if world.rank == root:
            np.testing.assert_array_equal(total, np.full(3, world.size, np.float32))

    def test_parts_that_differ_in_size(self):
        for step in range(4):
            rows = (world.rank + step) % 3
            data = np.full((rows, 2), world.rank, np.float32)
            result = world.allgatherv(data).wait()
            wanted = np.concatenate([np.full(((r + step) % 3, 2), r, np.float32)
                                     for r in range(world.size)])
            np.testing.assert_array_equal(result.value, wanted)
            self.assertEqual(result.counts, [2 * ((r + step) % 3) for r in range(world.size)])
            splits = [(world.rank + to + step) % 2 for to in range(world.size)]
            sent = np.full((sum(splits), 3), world.rank, np.int64)
            came = world.alltoallv(sent, splits).wait()
            wanted = np.concatenate([np.full(((r + world.rank + step) % 2, 3), r)
                                     for r in range(world.size)])
            np.testing.assert_array_equal(came.value, wanted)

    def test_parts_are_waited_for_in_any_order(self):
        rows = np.arange(world.rank + 1, dtype=np.int32)
        handles = [world.allgatherv(rows + i, name=f"part {i}") for i in range(5)]
        for i in range(5)[::-1 if world.rank % 2 else 1]:
            wanted = np.concatenate([np.arange(r + 1) + i for r in range(world.size)])
            np.testing.assert_array_equal(handles[i].wait(60).value, wanted)
            self.assertTrue(handles[i].done())
        seen, root = threading.Event(), world.size - 1
        gathered = world.gatherv(rows, root=root, name="gathered", on_done=lambda _: seen.set())
        self.assertTrue(seen.wait(60))
        if world.rank == root:
            self.assertEqual(gathered.wait().counts, list(range(1, world.size + 1)))
        else:
            self.assertIsNone(gathered.wait().value)
        if world.size > 1:  # rows of other lengths are told, on all ranks, and the next one works
            with self.assertRaisesRegex(dp.MismatchError, "tag"):
                world.allgatherv(np.zeros((1, 2 + world.rank)), name="rows").wait(60)
            world.allgatherv(np.zeros((1, 2)), name="rows").wait(60)

    def test_groups_pairs_join_barrier(self):
        half = world.group("low", list(range(max(1, world.size // 2))))
        if half is not None:
            self.assertEqual(half.allreduce(np.ones(2)).wait().value[0], half.size)
            half.destroy()
            with self.assertRaisesRegex(dp.OrderError, "destroyed"):
                half.allreduce(np.ones(2))
        colors = world.world.split("parity", world.rank % 2)
        self.assertEqual(colors.ranks(), list(range(world.rank % 2, world.size, 2)))
        backwards = world.world.split("backwards", 0, -world.rank)
        self.assertEqual(backwards.ranks(), list(range(world.size))[::-1])
        self.assertEqual(backwards.broadcast(np.full(1, world.rank), root=0).wait().value[0],
                         world.size - 1)
        mesh = world.mesh(rows=world.size, columns=1)
        self.assertEqual((mesh["rows"].rank, mesh["columns"].size), (world.rank, 1))
        self.assertIsNone(world.error)
        done = threading.Event()
        world.barrier(on_done=lambda handle: done.set()).wait()
        self.assertTrue(done.wait(60))
        if world.size > 1:
            if world.rank == 0:
                world.send(np.arange(5.0), 1, name="pair").wait()
            elif world.rank == 1:
                got = np.zeros(8)
                world.recv(got, 0, name="pair").wait()
                self.assertEqual(got[4], 4.0)

    def test_grouped_is_one_operation(self):
        tensors = [np.full(n, world.rank, np.float32) for n in (1, 5, 1000)]
        for value in world.grouped_allreduce(tensors).wait().value:
            self.assertEqual(value[0], self.sum_of_ranks())

    def test_shapes_are_compared(self):
        if world.size == 1:
            self.skipTest("one rank")
        shape = (2, 3) if world.rank == 0 else (3, 2)
        with self.assertRaisesRegex(dp.MismatchError, "tag"):
            world.allreduce(np.zeros(shape), name="shape").wait()
        world.allreduce(np.zeros((2, 3)), name="shape").wait()

    def test_mismatch_names_ranks_and_values(self):
        if world.size == 1:
            self.skipTest("one rank")
        with self.assertRaisesRegex(dp.MismatchError, "count"):
            world.allreduce(np.zeros(3 + world.rank % 2), name="other count").wait()

    def test_many_in_flight_without_names(self):
        data = [np.full(100, i, np.float32) for i in range(64)]
        handles = [world.allreduce(one) for one in data]
        for handle in reversed(handles):
            handle.wait()
        for i, one in enumerate(data):
            self.assertEqual(one[99], i * world.size)

    def test_handles_wait_again_and_time_out(self):
        data = np.ones(3)
        handle = world.allreduce(data, name="late" if world.rank == 0 else "late")
        handle.wait()
        self.assertEqual(handle.wait(0.0).value[0], world.size)
        self.assertTrue(handle.done())
        with self.assertRaises(dp.BusyError):
            world.allreduce(data, name="twice")
            world.allreduce(data, name="twice")
            raise dp.BusyError("the first was over already")

    def test_a_dropped_handle_keeps_its_memory(self):
        for i in range(50):
            world.allreduce(np.ones(10000, np.float32), name=f"dropped {i}")
        gc.collect()
        world.wait_all()

    def test_functions_are_called_when_operations_are_over(self):
        seen, all_seen = [], threading.Event()

        def note(handle):
            seen.append(handle.wait().value[0])
            if len(seen) == 40:
                all_seen.set()

        for i in range(40):
            world.allreduce(np.full(10, i, np.float32), name=f"told {i}", on_done=note)
        self.assertTrue(all_seen.wait(60))
        self.assertEqual(sorted(seen), [i * world.size for i in range(40)])

    def test_memory_of_the_arena(self):
        data = np.frombuffer(world.alloc(1600), np.float32).reshape(4, 100)
        self.assertEqual(data.sum(), 0.0)
        data[:] = 1.0
        world.allreduce(data, name="arena").wait()
        self.assertEqual(data[3, 99], world.size)
        part = data[1:3]
        del data
        gc.collect()
        world.allreduce(part, name="part").wait()
        self.assertEqual(part[0, 0], world.size ** 2)
        if not world.is_on_gpu:  # there it is ordinary memory
            with self.assertRaisesRegex(dp.BusyError, "still in use"):
                world.finalize()

    def test_gradients(self):
        weights = np.full(10, world.rank, np.float32)
        gradient = world.empty(10)
        gradients = dp.Gradients(world, [("w", weights, gradient)], clip_norm=1.0)
        self.assertEqual(weights[9], 0.0)
        for step in range(3):
            with world.step(step), world.span("backward"):
                gradient[:] = world.rank + 1.0
                gradients.ready(0)
            result = gradients.sync()
            mean = (world.size + 1) / 2
            self.assertAlmostEqual(gradient[0], mean, places=5)
            self.assertAlmostEqual(result.norm, mean * 10 ** 0.5, places=4)
            self.assertFalse(result.skip)
        with self.assertRaises(dp.OrderError):
            gradients.sync()
        gradients.destroy()

    def test_settings_and_statistics(self):
        self.assertEqual(world.setting("ORDER"), "negotiated")
        self.assertIsNone(world.setting("NO_SUCH"))
        stats = world.stats()
        self.assertGreater(stats.completed, 0)
        self.assertGreaterEqual(stats["submitted"], stats["completed"])


if __name__ == "__main__":
    unittest.main()
