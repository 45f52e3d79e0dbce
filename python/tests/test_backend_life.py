"""Ranks of torch.distributed over libdp that are killed, raise, are interrupted, fork or leave early: told in
words, and nothing left. Starts its own ranks.
"""
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings

from measuring.process import free_port
from torch_ranks import (ENVIRONMENT, FOLDER, LIMIT, MINIMUM, PACKAGE, VERSION, Job, dist, fails, has_backend,
                         torch, world)

DPRUN = os.environ.get("DPRUN", os.path.join(os.path.dirname(PACKAGE), "build-dev", "dprun"))


def killed(here, own):
    dist.all_reduce(torch.ones(1))
    if here == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    fails(lambda: dist.all_reduce(torch.ones(1)), "rank 1")
    fails(lambda: dist.all_reduce(torch.ones(1)), "rank 1")
    if hasattr(own, "get_error"):
        assert own.get_error().name == "REMOTE_ERROR", own.get_error()
    warnings.simplefilter("ignore")
    dist.destroy_process_group()
    print("went on")


def raised(here):
    dist.all_reduce(torch.ones(1))
    if here == 1:
        raise ValueError("the data is bad")
    dist.all_reduce(torch.ones(1))


def aborted(here, own):
    dist.all_reduce(torch.ones(1))
    if here == 1:
        dist.group.WORLD.abort()
    else:
        fails(lambda: dist.all_reduce(torch.ones(1)), "rank 1", "torch.distributed aborted the process group")
    fails(lambda: dist.all_reduce(torch.ones(1)), "aborted")
    if hasattr(own, "get_error"):
        assert own.get_error().name == "REMOTE_ERROR", own.get_error()
    warnings.simplefilter("ignore")
    dist.destroy_process_group()
    print("passed")


def interrupted(here):
    dist.all_reduce(torch.ones(1))
    print("waits", flush=True)
    dist.all_reduce(torch.ones(1)) if here == 0 else dist.recv(torch.ones(1), 0)  # which the other one does not call


def interrupted_calls(here):
    """Rank 0 calls more than libdp has names for, and rank 1 none of them."""
    dist.all_reduce(torch.ones(1))
    print("waits", flush=True)
    if here == 0:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(1000)]
    dist.recv(torch.ones(1), 0)


def interrupted_end(here):
    """The end of rank 0 waits for a group that rank 1 does not destroy."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    print("waits", flush=True)
    if here == 0:
        dist.destroy_process_group(group)
        dist.destroy_process_group()
    dist.recv(torch.ones(1), 0)


def left(here):
    global kept, group, future  # until the process ends, not the function
    kept = dist.all_reduce(torch.ones(1000), async_op=True)
    dist.all_reduce(torch.ones(1))
    group = dist.new_group([1, 0])
    dist.all_reduce(torch.ones(1), group=group)
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    print("leaves", here)


def forked(here, ranks):
    from torch.utils.data import DataLoader, Dataset
    class Numbers(Dataset):
        def __len__(self):
            return 16
        def __getitem__(self, i):
            return torch.full((3,), float(i))
    total = torch.zeros(3)
    for epoch in range(2):
        for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
            work = dist.all_reduce(batch, async_op=True)
            future = work.get_future()
            work.wait()
            total += batch.sum(0)
            future.wait()
    assert total[0] == 2 * ranks * 120, total
    if here == 0:
        dist.isend(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    child = os.fork()  # one that ends as a program does
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            print("refused", error, flush=True)
        sys.exit(0)
    code = os.waitpid(child, 0)[1]
    assert code == 0, code
    dist.all_reduce(total)
    dist.destroy_process_group()
    print("passed")


def two_worlds(here, ranks, store):
    import dp
    second = dp.init(dist.PrefixStore("second", store), here, ranks)
    data = second.empty(1000)
    for turn in range(20):
        x = torch.full((1000,), here + 1.0)
        data[:] = here + 1
        work, handle = dist.all_reduce(x, async_op=True), second.allreduce(data, name="data")
        (work, handle)[turn % 2].wait()
        (handle, work)[turn % 2].wait()
        assert x[999] == 3 and data[999] == 3, (x, data)
    del data, handle
    second.finalize()
    dist.all_reduce(x)
    assert x[999] == 6, x
    dist.destroy_process_group()
    print("passed")


def again(here, ranks, own, backend, place):
    for turn in range(3):
        group = dist.new_group([ranks - 1, 0])
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.all_reduce(x, group=group)
        assert x[3] == ranks * 2
        dist.destroy_process_group()
        dist.init_process_group(backend, init_method=f"file://{place}.{turn}", rank=here, world_size=ranks)
    # More groups, one after the other, than libdp has room for at one time.
    for turn in range(1100 if hasattr(own, "shutdown") else 3):
        group = dist.new_group([0, 1])
        if turn % 100 == 0:
            dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    print("passed")


def own_worlds(ranks):
    """Beside another default group each group is a world of its own."""
    import dp.torch.backend
    for turn in range(4):
        group = dist.new_group([0, 1], backend="dp")
        x = torch.ones(4)
        dist.all_reduce(x, group=group)
        assert x[3] == ranks
        dist.destroy_process_group(group)
        assert len(dp.torch.backend._worlds) == 1, "worlds that have ended are kept"
    dist.destroy_process_group()
    print("passed")


def blocked(here, store):
    """A function of rank 0's, which another thread of the program lets go on."""
    go_on = threading.Event()

    def wait(one):
        assert go_on.wait(100)
        return one.value()

    if here == 0:
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(wait)
        store.set("waits", "yes")
        dist.all_reduce(torch.ones(1))
        time.sleep(4)  # no other thread of this world has anything to do
        go_on.set()
        future.wait()
    else:
        store.wait(["waits"], datetime.timedelta(seconds=100))
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    print("passed")


def shared(here, ranks):
    """Two threads of a rank call collectives of one group, in another order than those of the other rank."""
    told = []

    def collect(call):
        try:
            call()
        except RuntimeError as error:
            told.append(str(error))

    def train():
        collect(lambda: dist.all_reduce(torch.ones(3)))

    def save(group=None):
        collect(lambda: dist.all_gather_object([None] * ranks, here, group=group))

    def by_thread(call):
        thread = threading.Thread(target=call)
        thread.start()
        return thread

    for first, second in ((train, train), (save, train) if here == 0 else (train, save)):
        by_thread(first).join()
        second()
    assert told and all("each wants a group of its own (process_group=dist.new_group())" in one for one in told), told
    group, known = dist.new_group(), len(told)  # which is the way to do it
    thread = by_thread(lambda: save(group))
    for _ in range(20):
        train()
    thread.join()
    assert len(told) == known, told
    dist.destroy_process_group()
    print("passed")


def saved_beside(here, place):
    """Checkpoints that a thread writes while this one trains."""
    import torch.distributed.checkpoint as dcp
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    def save(number, **keywords):
        future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{place}.{number}", **keywords)
        is_done = torch.zeros(1)
        while not is_done:  # on all ranks, which train alike
            train()
            is_done.fill_(future.done())
            dist.all_reduce(is_done, dist.ReduceOp.MIN)
        future.result()

    group = dist.new_group()
    for number in range(2):
        save(number, process_group=group)
    kept = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    dcp.load(kept, checkpoint_id=f"{place}.1")
    assert all(value.any() for value in kept["model"].values())
    dist.destroy_process_group()
    print("passed")


def timeouts(here, store):
    dist.set_timeout(datetime.timedelta(milliseconds=300), dist.group.WORLD)
    if here == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        fails(lambda: work.wait(), "Timed out waiting 300ms for all_reduce")
        store.set("timed out", "yes")
    else:
        store.wait(["timed out"], datetime.timedelta(seconds=100))
        work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait(datetime.timedelta(seconds=100))  # it went on
    dist.destroy_process_group()
    print("passed")


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Meeting(unittest.TestCase):
    def check(self, late, *launcher):
        done = subprocess.run([*launcher, os.path.join(FOLDER, "meeting.py"), str(late)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                              env={**os.environ, **ENVIRONMENT, "DP_START_TIMEOUT": "2s"})
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in range(2):
            for number in range(2):
                self.assertIn(f"rank {rank} attempt 1 world {number} sum 4.0", done.stdout)

    def test_under_dprun(self):
        for late in range(2):
            self.check(late, DPRUN, "-np", "2", "--no-prefix", sys.executable)

    def test_under_torchrun_that_starts_again(self):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
        self.check(0, *torchrun, "--standalone")
        self.check(1, *torchrun, "--master-addr=127.0.0.1", f"--master-port={free_port()}")


@unittest.skipUnless(has_backend(), "the backend wants a later PyTorch")
class Life(unittest.TestCase):
    def test_a_killed_rank_is_named_and_the_others_go_on(self):
        with Job(killed, ranks=3) as job:
            codes, outputs = job.finish()
        self.assertEqual(codes, [0, -signal.SIGKILL, 0], outputs)
        self.assertIn("went on", outputs[0])
        self.assertIn("went on", outputs[2])

    def test_an_exception_on_one_rank_ends_all_with_its_words(self):
        with Job(raised, ranks=3) as job:
            codes, outputs = job.finish()
        for code, output in zip(codes, outputs):
            self.assertEqual(code, 1, output)
            self.assertIn("ValueError: the data is bad", output)
        self.assertIn("DistBackendError", outputs[0])

    def test_an_abort_on_one_rank_is_told_to_all(self):
        if VERSION < (2, 7):
            self.skipTest("torch aborts no plug-in before 2.7")
        self.assertIn("passed", world(aborted))

    def interrupt(self, body):
        """Ctrl-C at rank 0 ends both ranks, which wait."""
        with Job(body) as job:
            for process in job.processes:
                while b"waits" not in (line := process.stdout.readline()):
                    self.assertNotEqual(line, b"", "it ended before its wait")
            time.sleep(0.5)
            began = time.monotonic()
            job.processes[0].send_signal(signal.SIGINT)
            codes, outputs = job.finish()
            took = time.monotonic() - began
        self.assertIn("KeyboardInterrupt", outputs[0])
        self.assertNotEqual(codes[0], 0)
        self.assertIn("KeyboardInterrupt", outputs[1], "the other rank is not told")
        self.assertNotEqual(codes[1], 0)
        self.assertLess(took, 60, outputs)

    def test_ctrl_c_ends_a_wait(self):
        self.interrupt(interrupted)

    def test_ctrl_c_ends_a_call_that_waits_for_a_name(self):
        self.interrupt(interrupted_calls)

    @unittest.skipUnless(VERSION >= (2, 7), "before, torch ends no group of a plug-in")
    def test_ctrl_c_ends_a_wait_for_the_end_of_groups(self):
        self.interrupt(interrupted_end)

    def test_the_end_of_the_process_ends_the_world(self):
        with Job(left) as job:
            codes, outputs = job.finish()
        self.assertEqual(codes, [0, 0], outputs)
        self.assertIn("leaves 1", outputs[1])

    def test_data_loaders_and_children_do_no_harm(self):
        with Job(forked) as job:
            codes, outputs = job.finish()
        self.assertEqual(codes, [0, 0], outputs)
        for output in outputs:
            self.assertIn("passed", output)
            self.assertEqual(output.count("refused"), 1, output)

    def test_a_function_that_does_not_return_is_named(self):
        output = world(blocked, DP_STALL_WARN="1s")
        self.assertIn("passed", output)
        self.assertRegex("\n".join(output), r"(?m)^dp warn rank 0: all_reduce of the group of ranks \[0, 1\]: a function of the "
                                            r"program, of then\(\) or a communication hook, has not returned for \d s")

    def test_threads_that_share_a_group_are_told_to_take_their_own(self):
        self.assertIn("passed", world(shared))

    def test_checkpoints_are_written_beside_training(self):
        self.assertIn("passed", world(saved_beside))

    def test_two_contexts_in_a_process(self):
        self.assertIn("passed", world(two_worlds))

    def test_worlds_and_groups_follow_each_other(self):
        self.assertIn("passed", world(again))

    @unittest.skipUnless(VERSION >= (2, 7), "before, torch ends no group of a plug-in")
    def test_worlds_beside_another_backend_are_forgotten(self):
        self.assertIn("passed", world(own_worlds, "gloo"))

    @unittest.skipUnless(VERSION >= (2, 14), "torch sets no time-out of a plug-in before")
    def test_the_timeout_of_a_group_can_be_set(self):
        self.assertIn("passed", world(timeouts))


if __name__ == "__main__":
    if not has_backend():
        print(f"no PyTorch of {MINIMUM[0]}.{MINIMUM[1]} or later is here")
        sys.exit(77)
    unittest.main()
