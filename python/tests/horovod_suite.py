#!/usr/bin/env python3
"""horovod_suite.py - runs Horovod's own test_torch.py over dp.torch, and says how many of it pass.

    python/tests/horovod_suite.py HOROVOD [-np N] [--python PYTHON] [--build BUILD] [-k EXPRESSION] [--limit S]

HOROVOD is a clone of Horovod's repository, bare or with files, which is not part of this one. PYTHON (this
one) has PyTorch, NumPy, pytest < 8, packaging, mock and cloudpickle; BUILD (build) has dprun and libdp. A test
that fails on any rank has failed. One that takes more than S seconds, or ends the job, has failed too, and the
tests behind it run in a new job. Prints each test that failed with its reason, then "N of M". Exit code 0:
only tests that KNOWN lists failed.
"""
import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
FILES = ("parallel/test_torch.py", "utils/common.py")
# Tests that cannot pass, and why.
KNOWN = {
    "test_broadcast_state_no_grad": "wants the gradients of zeros that a step for the state leaves; there is no such step here",
}
# Each rank writes what becomes of its tests, and ends the job where one takes too long.
CONFTEST = '''
import faulthandler, json, os, signal, sys
os.environ["HOROVOD_RANK"] = os.environ["DP_RANK"]
os.environ["HOROVOD_SIZE"] = os.environ["DP_SIZE"]
import dp.horovod
import pytest
import torch
dp.horovod.install()
# Some tests make each optimizer whose module is torch.optim's. Muon came with torch 2.9, and refuses their parameters.
if hasattr(torch.optim, "Muon"):
    torch.optim.Muon.__module__ = "later than Horovod"
LIMIT = int(os.environ["SUITE_LIMIT"])
rows = open(os.environ["SUITE_ROWS"] + os.environ["DP_RANK"], "a", buffering=1)

def row(name, verdict, why=""):
    print(json.dumps({"test": name.split("::")[-1], "verdict": verdict, "why": why}), file=rows)

def late(*_):
    faulthandler.dump_traceback()
    os._exit(3)

def pytest_collection_modifyitems(items):
    with open(os.environ["SUITE_DONE"]) as file:
        done = set(file.read().split())
    items[:] = [item for item in items if item.name not in done]

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    row(item.nodeid, "began")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)

def pytest_runtest_logreport(report):
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        row(report.nodeid, "failed", crash.message if crash else str(report.longrepr)[-500:])
    elif report.skipped:
        row(report.nodeid, "skipped", str(report.longrepr[-1]))
    elif report.when == "call":
        row(report.nodeid, "passed")
'''
ORDER = ("passed", "skipped", "began", "failed")  # which of several ranks' verdicts counts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("horovod", help="a clone of Horovod's repository")
    parser.add_argument("-np", type=int, default=2, help="ranks [2]")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch [this]")
    parser.add_argument("--build", default=os.path.join(TOP, "build"), help="folder of a build [build]")
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a test [120]")
    return parser.parse_args()


def copy_tests(horovod: str, folder: str) -> None:
    """Horovod's files as they are, in the folder, with our conftest.py."""
    for name in FILES:
        source, target = os.path.join(horovod, "test", name), os.path.join(folder, "test", name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(source):
            os.symlink(os.path.abspath(source), target)
            continue
        shown = subprocess.run(["git", "--git-dir", horovod, "show", f"HEAD:test/{name}"], capture_output=True)
        if shown.returncode != 0:
            sys.exit(f"horovod_suite.py: {source} is not there: give a clone of Horovod")
        with open(target, "wb") as file:
            file.write(shown.stdout)
    with open(os.path.join(folder, "test", "parallel", "conftest.py"), "w", encoding="ascii") as file:
        file.write(CONFTEST)


def read_rows(path: str, ranks: int) -> dict:
    """What became of each test, over all ranks."""
    found: dict = {}
    for rank in range(ranks):
        if not os.path.exists(path + str(rank)):
            continue
        own: dict = {}
        with open(path + str(rank), encoding="utf-8") as file:
            for row in map(json.loads, file):
                if own.get(row["test"], {}).get("verdict") != "failed":  # a failure stays one
                    own[row["test"]] = row
        for name, row in own.items():
            if name not in found or ORDER.index(row["verdict"]) > ORDER.index(found[name]["verdict"]):
                found[name] = row
    return found


def run(options: argparse.Namespace, folder: str) -> dict:
    """Jobs until every test has an end."""
    copy_tests(options.horovod, folder)
    rows, done, found = os.path.join(folder, "rows."), os.path.join(folder, "done"), {}
    environment = {**os.environ, "PYTHONPATH": os.path.join(TOP, "python"), "SUITE_ROWS": rows,
                   "LIBDP_PATH": os.path.join(os.path.abspath(options.build), "libdp.so"),
                   "SUITE_DONE": done, "SUITE_LIMIT": str(options.limit), "OMP_NUM_THREADS": "1"}
    command = [os.path.join(os.path.abspath(options.build), "dprun"), "-np", str(options.np), options.python, "-m",
               "pytest", "-q", "-p", "no:cacheprovider", "test_torch.py"]
    command += ["-k", options.k] if options.k else []
    while True:
        with open(done, "w", encoding="utf-8") as file:
            file.write("\n".join(found))
        output = os.path.join(folder, "output")
        with open(output, "wb") as file:
            ended = subprocess.run(command, cwd=os.path.join(folder, "test", "parallel"), env=environment,
                                   stdout=file, stderr=subprocess.STDOUT)
        before, found = len(found), read_rows(rows, options.np)
        cut = [row for row in found.values() if row["verdict"] == "began"]
        for row in cut:
            with open(output, encoding="utf-8", errors="replace") as file:
                row.update(verdict="failed", why=f"took over {options.limit} s, or ended the job: "
                                                 f"{file.read()[-600:]}")
            with open(rows + "0", "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
        print(f"{len(found)} tests have run, dprun ended with {ended.returncode}", flush=True)
        if not cut and (ended.returncode in (0, 5) or len(found) == before):
            return found
        if len(found) == before:
            return found


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="dp-horovod-") as folder:
        found = run(options, folder)
    by = {verdict: sorted(row["test"] for row in found.values() if row["verdict"] == verdict) for verdict in ORDER}
    print()
    for name in by["failed"]:
        why = " ".join(found[name]["why"].split())[:400]
        print(f"{name}: {why}" + (f" (known: {KNOWN[name]})" if name in KNOWN else ""))
    skips = collections.Counter(found[name]["why"] for name in by["skipped"])
    print("skipped: " + "; ".join(f"{count} '{why}'" for why, count in skips.most_common()))
    print(f"{len(by['passed'])} of {len(by['passed']) + len(by['failed'])} pass on {options.np} ranks; "
          f"{len(by['skipped'])} do not apply")
    return int(not by["passed"] or any(name not in KNOWN for name in by["failed"]))


if __name__ == "__main__":
    sys.exit(main())
