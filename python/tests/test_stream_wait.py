"""What waits for an operation on a GPU: the stream, and not the host, as with PyTorch's backend for NCCL.

libdp, the GPU's streams and its tensors are fakes here (fake_gpu.c, fake_device.cc); the backend is the compiled one,
and dp.torch is what it is. One rank. Skips where no C++ compiler is.
"""
import ctypes
import datetime
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
UNISSUED, ISSUED, OVER, FAILED = range(4)
SOON = datetime.timedelta(milliseconds=300)


def compile_fakes(folder):
    """Puts fake_gpu.so in the place of libdp, and loads fake_device.so."""
    libdp = os.environ["LIBDP_PATH"]
    calls = os.path.join(folder, "fake_gpu.so")
    subprocess.run(["cc", "-std=gnu17", "-shared", "-fPIC", "-Wall", "-I", os.path.join(HERE, "..", "..", "include"),
                    os.path.join(HERE, "fake_gpu.c"), "-Wl,--no-as-needed", libdp, f"-Wl,-rpath,{os.path.dirname(libdp)}", "-o", calls],
                   check=True)
    subprocess.run([sys.executable, "-m", "dp.torch.native"], check=True)  # linked with the true libdp
    os.environ["FAKE_LIBDP"] = libdp
    fake = ctypes.CDLL(calls, mode=ctypes.RTLD_GLOBAL)  # before the backend, which then finds these functions first
    os.environ["LIBDP_PATH"] = calls
    from dp.torch import native
    native.load()
    device = os.path.join(folder, "fake_device.so")
    command = native._command(native._header(), device)
    command[command.index(os.path.join(native.SOURCES, "backend.cc"))] = os.path.join(HERE, "fake_device.cc")
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("fake_device", device)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return fake, module


def native_stream(number):
    return 1000 + number


class StreamWait(unittest.TestCase):
    def setUp(self):
        self.set(OVER)
        fake_device.set_current(0)
        fake_device.take_log()

    def set(self, state):
        ctypes.c_int.in_dll(fake, "fake_state").value = state

    def waited(self):
        """The stream that waited last."""
        return ctypes.c_void_p.in_dll(fake, "fake_stream").value

    def waits(self):
        return ctypes.c_int.in_dll(fake, "fake_waits").value

    def begin(self, value=3.0):
        host = torch.full((5,), value)
        return backend.allreduce([fake_device.on_device(host)], dist.AllreduceOptions())

    def test_a_stream_waits_while_the_host_goes_on(self):
        self.set(ISSUED)
        fake_device.set_current(2)
        work = self.begin()
        self.assertEqual(ctypes.c_void_p.in_dll(fake, "fake_ready_stream").value, native_stream(2))
        fake_device.set_current(4)
        self.assertTrue(work.wait())
        self.assertEqual(self.waited(), native_stream(4))
        self.assertEqual(fake_device.take_log(), ["use 4"])
        self.assertFalse(work.is_completed())
        fake_device.set_current(5)
        work.wait()  # another stream
        self.assertEqual(self.waited(), native_stream(5))
        self.set(OVER)
        self.assertTrue(work.is_completed())
        work.wait()

    def test_the_host_waits_until_it_is_issued_and_where_a_timeout_is_given(self):
        for state in (UNISSUED, ISSUED):
            self.set(state)
            work = self.begin()
            with self.assertRaisesRegex(dist.DistBackendError, "Timed out waiting 300ms for all_reduce"):
                work.wait(SOON)
            self.set(OVER)
            work.wait()

    def test_a_future_is_complete_when_a_stream_of_its_own_waits(self):
        self.set(ISSUED)
        fake_device.set_current(2)
        future = self.begin().get_future()
        before = fake_device.take_log()
        self.assertNotIn("block 2", before)
        future.wait()
        self.assertEqual(self.waited(), native_stream(9))
        log = before + fake_device.take_log()
        self.assertIn("record 9", log)
        self.assertEqual(log[-1], "block 2")

    def test_a_later_failure_is_raised_by_the_next_call_once(self):
        for then in (lambda: self.begin(), lambda: after.wait()):
            self.set(ISSUED)
            work = self.begin()
            after = self.begin()
            work.wait()
            self.set(FAILED)
            with self.assertRaisesRegex(dist.DistBackendError, "rank 1: the link broke under tensor t"):
                then()
            self.set(OVER)
            backend.barrier().wait()
            self.begin().wait()

    def test_a_barrier_waits_for_results_that_only_streams_wait_for(self):
        self.set(ISSUED)
        self.begin().wait()
        barrier = backend.barrier()
        with self.assertRaisesRegex(dist.DistBackendError, "Timed out"):
            barrier.wait(SOON)
        done = threading.Event()
        waiting = threading.Thread(target=lambda: (barrier.wait(), done.set()))
        waiting.start()
        self.assertFalse(done.wait(0.3))
        self.set(OVER)
        waiting.join(20)
        self.assertTrue(done.is_set())

    def test_hvd_waits_by_the_stream_too(self):
        from dp.torch import reduction

        class OnGpu(torch.Tensor):
            is_cuda = True
            uses = 0

            def record_stream(self, stream):
                OnGpu.uses += 1

        def begin(name):
            return hvd.allreduce_async_(torch.ones(4).as_subclass(OnGpu), name=name, op=hvd.Sum)

        hvd.init()
        before = self.waits()
        self.set(ISSUED)
        fake_device.set_current(3)
        output = hvd.synchronize(begin("a"))
        self.assertEqual((self.waits(), self.waited()), (before + 1, native_stream(3)))
        self.assertGreater(OnGpu.uses, 0)
        self.assertEqual(output.shape, (4,))
        half = torch.ones(4, dtype=torch.float16).as_subclass(OnGpu)  # whose factor is applied behind it
        handle = hvd.allreduce_async_(half, name="half", op=hvd.Sum, postscale_factor=0.5)
        self.assertEqual(hvd.synchronize(handle)[0].item(), 0.5)
        self.assertEqual(self.waits(), before + 2)
        with mock.patch.object(reduction, "_blocks", True):
            handle = begin("blocking")
            threading.Timer(0.3, self.set, (OVER,)).start()
            hvd.synchronize(handle)
        self.assertEqual(self.waits(), before + 2)
        self.set(ISSUED)
        handle = begin("b")
        self.set(FAILED)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "the link broke under tensor t"):
            hvd.synchronize(handle)
        self.set(OVER)
        hvd.synchronize(begin("a"))  # behind which the name is free again
        hvd.synchronize(begin("c"))
        with self.assertRaises(IndexError):
            while True:
                context, pointer = reduction._joined.popleft()
                self.assertEqual(reduction.lib.wait(pointer, 10.0, None), 0)
        hvd.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            fake, fake_device = compile_fakes(folder)
        except (ImportError, OSError, subprocess.CalledProcessError) as reason:
            print(reason)
            sys.exit(77)
        import torch
        import torch.distributed as dist

        import dp.torch as hvd
        import dp.torch.backend
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        current = mock.patch("torch.cuda.current_stream", lambda device=None: types.SimpleNamespace(
            cuda_stream=native_stream(fake_device.current())))
        with current:
            dist.init_process_group("dp", store=dist.HashStore(), rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            outcome = unittest.main(exit=False, verbosity=2)
            dist.destroy_process_group()
    sys.exit(not outcome.result.wasSuccessful())
