"""Life and death of a context in Python: worlds by a store, Ctrl-C, exceptions, fork, the end of the
process. Each case starts its ranks itself, as processes.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DPRUN = os.environ.get("DPRUN", "dprun")
LIMIT = 60
# A store of one process, for ranks that are its threads.
STORE = """
import threading
table, changed = {}, threading.Condition()
def put(key, value):
    with changed:
        table[key] = value
        changed.notify_all()
def get(key, seconds):
    with changed:
        if not changed.wait_for(lambda: key in table, seconds):
            raise TimeoutError(key)
        return table[key]
"""


def start(body, ranks=2, launcher=True, before="", **variables):
    """A program of `ranks` ranks under dprun, or one process alone; before: its text in front of the body."""
    program = "import os, sys, time\nimport numpy as np\nimport dp\n" + before + textwrap.dedent(body)
    command = [sys.executable, "-c", program]
    if launcher:
        command = [DPRUN, "-np", str(ranks), *command]
    environment = {**os.environ, "PYTHONPATH": PACKAGE, **variables}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)


def finish(process):
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"not over after {LIMIT} s:\n{output}") from None
    return process.returncode, output


def await_line(process, text):
    """Reads until a line has the text; returns what came."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"'{text}' did not come:\n{''.join(lines)}")


class Life(unittest.TestCase):
    def test_worlds_by_a_store_follow_each_other(self):
        code, output = finish(start("""
            def rank(number, world):
                with dp.init((put, get), number, 3) as context:  # keys of the last world are there
                    data = np.full(5, number + 1.0)
                    context.allreduce(data).wait()
                    assert data[0] == 6.0, data
            for world in range(3):
                threads = [threading.Thread(target=rank, args=(i, world)) for i in range(3)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
            def broken(key, value): raise OSError("the store is gone")
            try:
                dp.init((broken, broken), 1, 2)
            except dp.SystemFailure as failure:
                assert "dp/world" in str(failure) and "gone" in str(failure.__cause__), failure
                end = time.monotonic() + 30
                while threading.active_count() > 1:
                    assert time.monotonic() < end, threading.enumerate()
                print("told")
            """, launcher=False, before=STORE))
        self.assertEqual(code, 0, output)
        self.assertIn("told", output)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler is here")
    def test_init_has_the_gpu_of_the_thread_that_calls(self):
        """libdp itself runs on another thread, see current_gpu.py. With a driver that knows contexts alone."""
        with tempfile.TemporaryDirectory(prefix="dp-life-") as folder:
            driver = os.path.join(folder, "driver.so")
            subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, "-x", "c", "-"],
                           check=True, text=True, input="""
                static _Thread_local void *current;
                int cuCtxGetCurrent(void **context) { *context = current; return 0; }
                int cuCtxSetCurrent(void *context) { current = context; return 0; }
                """)
            code, output = finish(start(f"""
                import ctypes
                from dp.current_gpu import CurrentGpu
                ctypes.CDLL({driver!r}).cuCtxSetCurrent(ctypes.c_void_p(7))
                gpu = CurrentGpu()
                def put_and_take_gpu(key, value):
                    if gpu.get() == 7:
                        gpu.set(9)
                        print("taken over", threading.current_thread() is threading.main_thread())
                    put(key, value)
                def other():
                    dp.init((put, get), 1, 2).finalize()
                    assert gpu.get() is None
                thread = threading.Thread(target=other)
                thread.start()
                world = dp.init((put_and_take_gpu, get), 0, 2)
                assert gpu.get() == 9, gpu.get()
                world.finalize()
                thread.join()
                """, launcher=False, before=STORE, DP_DEVICE="host"))
        self.assertEqual(code, 0, output)
        self.assertIn("taken over False", output)

    def test_an_exception_on_one_rank_ends_all_with_its_words(self):
        code, output = finish(start("""
            world = dp.init()
            world.allreduce(np.ones(3), name="first").wait()
            if world.rank == 1:
                raise ValueError("the data is bad")
            world.allreduce(np.ones(3), name="second").wait()
            """))
        self.assertNotEqual(code, 0)
        self.assertIn("ValueError: the data is bad", output)
        self.assertRegex(output, r"dp\.errors\.AbortedError.*")

    def test_a_killed_rank_is_named(self):
        code, output = finish(start("""
            import signal
            world = dp.init()
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                world.allreduce(np.ones(3), name="x").wait()
            except dp.PeerLostError as error:
                print("LOST", error)
                world.finalize()
            """))
        self.assertNotEqual(code, 0)
        self.assertRegex(output, "rank 1")

    def test_ctrl_c_ends_a_wait(self):
        process = start("""
            world = dp.init()
            print("waiting", flush=True)
            try:
                if world.rank == 0:
                    world.allreduce(np.ones(3), name="never").wait()
                else:
                    time.sleep(600)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                raise
            """)
        try:
            await_line(process, "waiting")
            await_line(process, "waiting")
            children = subprocess.run(["pgrep", "-f", "-g", str(process.pid), "import os, sys"],
                                      capture_output=True, text=True)
            os.killpg(process.pid, signal.SIGINT)
            code, output = finish(process)
            self.assertIn("interrupted", output, children.stdout)
            self.assertNotEqual(code, 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()

    def interrupt(self, body, at_end="raise", **variables):
        """Ctrl-C at rank 0, in a call to which rank 1 does not come. Returns dprun's code and all output."""
        process = start(f"""
            world = dp.init()
            data = np.ones(3)
            group = world.group("old", [0, 1])
            gradients = dp.Gradients(world, [("w", None, data)])
            if world.rank == 1:
                os.environ.get("SLEEPS") and time.sleep(600)
                world.recv(data, 0, name="never").wait()
            print("waiting", os.getpid(), flush=True)
            try:
                {body}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                {at_end}
            """, **variables)
        try:
            line = await_line(process, "waiting").splitlines()[-1]
            time.sleep(0.5)  # it is in the call, or this run shows nothing
            began = time.monotonic()
            os.kill(int(re.search("waiting (\\d+)", line)[1]), signal.SIGINT)
            code, output = finish(process)
            self.assertIn("interrupted", output)
            self.assertLess(time.monotonic() - began, 30, output)
            return code, output
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()

    def test_ctrl_c_ends_calls_that_wait_for_other_ranks(self):
        for call, name in (("world.group('pair', [0, 1])", "group_create"), ("group.split('half', 0)", "group_split"),
                           ("group.destroy()", "group_destroy"), ("gradients.ready(0); gradients.sync()", "gradients_sync"),
                           ("dp.Gradients(world, [('w2', data, data)])", "gradients_create")):
            with self.subTest(name):
                code, output = self.interrupt(call)
                self.assertNotEqual(code, 0)
                self.assertRegex(output, rf"AbortedError.*KeyboardInterrupt in dp_{name}\(\)")  # on rank 1

    def test_ctrl_c_ends_finalize(self):
        code, output = self.interrupt("gradients.destroy(); world.finalize()", "sys.exit(3)", SLEEPS="yes")
        self.assertEqual(code, 3, output)

    def test_ctrl_c_ends_init(self):
        """A world that forms behind it is left by the rank that was interrupted, and the others are told."""
        with tempfile.TemporaryDirectory(prefix="dp-life-") as folder:
            variables = {"DP_SIZE": "2", "DP_RENDEZVOUS": "127.0.0.1:29511", "XDG_RUNTIME_DIR": folder,
                         "DP_START_TIMEOUT": "50s"}
            first = start("""
                try:
                    dp.init()
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
                sys.stdin.read()
                sys.exit(3)
                """, launcher=False, DP_RANK="0", **variables)
            second = None
            try:
                end = time.monotonic() + LIMIT
                while not os.path.isdir(os.path.join(folder, "dp")) or not os.listdir(os.path.join(folder, "dp")):
                    self.assertLess(time.monotonic(), end, "rank 0 does not gather ranks")
                    time.sleep(0.01)
                os.kill(first.pid, signal.SIGINT)
                await_line(first, "interrupted")
                second = start("""
                    world = dp.init()
                    try:
                        world.allreduce(np.ones(3)).wait()
                    except dp.Error as error:
                        print("told", type(error).__name__, error)
                        world.abort("over")
                    """, launcher=False, DP_RANK="1", **variables)
                code, output = finish(second)
                self.assertIn("told AbortedError", output)
                self.assertIn("a signal ended the wait in dp.init()", output)
                first.stdin.close()
                first.stdin = None
                code, output = finish(first)
                self.assertEqual(code, 3, output)
            finally:
                for process in filter(None, (first, second)):
                    process.kill()
                    process.wait()
                    process.stdout.close()

    def test_a_process_can_end_whose_init_was_interrupted(self):
        for at_end, wanted in (("sys.exit(3)", 3), ("raise", -signal.SIGINT)):
            with self.subTest(at_end), tempfile.TemporaryDirectory(prefix="dp-life-") as folder:
                process = start(f"""
                    import signal, threading
                    def interrupt():
                        while not os.path.isdir({folder!r} + "/dp") or not os.listdir({folder!r} + "/dp"):
                            time.sleep(0.01)
                        os.kill(os.getpid(), signal.SIGINT)
                    threading.Thread(target=interrupt).start()
                    try:
                        dp.init()
                    except KeyboardInterrupt:
                        print("interrupted", flush=True)
                        {at_end}
                    """, launcher=False, DP_RANK="0", DP_SIZE="2", DP_RENDEZVOUS="127.0.0.1:29511",
                    XDG_RUNTIME_DIR=folder, DP_START_TIMEOUT="50s")
                code, output = finish(process)
                self.assertIn("interrupted", output)
                self.assertEqual(code, wanted, output)

    def test_a_signal_as_a_wait_ends_loses_no_result(self):
        """Python calls the handler behind the wait, which may have given libdp's handle back."""
        code, output = finish(start("""
            import signal
            world = dp.init()
            def stop(*_): raise KeyboardInterrupt
            signal.signal(signal.SIGUSR1, stop)
            pids = world.allgather(np.array([os.getpid()])).wait().value.ravel()
            interrupted = 0
            for turn in range(30):
                if world.rank == 1:
                    world.recv(np.ones(1), 0, name="go").wait()
                    time.sleep(0.005)
                    os.kill(int(pids[0]), signal.SIGUSR1)
                    world.allreduce(np.ones(3), name="x").wait()
                    continue
                handle = world.allreduce(np.ones(3), name="x")
                world.send(np.ones(1), 1, name="go")
                try:
                    handle.wait()
                except KeyboardInterrupt:
                    interrupted += 1
                try:
                    assert handle.wait().value[0] == 2.0
                except KeyboardInterrupt:  # the machine was slow, and it came here
                    assert handle.wait().value[0] == 2.0
            print("interrupted", interrupted, flush=True)
            """))
        self.assertEqual(code, 0, output)
        counts = [int(line.split()[-1]) for line in output.splitlines() if "interrupted" in line]
        self.assertGreater(max(counts), 0, output)

    def test_an_exception_of_on_done_is_told_and_harms_no_other(self):
        code, output = finish(start("""
            import threading
            world = dp.init()
            def fail(handle):
                raise ValueError(f"the first of rank {world.rank}")
            came = threading.Event()
            first = world.allreduce(np.ones(3), name="first", on_done=fail)
            first.wait()
            world.allreduce(np.ones(3), name="second", on_done=lambda handle: came.set())
            assert came.wait(30), "the thread that tells of operations has ended"
            world.finalize()
            print("passed")
            """))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("passed"), 2, output)
        self.assertEqual(output.count("ValueError: the first of rank"), 2, output)

    def test_the_end_of_the_process_finalizes(self):
        code, output = finish(start("""
            world = dp.init()
            kept = world.empty(100)
            world.allreduce(kept, name="x").wait()
            print("no finalize")
            """, ranks=3))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("no finalize"), 3)

    def test_arrays_of_a_world_outlive_it(self):
        code, output = finish(start("""
            with dp.init() as world:
                kept = world.empty((100, 300))
                kept[:] = world.rank + 1
                world.allreduce(kept, name="x").wait()
                gone = world.empty(10)
                world.allreduce(gone, name="y")
                del gone
            assert (kept == 3).all()
            kept += 1
            print("passed")
            """))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("passed"), 2, output)

    def test_a_context_that_was_dropped_is_finalized(self):
        code, output = finish(start("""
            import gc
            world = dp.init()
            world.allreduce(np.ones(3), name="x").wait()
            if world.rank == 0:
                del world
                gc.collect()
                print("dropped", flush=True)
                sys.exit(0)
            world.finalize()
            print("passed", flush=True)
            """))
        self.assertEqual(code, 0, output)
        self.assertIn("dropped", output)
        self.assertIn("passed", output)

    def test_a_forked_child_is_refused_and_harms_nothing(self):
        code, output = finish(start("""
            world = dp.init()
            data = world.empty(10)
            handle = world.allreduce(data, name="x")
            child = os.fork()
            if child == 0:
                try:
                    world.allreduce(np.ones(3))
                except dp.InvalidError as error:
                    print("refused:", error, flush=True)
                del handle, data
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            handle.wait()
            world.allreduce(np.ones(3), name="y").wait()
            del data, handle
            world.finalize()
            """))
        self.assertEqual(code, 0, output)
        self.assertEqual(output.count("refused: "), 2, output)

    def test_a_wait_that_times_out_goes_on(self):
        code, output = finish(start("""
            world = dp.init()
            data = np.ones(3)
            if world.rank == 0:
                handle = world.allreduce(data, name="x")
                try:
                    handle.wait(0.3)
                except TimeoutError:
                    print("timed out", flush=True)
                world.send(np.ones(1), 1, name="go").wait()
            else:
                world.recv(np.ones(1), 0, name="go").wait()
                handle = world.allreduce(data, name="x")
            assert handle.wait().value[0] == 2.0
            """))
        self.assertEqual(code, 0, output)
        self.assertIn("timed out", output)

    def test_import_needs_neither_numpy_nor_torch(self):
        code, output = finish(start("""
            """, launcher=False))
        self.assertEqual(code, 0, output)
        done = subprocess.run([sys.executable, "-c", "import sys, dp\n"
                               "assert not {'numpy', 'torch'} & set(sys.modules)"],
                              env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True,
                              text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_library_that_is_not_there_is_told(self):
        done = subprocess.run([sys.executable, "-c", "import dp"], capture_output=True, text=True,
                              timeout=LIMIT, env={**os.environ, "PYTHONPATH": PACKAGE,
                                                  "LIBDP_PATH": "/nonexistent/libdp.so"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("set LIBDP_PATH", done.stderr)


if __name__ == "__main__":
    unittest.main()
