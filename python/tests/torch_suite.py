#!/usr/bin/env python3
"""torch_suite.py - runs PyTorch's own DistributedTest over the backend "dp", and says how many of it pass.

    python/tests/torch_suite.py [--as-gloo] [--ranks 4] [-k TEXT] [--limit S] [--results FILE] [--list]

The tests ship in PyTorch's wheel (torch.testing._internal.distributed.distributed_test); they want NumPy and
expecttest, and --as-gloo PyTorch 2.14. As "dp" those run that a backend of no known name may run; with --as-gloo
the backend takes gloo's name, and gloo's longer list runs. Each test forks its ranks from this process, which
has loaded PyTorch once, and ends after S seconds at the latest. FILE gets a line of JSON for each test; tests that
have a line there are not run again. Prints each test that failed with its reason, then "N of M". Exit code
0: only tests that KNOWN lists failed; 77: there is no such PyTorch, or no compiler for the backend.
"""
import argparse
import collections
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SUITE = "torch.testing._internal.distributed.distributed_test"
MINIMUM = (2, 4)
MINIMUM_AS_GLOO = (2, 14)
# Tests that cannot pass, and why.
KNOWN = {"test_ddp_logging_data_cpu": "DDP logs a plug-in's backend as 'custom'"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as-gloo", action="store_true", help="under gloo's name, with gloo's list of tests")
    parser.add_argument("--peer", action="store_true", help="gloo itself, for comparison")
    parser.add_argument("--ranks", type=int, default=4, help="ranks [4]")
    parser.add_argument("--build", default=os.path.join(TOP, "build"), help="folder with libdp [build]")
    parser.add_argument("-k", default="", metavar="TEXT", help="only tests whose name matches this expression")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a test [120]")
    parser.add_argument("--results", help="file of results, to go on from where an earlier run ended")
    parser.add_argument("--list", action="store_true", help="print what FILE says, run nothing")
    parser.add_argument("-v", action="store_true", help="print all that failing ranks say")
    return parser.parse_args()


def compile_backend(options: argparse.Namespace) -> str:
    """Loads the backend here, once, and not in each rank; why there is none, or ''."""
    os.environ.setdefault("LIBDP_PATH", os.path.join(options.build, "libdp.so"))
    sys.path.insert(0, os.path.join(TOP, "python"))
    native = importlib.import_module("dp.torch.native")
    try:
        native.load()
    except native.Unavailable as reason_against:
        return str(reason_against)
    return ""


def prepare(options: argparse.Namespace, folder: str):
    """The module of tests, told that "dp" can do what it can."""
    os.environ.update(BACKEND="gloo" if options.as_gloo or options.peer else "dp",
                      WORLD_SIZE=str(options.ranks),
                      TEMP_DIR=folder, MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(options.limit),
                      PYTORCH_TEST_WITH_SLOW="0")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("LIBDP_PATH", os.path.join(options.build, "libdp.so"))
    sys.path.insert(0, os.path.join(TOP, "python"))
    from torch.testing._internal import common_distributed as common
    if not options.peer:
        importlib.import_module("dp.torch.__main__").install(["gloo"] if options.as_gloo else [])
    for feature in ("ddp", "plugin", "subgroup"):
        common.DistTestCases.backend_feature[feature].add("dp")
    common.TIMEOUT_OVERRIDE.clear()
    suite = importlib.import_module(SUITE)
    suite.PROFILING_SUPPORTED_BACKENDS.append("dp")
    suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("dp")
    return suite


def make_class(suite, folder: str):
    """The test case: its ranks are forks, write into files and are gone at its end."""
    import torch.multiprocessing

    class Ranks(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            for process in self.processes:
                process.kill()
                process.join()
            super().tearDown()

        def _check_return_codes(self, *arguments) -> None:  # the test and its time; before torch 2.8 the time
            super()._check_return_codes(*arguments)
            codes = [process.exitcode for process in self.processes]
            test = getattr(self, self._testMethodName).__wrapped__
            if test not in self.skip_return_code_checks and any(codes):  # torch looks at rank 0 alone
                raise RuntimeError(f"ranks ended with {codes}")

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **kwargs) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            log = os.open(os.path.join(folder, f"{test_name}.{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
            super()._run(rank, test_name, file_name, pipe, **kwargs)

    Ranks.__name__ = Ranks.__qualname__ = "DistributedTest"
    return Ranks


def reason(text: str) -> str:
    """The errors in a traceback of several ranks, each once."""
    found = re.findall(r"^(?:[\w.]*(?:Error|Exception|Interrupt)\b.*|.*timed out after.*|ranks ended.*)$", text, re.M)
    found = [line for line in found if not line.startswith(("RuntimeError: Process", "During handling"))] or \
        text.strip().splitlines()[-1:]
    return "; ".join(line[:300] for line in collections.OrderedDict.fromkeys(found))[:700]


class Journal(unittest.TestResult):
    """Says and keeps how each test ended."""

    def __init__(self, path: "str | None", count: int, folder: str, is_verbose: bool) -> None:
        super().__init__()
        self.done = load(path)
        self._file = open(path, "a", encoding="utf-8") if path else None
        self._count = count
        self._number = 0
        self._folder = folder
        self._is_verbose = is_verbose
        self._since = 0.0
        self._is_kept = False

    def startTest(self, test) -> None:
        super().startTest(test)
        self._number += 1
        self._is_kept = False
        self._since = time.monotonic()

    def _keep(self, test, verdict: str, why: str = "") -> None:
        name = test._testMethodName
        if self._is_kept:  # the first word counts, as of a failure before one in tearDown()
            return
        self._is_kept = True
        row = {"test": name, "verdict": verdict, "why": why,
               "seconds": round(time.monotonic() - self._since, 1)}
        self.done[name] = row
        if self._file:
            print(json.dumps(row), file=self._file, flush=True)
        if verdict != "skipped":
            print(f"{self._number}/{self._count} {name} {verdict} in {row['seconds']} s" +
                  (f": {why}" if why else ""), flush=True)

    def addSuccess(self, test) -> None:
        self._keep(test, "passed")

    def _failed(self, test, err) -> None:
        text = str(err[1])
        if self._is_verbose:
            print(text)
            for rank in range(int(os.environ["WORLD_SIZE"])):
                path = os.path.join(self._folder, f"{test._testMethodName}.{rank}")
                with open(path, encoding="utf-8", errors="replace") as file:
                    print(f"rank {rank}: {file.read()[-6000:]}")
        self._keep(test, "failed", reason(text))

    addFailure = addError = _failed

    def addSkip(self, test, why) -> None:
        self._keep(test, "skipped", why)


def load(path: "str | None") -> dict:
    """Earlier results by test."""
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {row["test"]: row for row in map(json.loads, file)}


def summarize(done: dict, options: argparse.Namespace) -> int:
    """Prints failures and counts; what the process exits with."""
    by = collections.defaultdict(list)
    for row in done.values():
        by[row["verdict"]].append(row)
    print()
    for row in sorted(by["failed"], key=lambda row: row["test"]):
        known = KNOWN.get(row["test"])
        print(f"{row['test']}: {row['why']}" + (f" (known: {known})" if known else ""))
    skips = collections.Counter(row["why"] for row in by["skipped"])
    print("skipped: " + "; ".join(f"{count} '{why}'" for why, count in skips.most_common()))
    name = "gloo itself" if options.peer else "dp" + " under gloo's name" * options.as_gloo
    ran = len(by["passed"]) + len(by["failed"])
    print(f"{name} {len(by['passed'])} of {ran} pass on {options.ranks} ranks; {len(by['skipped'])} do not apply")
    return int(ran == 0 or any(row["test"] not in KNOWN for row in by["failed"]))


def run(options: argparse.Namespace, folder: str) -> int:
    suite = prepare(options, folder)
    kind = make_class(suite, folder)
    names = [name for name in unittest.TestLoader().getTestCaseNames(kind) if re.search(options.k, name)]
    journal = Journal(options.results, len(names), folder, options.v)
    kind.setUpClass()
    for name in names:
        if name in journal.done:
            journal._number += 1
            continue
        gpus = getattr(getattr(kind, name), "_min_gpus_required", 0)
        test = kind(name)
        if gpus:
            journal.startTest(test)
            journal.addSkip(test, "wants GPUs")
            continue
        test.run(journal)
    wanted = {name: journal.done[name] for name in names if name in journal.done}
    return summarize(wanted, options)


def main() -> int:
    options = parse()
    if options.list:
        return summarize(load(options.results), options)
    try:
        import torch
        import expecttest  # noqa: F401, PyTorch's tests want it
    except ImportError as error:
        print(f"{error.name} is not here")
        return 77
    least = MINIMUM_AS_GLOO if options.as_gloo else MINIMUM
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < least:
        print(f"this is PyTorch {torch.__version__}, and it wants {least[0]}.{least[1]}")
        return 77
    if not options.peer:
        reason_against = compile_backend(options)
        if reason_against:
            print(reason_against)
            return 77
    with tempfile.TemporaryDirectory(prefix="dp-suite-") as folder:
        return run(options, folder)


if __name__ == "__main__":
    sys.exit(main())
