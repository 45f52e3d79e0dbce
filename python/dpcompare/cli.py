"""cli.py - the command: reads it, refuses what cannot work, makes the runs in turns, and writes the
report. Interrupted, the same command goes on where it was.
"""
import argparse
import os
import re
import shlex
import sys

from dpcompare import bench, clock, plan, report, results, studies
from dpcompare.clock import importance
from dpcompare import gates as judging
from dpcompare import rows as all_rows
from dpcompare import views
from dpcompare.peers import find
from measuring import machine
from measuring.process import Failed, adopt_orphans, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_MIN = 60  # of the whole
QUICK_MIN = 4.25  # of the five minutes of --quick; the rest is the report's
ABOUT = """Trains one GPT-2 by every strategy that gpt2 has, and by PyTorch, Horovod and DeepSpeed where they
are installed, over the same weights and samples; checks that their results are equal before it
speaks of speed; and writes one HTML page with tables and pictures, CSV, JSON and SVG files."""


def _numbers(text):
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: whole numbers with commas expected") from None
    if not found or min(found) < 1 or len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text}: different numbers from 1 on expected")
    return sorted(found)


def _positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 on expected")
    return int(text)


def _version():
    with open(os.path.join(ROOT, "include", "dp.h"), encoding="utf-8") as file:
        return ".".join(re.findall(r"^#define DP_VERSION_\w+ (\d+)$", file.read(), re.MULTILINE))


def parse(words):
    parser = argparse.ArgumentParser(prog="dpcompare", description=ABOUT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"dpcompare {_version()}")
    parser.add_argument("--quick", action="store_true", help="a small model, under 5 minutes on two "
                        "cores")
    parser.add_argument("--plan", action="store_true", help="print memory, bytes and times that are "
                        "to be expected, and run nothing")
    parser.add_argument("--report", action="store_true", help="write the report of what --out holds, "
                        "and run nothing")
    parser.add_argument("--out", help="folder of the results [BUILD/dpcompare-out]")
    parser.add_argument("--rows", default="all", help="which of ours, with commas, or all [all]")
    parser.add_argument("--peers", default="auto", help="auto: those that are installed; none; or "
                        "names with commas [auto]")
    parser.add_argument("--ranks", type=_numbers, help="numbers of ranks that are timed [2]; "
                        "gates ask 1, 3 and 4 beside them")
    parser.add_argument("--seeds", type=_positive, help="seeds, each a turn [2; without --quick 3]")
    parser.add_argument("--links", default="none", help="none (one node), 1g, 10g, 25g, 100g with "
                        "commas; more than 1 Gb/s is EMULATED [none]")
    parser.add_argument("--preset", choices=sorted(studies.PRESETS), help="model of the speeds [124M; "
                        "with --quick quick]")
    parser.add_argument("--batch", type=_positive, help="sequences over all ranks [the preset's]")
    parser.add_argument("--steps", type=_positive, help="steps of the speeds [8; with --quick 60]")
    parser.add_argument("--curve-steps", type=_positive, default=200, help="steps of the curves, "
                        "without --quick [200]")
    parser.add_argument("--threads", type=_positive, default=1, help="of each rank [1]")
    parser.add_argument("--limit", type=_positive, help="minutes until the last run ends "
                        f"[{LIMIT_MIN}; with --quick {QUICK_MIN:g}]; what matters least is left out, "
                        "and the same command goes on with it")
    parser.add_argument("--torch-python", action="append", default=[], metavar="PATH",
                        help="an interpreter that has PyTorch; repeatable")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="folder with gpt2 and "
                        "dprun [build]")
    parser.add_argument("--preview", action="store_true", help="pictures as PNG, too")
    options = parser.parse_args(words)
    options.build = os.path.abspath(options.build)
    options.out = os.path.abspath(options.out or os.path.join(options.build, "dpcompare-out"))
    options.ranks = options.ranks or [2]
    options.limit = options.limit or (QUICK_MIN if options.quick else LIMIT_MIN)
    options.seeds = options.seeds or (2 if options.quick else 3)
    options.links = _links(options.links)
    return options


def _links(text):
    found = [word for word in text.split(",") if word]
    for word in found:
        if word not in studies.LINKS:
            raise Failed(f"--links {word}: no such link; there are {', '.join(studies.LINKS)}")
    return ["none"] + [name for name in studies.LINKS if name in found and name != "none"]


def check_programs(options):
    """gpt2's help text; refuses a build without what is needed."""
    for name in ("gpt2", "dprun", "dptrace"):
        if not os.access(os.path.join(options.build, name), os.X_OK):
            raise Failed(f"there is no {name} in {options.build}; build it, or name the folder by "
                         "--build")
    text = run([os.path.join(options.build, "gpt2"), "--help"], 60)
    for flag in ("--summary", "--plan", "--samples"):
        if flag not in text:
            raise Failed(f"the gpt2 in {options.build} has no {flag}: it is older than this "
                         "dpcompare; build both from one revision")
    return text


def check_links(options):
    if options.links == ["none"]:
        return
    if os.geteuid() != 0:
        raise Failed(f"--links {','.join(options.links[1:])}: a link between two namespaces needs "
                     "root; leave --links out, or run as root")
    if 2 not in options.ranks:
        raise Failed("--links: a link has a rank on each side, and --ranks has no 2")


def choose_rows(options, help_text, peers_wanted):
    """Rows to show, and why some of them are not run."""
    ours = all_rows.choose(options.rows, all_rows.OURS, "--rows")
    if all_rows.REFERENCE not in [row.name for row in ours]:
        raise Failed(f"--rows needs {all_rows.REFERENCE}, to which all others are compared")
    absent = {row.name: why for row in ours if (why := all_rows.lacking(row, help_text))}
    theirs = []
    if options.peers not in ("auto", "none"):
        theirs = all_rows.choose(options.peers, all_rows.PEERS, "--peers")
    elif options.peers == "auto":
        theirs = list(all_rows.PEERS)
    if options.quick and options.peers == "auto":
        absent.update({row.name: f"{why}, which takes too long for --quick; --peers names it"
                       for row in theirs
                       if (why := all_rows.emulated_here(row, machine.has_bf16()))})
    peers = peers_wanted(options, [row.mode for row in theirs])
    absent.update({row.name: why for row in theirs if (why := peers.lacking(row.mode))})
    return [*ours, *theirs], absent, peers


def configuration(options, found, data, peers, theirs):
    """What has to be equal for runs to lie in one folder."""
    hashes = {name: bench.file_hash(os.path.join(options.build, name))
              for name in ("gpt2", "libdp.so") if os.path.exists(os.path.join(options.build, name))}
    return {"record": bench.RECORD, "studies": [studies.describe(study) for study in found],
            "data": {name: bench.file_hash(path) for name, path in data.items()},
            "programs": hashes, "threads": options.threads,
            "processor": machine.describe(ROOT, {})["processor"],
            "peers": peers.versions([row.mode for row in theirs])}


def check_folder(options, wanted):
    """Refuses a folder of another configuration, with what differs; notes the configuration."""
    path = os.path.join(options.out, "config.json")
    if not os.path.exists(path):
        if os.path.isdir(options.out) and os.listdir(options.out) not in ([], ["data"]):
            raise Failed(f"--out {options.out} is no folder of dpcompare's, and not empty")
        bench.save_json(path, wanted, 1)
        return
    there = bench.load_json(path)
    for name, value in wanted.items():
        if name == "peers":
            value = {**there.get(name, {}), **value}
            differing = [mode for mode, version in wanted[name].items()
                         if there.get(name, {}).get(mode, version) != version]
            if differing:
                raise Failed(f"--out {options.out} was measured with {there[name][differing[0]]} for "
                             f"{differing[0]}, this is {wanted[name][differing[0]]}; take another --out")
            continue
        if there.get(name) != value:
            raise Failed(f"--out {options.out} was measured with other {name}; take another --out, or "
                         "remove it")
    there["peers"] = {**there.get("peers", {}), **wanted["peers"]}
    bench.save_json(path, there, 1)


def _duration(seconds):
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


class Progress:
    """Says which run of how many was made, and how long the rest should take."""

    def __init__(self, runs, clock):
        self.left, self.done, self.count, self.clock = list(runs), 0, len(runs), clock

    def note(self, one, text):
        self.left.remove(one)
        self.done += 1
        print(f"[{self.done:3d}/{self.count}] {_duration(self.clock.elapsed_s())}, about "
              f"{_duration(self.clock.total_s(self.left))} left  {one.name}: {text}", flush=True)


def make_runs(runs, lab, clock):
    """All records, made now or before; [(name, why)] of those that failed; and {run: why} of those
    for which there was no time."""
    records, failures, left_out, dead = [], [], {}, {}
    there = {one: record for one in runs if (record := lab.done(one))}
    for one, record in there.items():
        clock.note(one, record["seconds"])
    progress = Progress([*there, *(one for one in runs if one not in there)], clock)
    for one, record in there.items():
        records.append(record)
        progress.note(one, "made before")
    print(f"{len(progress.left)} runs, about {_duration(clock.total_s(progress.left))}", flush=True)
    put_off = []  # what does not fit is asked about once more, behind all others
    queue = list(progress.left)
    while queue or put_off:
        if not queue:
            queue, put_off = sorted(put_off, key=importance), None
        one = queue.pop(0)
        if one.link in dead:
            progress.note(one, f"not run: {dead[one.link]}")
            continue
        if not clock.fits(one, progress.left):
            if put_off is not None:
                put_off.append(one)
                continue
            left_out[one] = f"it should take {clock.expected_s(one):.0f} s"
            progress.note(one, f"left out for want of time: {left_out[one]}")
            continue
        limit_s = clock.run_limit_s()
        record = lab.make(one, limit_s)
        clock.note(one, record["seconds"])
        # Of ours, a run that takes a share meant for many has hung, which is a failure.
        if not record["ok"] and record["seconds"] >= limit_s and (
                one.row.mode or limit_s < clock.share_s()):
            left_out[one] = f"it was ended after {record['seconds']:.0f} s"
            progress.note(one, f"left out for want of time: {left_out[one]}")
            continue
        records.append(record)
        if not record["ok"]:
            failures.append((one.name, record["why"]))
            if lab.link_is_dead(one.link):
                dead[one.link] = record["why"]
        progress.note(one, _summary(record))
    return records, failures, left_out


def without_time(options, left_out, records):
    """{row: why} of the rows for which there was no time in the study that is timed."""
    made = {record["key"]["row"] for record in records if record["key"]["study"] in {
        one.study.name for one in left_out if one.study.timed}}
    whose = "--quick" if options.quick else "--limit"
    found = {}
    for one, why in left_out.items():
        if one.study.timed and one.row.name not in made:
            found.setdefault(one.row.name, f"left out: the time of {whose}, {options.limit:g} minutes, "
                             f"was over; {why}")
    return found


def _summary(record):
    if not record["ok"]:
        return f"failed: {record['why'][:160]}"
    steps = record["summary"]["steps"]
    times = sorted(steps["ms"])
    loss = [value for value in steps["loss"] if value is not None]
    return f"{times[len(times) // 2]:.1f} ms a step" + (f", loss {loss[-1]:.4f}" if loss else "")


def lines_of(records):
    """{link: what it carried}, of the links that runs used."""
    found = {}
    for record in records:
        link = record["key"]["link"]
        if record["ok"] and link != "none":
            found[link] = dict(record["line"], emulated=studies.LINKS[link] > studies.REAL_MBIT)
    return found


def write_report(options, found, rows, absent, made, peers, about=None):
    """made: as make_runs() returns it."""
    records, failures, left_out = made
    outcome = results.Results(found, records)
    if not outcome.found:
        raise Failed("no run succeeded; the first said: "
                     + (failures[0][1] if failures else "nothing"))
    judged = judging.Judged(outcome, rows)
    view = views.View(outcome, rows, judged, lines_of(records))
    about = about or machine.describe(ROOT, {})
    about.update({f"peer {mode}": text for mode, text in
                  peers.versions([row.mode for row in rows if row.mode]).items()})
    about.update({f"study {study.name}": f"{study.preset}, {study.batch} sequences of {study.seq} "
                  f"tokens, {study.steps} steps, lr {study.lr:g}" for study in found})
    absent = {**without_time(options, left_out, records), **absent}
    page = report.Report(view, about, absent, "dpcompare " + _words(), failures,
                         [(one.name, why) for one, why in left_out.items()])
    why = report.write(page, options.out, options.preview)
    if why:
        print(f"dpcompare: {why}", file=sys.stderr)
    failed = [(name, n, why) for (name, n) in judged.gates if (why := judged.failed(name, n))]
    unjudged = [(name, n, why) for (name, n) in judged.gates
                if not judged.failed(name, n) and (why := judged.why_not(name, n))]
    for name, n, why in failed:
        print(f"gate failed: {name}, {n} ranks: {why}")
    for name, n, why in unjudged:
        print(f"no verdict: {name}, {n} ranks: {why}")
    if left_out:
        print(f"left out for want of time: {len(left_out)} runs; the same command goes on with them")
    print(f"report: {os.path.join(options.out, 'report.html')}")
    return 1 if failed else 0


def _words():
    """The command line without folders of this machine."""
    return " ".join(shlex.quote(".../" + os.path.basename(word) if os.path.isabs(word) else word)
                    for word in sys.argv[1:])


def main(words=None):
    options = parse(words)
    timer = clock.Clock(60 * options.limit)
    adopt_orphans()
    help_text = check_programs(options)
    check_links(options)
    found = studies.make(options)
    rows, absent, peers = choose_rows(options, help_text, find.find)
    can = [row for row in rows if row.name not in absent]
    if options.plan:
        return plan.show(options, found, [row for row in can if not row.mode])
    folder = os.path.join(options.out, "data")
    os.makedirs(folder, exist_ok=True)
    data = {study.name: studies.write_data(folder, study) for study in found}
    check_folder(options, configuration(options, found, data, peers,
                                        [row for row in can if row.mode]))
    runs = studies.runs(found, can)
    about = machine.describe(ROOT, {})
    lab = bench.Bench(options, data, peers, print)
    for row in rows:
        if row.name in absent:
            print(f"not run: {row.name}: {absent[row.name]}")
            continue
        for study in found:
            if study.curves and (why := study.too_few(row)):
                print(f"no verdict, so no speed: {row.name}: {why}")
    try:
        if options.report:
            made = [there for one in runs if (there := lab.done(one))], [], {}
        else:
            made = make_runs(runs, lab, timer)
    finally:
        lab.close()
    return write_report(options, found, rows, absent, made, peers, about)
