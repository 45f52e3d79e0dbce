#!/usr/bin/env python3
"""results.py - docs/gpu-results.md from the results of a visit to a GPU.

    tests/gpu/results.py docs/gpu-results.json > docs/gpu-results.md
    tests/gpu/results.py FIRST.json SECOND.json > docs/gpu-results.md    a visit of several commands
    tests/gpu/results.py > docs/gpu-results.md                           nothing was measured yet
    tests/gpu/results.py --merge FIRST.json SECOND.json > docs/gpu-results.json

Of a step that occurs twice the later file counts. The files are of one GPU and one driver. They may be of
several revisions, as a step is run again after a mend: then each step says of which it is. A rehearsal's results are refused;
--rehearsal makes a page of them that says so in every heading.
"""
import json
import re
import sys

MACHINE = [("gpu", "GPU"), ("gpu_memory", "memory"), ("gpu_clock", "highest clock"), ("gpu_power", "power limit"),
           ("driver", "driver"), ("libcuda", "libcuda"), ("libcudart", "CUDA runtime"), ("libcublasLt", "cuBLASLt"),
           ("libnccl", "NCCL"), ("host", "host"), ("revision", "revision"), ("date", "date")]
# In a world of one nothing is communicated: the trainer's "exposed" is then the norm of the gradients.
RENAMED = {("speed", "exposed"): "norm of gradients"}
SAME = ["gpu", "driver"]  # what one page's files have in common

PARTS = {"start": "Driver, libraries, copies", "kernels": "Kernels against their host twins",
         "nccl": "NCCL, ranks that share the GPU, faults", "losses": "GPT-2's losses beside the processor's",
         "speed": "Speed of GPT-2 124M beside PyTorch",
         "sanitizer": "compute-sanitizer", "profile": "Timeline and profile"}

# What is unknown until these steps have passed.
OPEN = [
    ("that kernels work at all on a device, and their numbers",
     ["b.casts", "b.attention", "b.gpt2", "b.products", "b.mma"]),
    ("bandwidth of pack and unpack beside a device copy (aim: 85 % from 32 MiB up)", ["a.copy", "b.casts"]),
    ("ordering, and the skip flag under a real abort",
     ["c.steps", "c.abort-0", "c.abort-1", "c.abort-2", "c.abort-3", "c.abort-4", "c.abort-5"]),
    ("NCCL's behaviour behind an abort; several ranks on one GPU",
     ["c.allreduce", "c.two", "c.three", "c.killed", "c.stopped", "c.kill"]),
    ("the cost of handing a gradient over, and of the runtime in a world of one",
     ["e.ours-1", "e.ours-2", "e.ours-3", "e.rank-1", "e.rank-2", "e.rank-3"]),
    ("GPT-2: parity with the processor, in fp32 and bf16", ["d.fp32", "d.bf16"]),
    ("which of cuBLASLt's fusions exist for our types", ["e.ours-1", "e.choices"]),
    ("tokens per second beside PyTorch in the best of its modes, three times in turn, with the clock",
     ["e.mode-default", "e.mode-autotune", "e.mode-graphs", "e.ours-3", "e.torch-3", "e.ratio"]),
    ("attention's rate, and that of PyTorch's kernels at the same shapes", ["b.attention", "e.sdpa"]),
    ("addresses of pack, cast, reduce and attention under compute-sanitizer", ["g.casts", "g.attention"]),
    ("addresses of the trainer's kernels under compute-sanitizer", ["g.gpt2"]),
    ("races of attention and of the trainer's kernels under compute-sanitizer", ["g.races", "g.races-gpt2"]),
    # No step shows these yet.
    ("a step of PyTorch's DDP and of FSDP2, whose waits are the stream's since the visit, beside PyTorch's backend for NCCL",
     ["none"]),
    ("NCCL's choice between Ring, Tree and NVLS, which has replaced rings", ["none"]),
    ("several ranks on one GPU by the transports between GPUs, with NCCL 2.30 or newer", ["none"]),
    ("one `ncclReduceScatter()` for all tensors of a fused buffer", ["none"]),
]

# What has changed since these results, and what the next visit should show. Take a row out when a GPU has shown it.
EXPECTED = [
    ("norm backward goes to memory once for a pair of rows, not four times", "`b.gpt2`: norm backward", "1505 GB/s",
     "2600 GB/s or more", "2.5 to 3.2"),
    ("sums are folded with 16 reads under way, in 192 blocks", "`h.largest`: `fold_kernel`", "14 us", "4 to 5 us", "0.5"),
    ("proj and fcproj add the stream and their bias in the epilogue", "`h.largest`: `norm_kernel`; `e.choices`",
     "5 arrays read or written", "4", "0.6 to 0.8"),
    ("norm backward sums the gradients of proj's and fcproj's bias", "`e.choices`: weight products without bias",
     "a column sum, an epilogue", "neither", "0.8"),
    ("attention backward sums the gradient of qkv's bias where it has the rows in registers",
     "`e.choices`: qkv's weight product without bias", "105 us a layer for a column sum", "4 us for shares of 4.7 MB, and a fold", "1.2"),
    ("the gradient of fc's bias comes from `DGELU_BGRAD`, where that is quicker", "`e.choices`: form 2 of fcproj's input",
     "140 us a layer for a column sum", "none", "up to 1.7"),
]

# Failures whose words mislead: the step, what its log says then, and what a reader must know of it.
EXPLAINED = [
    ("g.gpt2", "invalid device ordinal",
     "A test of this program asks for GPU -1 on purpose and expects the error; compute-sanitizer counted it and the two calls that "
     "return it.\n`tests/gpu/parts/g_sanitizer.sh` now leaves errors of calls out (`--report-api-errors no`), as the program checks them itself."),
]

HEAD = """\
<!-- Made by tests/gpu/results.py: change that, or the results. -->
# What a GPU has shown

`tests/gpu/pack.sh` makes an archive for a GPU machine without a network.
There `run.sh --first`, `--second` and `--third` do all of it, each in less than nine minutes ([gpu-visit.md](gpu-visit.md)).
`tests/gpu/results.py` makes this page from their results.
"""

NOTHING = """
**Nothing yet.** The CUDA device, the kernels, the NCCL engine and GPT-2 with its attention have been compiled and linked for sm_80,
sm_90 and sm_100 (CUDA 13.0, NCCL 2.28.9), and run on CPUs, whole jobs too: kernels as fibers, tensor cores by their documented
layouts, streams as threads, NCCL and cuBLASLt as doubles ([design.md](design.md), [nccl.md](nccl.md), [attention.md](attention.md),
[gpt2.md](gpt2.md)). The visit itself is rehearsed with them (`tests/gpu/run.sh --rehearse`). No hardware has seen them.
"""


class Refused(Exception):
    pass


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        steps = {step["step"]: step for step in results["steps"]}
        for step in steps.values():
            step["part"], step["title"], step["verdict"], step["seconds"], step["note"], step["figures"], step["tail"]
            step.setdefault("revision", results["machine"].get("revision", "?"))  # a merged file has it
        return {"rehearsal": results["rehearsal"], "machine": results["machine"], "steps": steps}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path}: not what run.sh writes: {error!r}") from error


def merge(paths):
    all_of_it = None
    for path in paths:
        results = read(path)
        if all_of_it is None:
            all_of_it = results
            continue
        for name in SAME:
            if results["machine"].get(name) != all_of_it["machine"].get(name):
                raise Refused(f"{path}: {name} is {results['machine'].get(name)}, in {paths[0]} it is "
                              f"{all_of_it['machine'].get(name)}: these are two visits")
        if results["rehearsal"] != all_of_it["rehearsal"]:
            raise Refused(f"{path}: a rehearsal and a visit do not go together")
        for name, value in results["machine"].items():
            known = all_of_it["machine"].get(name)
            if known is None:
                all_of_it["machine"][name] = value
            elif value not in known.split("; "):
                all_of_it["machine"][name] = f"{known}; {value}"
        all_of_it["steps"].update(results["steps"])
    all_of_it["steps"] = dict(sorted(all_of_it["steps"].items(), key=lambda item: item[0].split(".")[0]))
    return all_of_it


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ").strip()


def figure(part, entry):
    name = RENAMED.get((part, entry["name"]), entry["name"])
    return f"{name} {entry['value']:g} {entry['unit']}".strip() if abs(entry["value"]) < 1e5 else \
        f"{name} {entry['value']:.0f} {entry['unit']}".strip()


def page(results):
    label = "REHEARSAL, no measurement: " if results["rehearsal"] else ""
    machine = results["machine"]
    out = [HEAD]
    counts = {}
    for step in results["steps"].values():
        counts[step["verdict"]] = counts.get(step["verdict"], 0) + 1
    out.append(f"**{label}{machine.get('gpu', '?')}, {machine.get('date', '?')[:10]}:** "
               + "steps: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts)) + ".\n")
    out.append("Ranks of parts c and d share one GPU, which tests what they do and measures nothing.\n"
               "No job over several GPUs is among the steps.\n")
    revisions = {step["revision"] for step in results["steps"].values()}
    head = ["step", "", "verdict", "s"] + (["revision"] if len(revisions) > 1 else []) + [""]
    rule = "---|---|---|---:|" + ("---|" if len(revisions) > 1 else "") + "---"
    out.append("| | |\n|---|---|")
    out += [f"| {title} | {cell(machine[name])} |" for name, title in MACHINE if machine.get(name)]
    for part, title in PARTS.items():
        steps = [step for step in results["steps"].values() if step["part"] == part]
        if not steps:
            continue
        out.append(f"\n## {label}{title}\n\n| {' | '.join(head)} |\n|{rule}|")
        for step in steps:
            said = "; ".join(figure(part, entry) for entry in step["figures"]) or step["note"]
            cells = [step["step"], step["title"], step["verdict"], f"{step['seconds']:.1f}"]
            cells += [step["revision"]] if len(revisions) > 1 else []
            out.append("| " + " | ".join(cell(text) for text in cells + [said]) + " |")
    failed = [step for step in results["steps"].values() if step["verdict"] == "failed"]
    if failed:
        out.append(f"\n## {label}What failed, in its own words")
    for step in failed:
        words = [line[:160] for line in step["tail"].split("\n")[-25:]]
        out.append(f"\n{step['step']}: {cell(step['note'])}\n\n" + "\n".join("    " + line for line in words))
        out += ["\n" + text for name, said, text in EXPLAINED if step["step"] == name and said in step["tail"]]
    return "\n".join(out) + "\n"


def expected():
    rows = "".join(f"| {' | '.join(row)} |\n" for row in EXPECTED)
    return f"""
## Expected, not yet seen on a GPU

These changes came after the visit.
They are checked on simulated devices and in sm_90's machine code: order of loads, registers, no spill.
The milliseconds are arithmetic from measured rates, for a step of 124M with 64 sequences, which took 116.5 ms.
All together promise 108.3 to 110.9 ms, 591k to 605k tokens per second.

| change | shown by | then | expected | ms |
|---|---|---|---|---:|
{rows}""" if EXPECTED else ""


def open_questions(steps):
    left = [text for text, needed in OPEN
            if any(name not in steps or steps[name]["verdict"] != "passed" for name in needed)]
    if not left:
        return ""
    return "\n## Open until a GPU has shown it\n\n" + "".join(f"- {text}\n" for text in left)


def main(arguments):
    allow_rehearsal = "--rehearsal" in arguments
    only_merge = "--merge" in arguments
    paths = [argument for argument in arguments if not argument.startswith("--")]
    unknown = [a for a in arguments if a.startswith("--") and a not in ("--rehearsal", "--merge")]
    if unknown or (only_merge and not paths):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if not paths:
            sys.stdout.write(HEAD + NOTHING + open_questions({}))
            return 0
        results = merge(paths)
        if results["rehearsal"] and not allow_rehearsal:
            raise Refused(f"{paths[0]} is of a rehearsal: no hardware has shown it")
        if only_merge:
            results["steps"] = list(results["steps"].values())
            for step in results["steps"]:  # a log names the very GPU
                for name in ("note", "tail"):
                    step[name] = re.sub(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}", "GPU-...", step[name])
            json.dump(results, sys.stdout, indent=1)
            sys.stdout.write("\n")
            return 0
        steps = {} if results["rehearsal"] else results["steps"]
        sys.stdout.write(page(results) + ("" if results["rehearsal"] else expected()) + open_questions(steps))
        return 0
    except Refused as refused:
        print(f"results.py: {refused}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
