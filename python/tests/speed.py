#!/usr/bin/env python3
"""How fast the Python package is: libdp beside gloo and Horovod on one machine, two ranks.

    python/tests/speed.py [BUILD] [--only NAME] [--table]

Prints each figure as it comes, with its goal, and at the end which goals are met; a figure is the median of
rank 0, of single calls where they take microseconds. Takes some four minutes, of which `link` is one. Run it by hand on an idle machine: two jobs on one
core say nothing of either. `link` joins two network namespaces by 1 Gb/s and 100 us, which needs root.
Horovod's figure needs Horovod: HOROVOD_PYTHON, or BUILD/horovod-venv as tests/bench/compare --horovod
builds it; without, a line says so.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
sys.path.insert(0, PACKAGE)

from measuring import machine  # noqa: E402
from measuring.link import Link  # noqa: E402
from measuring.process import Failed, run_all  # noqa: E402

WAYS = os.path.join(HERE, "speed_ways.py")
LIMIT = 600
US, MS = (1e6, "us", 1), (1e3, "ms", 0)


class Figure:
    """A row of the table: what, in which unit, beside whom, and the goal: of the ratio, or of the time in
    its unit."""

    def __init__(self, what, unit, beside=None, ratio=None, most=None):
        self.what, self.unit, self.beside, self.ratio, self.most = what, unit, beside, ratio, most

    def text(self, seconds):
        factor, word, digits = self.unit
        return f"{factor * seconds:.{digits}f} {word}"

    def goal(self):
        if self.most is not None:
            return f"<= {self.most} {self.unit[1]}"
        return "-" if self.ratio is None else f"<= {self.ratio}"

    def is_met(self, row):
        """None: there is no goal, or a difference of two times came out negative on a busy machine."""
        if min(row["ours"], row.get("beside", row["ours"])) <= 0:
            return None
        if self.most is not None:
            return self.unit[0] * row["ours"] <= self.most
        return None if self.ratio is None else row["ours"] <= self.ratio * row["beside"]


FIGURES = {
    "4 B, C": Figure("`dp_allreduce()` of 4 B in C, `dpbench --latency`", US),
    "4 B, hvd": Figure("`hvd.allreduce_` of 4 B", US, "gloo", most=15),
    "Horovod": Figure("`hvd.allreduce_` of 4 B, by Horovod itself", US),
    "4 B, dist": Figure("`dist.all_reduce` of 4 B", US, "gloo", most=20),
    "4 B, dist, unrecorded": Figure("`dist.all_reduce` of 4 B, `TORCH_FR_BUFFER_SIZE=0`", US,
                                    "gloo", most=20),
    "submit": Figure("`hvd.allreduce_async_`, CPU time of a call", US, "libdp's share of it", most=5),
    "synchronize": Figure("`hvd.synchronize`, CPU time of a call", US),
    "optimizer": Figure("`DistributedOptimizer`, GPT-2's 148 gradients in ordinary memory", MS,
                        "`dp_gradients_*()`", ratio=1.05),
    "optimizer in place": Figure("the same in `dp_alloc()` memory, gradients already there", MS,
                                 "`dp_gradients_*()`", ratio=1.05),
    "optimizer, autograd's gradients": Figure("the same, gradients copied there from autograd's memory", MS,
                                              "`dp_gradients_*()`, no copy"),
    "DDP": Figure("DDP, the 148 gradients: backward with exchange less backward without", MS, "gloo",
                  ratio=0.5),
    "DDP, averaged": Figure("the same with `dp.torch.ddp.average`, in place of DDP's division", MS, "gloo", ratio=0.5),
    "DDP, whole": Figure("the whole backward", MS, "gloo"),
    "GPT-2": Figure("a step of `python/examples`' GPT-2, `DistributedOptimizer`", (1e3, "ms", 1), "DDP over dp", ratio=1.0),
    "GPT-2, CPU": Figure("its CPU time on a rank", (1e3, "ms", 1), "DDP over dp"),
    "FSDP2": Figure("FSDP2, 8 layers of 4 M weights, forward and backward", MS, "gloo"),
    "FSDP2, its memory": Figure("the same with `set_allocate_memory_from_process_group_for_comm(True)`", MS,
                                "gloo"),
    "link": Figure("DDP over 1 Gb/s and 100 us: `DP_WIRE=fp16`", MS, "gloo, DDP's fp16 hook", ratio=1.0),
    "link, averaged": Figure("the same with `dp.torch.ddp.average`", MS, "gloo, DDP's fp16 hook", ratio=1.0),
}
LOCAL = ("small", "submit", "gradients", "ddp", "gpt2", "fsdp")
ALL = ("c", *LOCAL, "unrecorded", "horovod", "link")


class Report:
    def __init__(self):
        self.rows, self.versions, self.left_out = [], {}, []

    def take(self, line):
        """A line of rank 0: a figure, what it stands on, or text of some library."""
        try:
            row = json.loads(line)
        except ValueError:
            print(line.rstrip(), file=sys.stderr, flush=True)
            return
        if "figure" not in row:
            self.versions = row
            print(f"PyTorch {row['torch']}", flush=True)
            return
        self.rows.append(row)
        figure = FIGURES[row["figure"]]
        text = f"{figure.what.replace('`', ''):74} {figure.text(row['ours']):>9}"
        if figure.beside is not None and "beside" in row:
            text += f"  {row['ours'] / row['beside']:5.2f} of {figure.beside} {figure.text(row['beside'])}"
        met = figure.is_met(row)
        if met is not None:
            text += f"  goal {figure.goal()}: {'met' if met else 'NOT MET'}"
        print(text, flush=True)

    def leave_out(self, what, why):
        self.left_out.append(f"{what}: {why}")
        print(f"{what}: left out: {why}", flush=True)

    def table(self):
        """Markdown, for docs/pytorch.md."""
        lines = ["| what | over libdp | beside it | ratio | goal |", "|---|---:|---:|---:|---|"]
        for row in self.rows:
            figure = FIGURES[row["figure"]]
            beside, ratio = "-", "-"
            if figure.beside is not None and "beside" in row:
                beside = f"{figure.beside} {figure.text(row['beside'])}"
                ratio = f"{row['ours'] / row['beside']:.2f}"
            met = figure.is_met(row)
            goal = figure.goal() if met is None else f"{figure.goal()}, {'met' if met else '**not met**'}"
            lines.append(f"| {figure.what} | {figure.text(row['ours'])} | {beside} | {ratio} | {goal} |")
        return "\n".join(lines + ["", *(f"Left out: {one}." for one in self.left_out)])

    def goals(self):
        verdicts = [FIGURES[row["figure"]].is_met(row) for row in self.rows]
        return f"{verdicts.count(True)} of {len(verdicts) - verdicts.count(None)} goals met"


def follow(command, environment, report):
    """Runs a command and takes its lines as they come."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(LIMIT, process.terminate)
    timer.start()
    try:
        for line in process.stdout:
            report.take(line)
        return process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            process.terminate()
            process.wait()


def local(names, build, environment, report):
    """Two ranks by dprun."""
    with tempfile.TemporaryDirectory(prefix="dp-speed-") as folder:
        return follow([os.path.join(build, "dprun"), "--no-prefix", "-np", "2", sys.executable, WAYS,
                       "--init-method", "file://" + os.path.join(folder, "store"), *names],
                      environment, report)


def in_c(build, report):
    """What the runtime alone takes on this machine in this minute: the first row, of a loop without pauses."""
    done = subprocess.run([os.path.join(build, "dprun"), "--no-prefix", "-np", "2", os.path.join(build, "dpbench"),
                           "--latency"], capture_output=True, text=True, timeout=LIMIT)
    row = re.search(r"^ *0\.0 us idle +\S+ +(\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or row is None:
        return report.leave_out("dpbench", (done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return report.take(json.dumps({"figure": "4 B, C", "ours": 1e-6 * float(row.group(1))}))


def horovod(build, report):
    """Horovod's own launcher starts Horovod's ranks."""
    python = os.environ.get("HOROVOD_PYTHON") or os.path.join(build, "horovod-venv", "bin", "python")
    starter = os.path.join(os.path.dirname(python), "horovodrun")
    if not os.path.exists(starter):
        return report.leave_out("Horovod", "not installed (HOROVOD_PYTHON, or tests/bench/compare --horovod)")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "0"}
    done = subprocess.run([starter, "-np", "2", "--gloo", python, WAYS, "horovod"], env=environment,
                          capture_output=True, text=True, timeout=LIMIT)
    lines = [line[line.index("{"):] for line in done.stdout.splitlines() if '{"figure"' in line]
    if done.returncode != 0 or not lines:
        return report.leave_out("Horovod", (done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return report.take(lines[0])


def over_link(build, environment, report):
    """One rank in each of two network namespaces."""
    link = Link(os.path.join(build, "tests", "link_relay"))
    try:
        link.open()
        ranks = link.environments({name: environment[name] for name in ("PYTHONPATH", "LIBDP_PATH")}
                                  | {"DP_WIRE": "fp16"})
        outputs = run_all(link.commands([sys.executable, WAYS, "--init-method", "env://", "link"]), LIMIT, ranks)
        print(f"link: {link.shape}", flush=True)
        for line in outputs[0].splitlines():
            if '"figure"' in line:
                report.take(line)
    except Failed as error:
        report.leave_out("link", str(error))
    finally:
        link.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build", help="a build folder (build)")
    parser.add_argument("--only", choices=ALL, action="append", help="these figures alone; may be repeated")
    parser.add_argument("--table", action="store_true", help="at the end all figures as a Markdown table")
    args = parser.parse_args()
    build, names, report = os.path.abspath(args.build), args.only or ALL, Report()
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1",
                   "LIBDP_PATH": os.path.join(build, "libdp.so")}
    about = machine.describe(os.path.dirname(PACKAGE), {})
    about["Python"] = sys.version.split()[0]
    print("\n".join(f"{name:18} {value}" for name, value in about.items() if value), flush=True)
    status = 0
    if "c" in names:
        in_c(build, report)
    if any(name in LOCAL for name in names):
        status = local([name for name in LOCAL if name in names], build, environment, report)
    if "unrecorded" in names:
        status = local(["unrecorded"], build, environment | {"TORCH_FR_BUFFER_SIZE": "0"}, report) or status
    if "horovod" in names:
        horovod(build, report)
    if "link" in names:
        over_link(build, environment, report)
    print(report.goals())
    if args.table:
        print(f"\n{datetime.date.today():%-d %B %Y}, revision {about['revision']}, {about['processor']}, "
              f"{about['system']}, Python {about['Python']}, PyTorch {report.versions.get('torch', '?')}, "
              f"two ranks; load {about['load at the start']} "
              f"at the start\n\n{report.table()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
