#!/usr/bin/env python3
"""arrows.py - holds the arrows between the rooms: which folder may include which.

ctest runs it as style_arrows. It prints nothing where every include is allowed, and else one line
for each that is not. `arrows.py --planted` checks the checker: it feeds it includes that break each
kind of arrow, and fails unless all of them are refused.

It reads #include lines alone, so it sees what the compiler would see in any configuration. Tests may
include whatever they test, and are not looked at.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Room: the rooms whose headers its files may include, beside its own. A file belongs to the longest
# room that its path begins with; folders without a line are part of the room above. Nothing is
# inherited: what is not written here is refused.
ENGINE = ["include", "kernels", "runtime/base", "runtime/trace", "runtime/group", "runtime/device",
          "runtime/engine"]
BELOW = ENGINE + ["runtime/network", "runtime/transport", "fusion"]
CONTEXT = BELOW + ["coordinator/negotiator", "coordinator/loop", "coordinator/program"]

ROOMS = {
    "include": [],
    "kernels": ["include"],
    "runtime/base": ["include"],
    "runtime/trace": ["runtime/base"],
    "runtime/network": ["runtime/base"],
    "runtime/group": ["runtime/base", "runtime/network"],
    "runtime/transport": ["runtime/base", "runtime/network"],
    "runtime/device": ["kernels", "runtime/base"],
    "runtime/shm": ["runtime/base", "runtime/group"],
    # engine.h, which all engines stand behind. They do not see each other.
    "runtime/engine": ENGINE,
    "runtime/engine/cpu": ENGINE + ["runtime/shm"],
    "runtime/engine/nccl": ENGINE,
    # The one room that lists the engines and devices of a GPU.
    "runtime/plugin": ENGINE + ["runtime/engine/nccl"],
    "fusion": ENGINE,
    # Readiness, order and launch: pure, it sees descriptions of the machine and no machine.
    "coordinator/negotiator": ["runtime/base", "runtime/engine", "runtime/group",
                               "runtime/transport"],
    "coordinator/loop": ["runtime/base", "runtime/trace", "runtime/transport",
                         "coordinator/negotiator"],
    "coordinator/program": BELOW + ["coordinator/negotiator", "coordinator/loop"],
    # What a context is, below what it does, below how it begins and ends, below models.
    "coordinator/api/context": CONTEXT,
    "coordinator/api/operation": CONTEXT + ["coordinator/api/context"],
    "coordinator/api/world": CONTEXT + ["coordinator/api/context", "coordinator/api/operation"],
    "coordinator/api/model": CONTEXT + ["coordinator/api/context", "coordinator/api/operation",
                                        "coordinator/api/world"],
    # Built on the functions of dp.h and what is behind them.
    "coordinator/shards": ["include", "kernels", "runtime/base", "coordinator/api/context",
                           "coordinator/api/operation", "coordinator/api/world",
                           "coordinator/api/model"],
    "coordinator": ["include"],
    # dprun and dptrace run where no rank runs: they know the wire, not the ranks.
    "launcher/dprun": ["runtime/base", "runtime/network"],
    "launcher/dptrace": ["runtime/base"],
    # Programs a user could have written.
    "examples": ["include"],
    "examples/dpbench": ["include"],
    "examples/gpt2/base": [],
    "examples/gpt2/cpu": ["examples/gpt2/base"],
    "examples/gpt2/model": ["examples/gpt2/base", "examples/gpt2/cpu"],
    "examples/gpt2/data": ["examples/gpt2/base", "examples/gpt2/model"],
    "examples/gpt2/tokens": ["examples/gpt2/base", "examples/gpt2/data"],
    "examples/gpt2/mesh": ["examples/gpt2/base", "examples/gpt2/model"],
    "examples/gpt2/strategy": ["include", "examples/gpt2/base", "examples/gpt2/mesh", "examples/gpt2/model",
                               "examples/gpt2/data"],
    "examples/gpt2/train": ["include", "examples/gpt2/base", "examples/gpt2/mesh", "examples/gpt2/model",
                            "examples/gpt2/data", "examples/gpt2/tokens", "examples/gpt2/strategy"],
    "examples/gpt2/cuda": ["examples/gpt2/base", "examples/gpt2/cpu", "examples/gpt2/model"],
}

# Files that include a room against the arrows, (file, room): reason. There are none; keep it so.
EXCEPTIONS = {}

TOPS = ["include", "kernels", "runtime", "fusion", "coordinator", "launcher", "examples"]
SOURCE = re.compile(r"\.(c|h|cc|cu|cuh)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")


def room_of(path):
    folder = os.path.dirname(path)
    while folder and folder not in ROOMS:
        folder = os.path.dirname(folder)
    return folder


def resolve(source, name):
    """The path from the root that an include means: from the root, beside the file, or dp.h."""
    if name == "dp.h":
        return "include/dp.h"
    beside = os.path.join(os.path.dirname(source), name)
    if not os.path.exists(os.path.join(ROOT, name)) and os.path.exists(os.path.join(ROOT, beside)):
        return os.path.normpath(beside)
    return name


def wrong_include(source, header):
    """Why source must not include header, or None. Both are paths from the root."""
    of, to = room_of(source), room_of(header)
    if not of:
        return "%s: its folder has no line in ROOMS of tests/style/arrows.py" % source
    if not to:
        return '%s: includes "%s", which is in no room' % (source, header)
    if of == to or to in ROOMS[of] or (source, to) in EXCEPTIONS:
        return None
    return '%s: %s must not include %s ("%s")' % (source, of, to, header)


def wrong_in_file(source, lines):
    found = []
    for number, line in enumerate(lines, 1):
        include = INCLUDE.match(line)
        reason = include and wrong_include(source, resolve(source, include.group(1)))
        if reason:
            found.append("%d: %s" % (number, reason))
        is_ours = not source.startswith("examples/") and source != "runtime/base/config.c"
        code = line.split("/*")[0].split("//")[0]
        if is_ours and not line.lstrip().startswith("*") and GETENV.search(code):
            found.append("%d: %s: only runtime/base/config.c reads the environment" % (number, source))
    return found


def sources():
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def check_tree():
    found, includes = [], set()
    for source in sources():
        with open(os.path.join(ROOT, source), encoding="utf-8") as file:
            lines = file.read().split("\n")
        found += wrong_in_file(source, lines)
        for line in lines:
            include = INCLUDE.match(line)
            if include:
                includes.add((source, room_of(resolve(source, include.group(1)))))
    for pair in sorted(set(EXCEPTIONS) - includes):
        found.append("%s no longer includes %s: take the exception out" % pair)
    return found


def check_planted():
    planted = [
        ("include/dp.h", '#include "runtime/base/common.h"'),
        ("kernels/reduce.c", '#include "runtime/base/log.h"'),
        ("runtime/base/log.c", '#include "runtime/trace/trace.h"'),
        ("runtime/engine/engine.c", '#include "fusion/plan.h"'),
        ("runtime/engine/engine.c", '#include "runtime/engine/cpu/cpu_internal.h"'),
        ("runtime/engine/cpu/control.c", '#include "runtime/engine/nccl/nccl.h"'),
        ("runtime/engine/nccl/comm.c", '#include "runtime/engine/cpu/cpu_internal.h"'),
        ("fusion/plan.c", '#include "coordinator/negotiator/negotiator.h"'),
        ("coordinator/negotiator/negotiator.c", '#include "coordinator/loop/loop.h"'),
        ("coordinator/negotiator/negotiator.c", '#include "fusion/pipeline.h"'),
        ("coordinator/loop/loop.c", '#include "coordinator/api/context/context.h"'),
        ("coordinator/api/context/texts.c", '#include "coordinator/api/operation/request.h"'),
        ("coordinator/api/operation/launch.c", '#include "coordinator/api/world/group.h"'),
        ("coordinator/api/world/group.c", '#include "coordinator/api/model/lists.h"'),
        ("launcher/dprun/main.c", '#include "runtime/group/topology.h"'),
        ("launcher/dptrace/main.c", '#include "launcher/dprun/options.h"'),
        ("examples/hello.c", '#include "runtime/base/common.h"'),
        ("examples/gpt2/model/model.c", '#include "examples/gpt2/train/options.h"'),
        ("examples/gpt2/train/trainer.c", '#include "coordinator/api/context/context.h"'),
        ("a_new_folder/file.c", '#include "dp.h"'),
        ("fusion/plan.c", 'const char *value = getenv("DP_RANK");'),
    ]
    allowed = [
        ("coordinator/api/context/context.h", '#include "fusion/pipeline.h"'),
        ("fusion/item_input.h", '#include "dp.h"'),
        ("fusion/plan.c", " * Nothing here calls getenv(); see config.c."),
    ]
    found = ["not refused: %s: %s" % pair for pair in planted if not wrong_in_file(pair[0], [pair[1]])]
    return found + ["refused: %s: %s" % pair for pair in allowed if wrong_in_file(pair[0], [pair[1]])]


def main():
    found = check_planted() if sys.argv[1:] == ["--planted"] else check_tree()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
