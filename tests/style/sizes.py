#!/usr/bin/env python3
"""sizes.py - files and folders stay small enough to be read: 700 lines, 45 files.

ctest runs it as style_sizes. It prints nothing where all is small enough, and else one line for each
that is not. `sizes.py --planted` checks the checker, on a tree that is too large in each way.
"""
import os
import re
import sys
import tempfile

LINES = 700
FILES = 45
SOURCE = re.compile(r"\.(c|h|cc|cu|cuh|py|sh|js|css|html|cmake)$|/CMakeLists\.txt$")
TOPS = ["include", "kernels", "runtime", "fusion", "coordinator", "launcher", "examples", "cmake",
        "docs", "python", "tests"]

# Longer files, each with its own limit and its reason.
A_LIST = "cases over one fixture, each read by itself"
LONG = {
    "include/dp.h": (1155, "the contract: most of it is comments, and users want one header"),
    "tests/gpu/gpt2/kernels.cu": (900, A_LIST),
    "tests/gpu/gpt2/test_gpt2_cuda.c": (800, A_LIST),
    "tests/sim/world.c": (1000, "one simulated world with all misfortunes that it knows"),
    "tests/unit/coordinator/negotiator/test_negotiator.c": (800, A_LIST),
    "tests/unit/coordinator/negotiator/test_negotiator_groups.c": (900, A_LIST),
    "tests/unit/runtime/base/test_rendezvous.c": (900, A_LIST),
    "tests/unit/runtime/device/test_cuda_device.c": (800, A_LIST),
    "tests/unit/runtime/engine/test_nccl_engine.c": (1100, A_LIST),
    "tests/unit/runtime/transport/test_transport_shm.c": (800, A_LIST),
}


def tree(root):
    for top in TOPS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield os.path.relpath(folder, root), sorted(names)


def count_lines(path):
    with open(path, "rb") as file:
        return file.read().count(b"\n")


def too_large(root):
    for folder, names in tree(root):
        if len(names) > FILES:
            yield "%s: %d files, at most %d" % (folder, len(names), FILES)
        for name in names:
            path = os.path.join(folder, name)
            if not SOURCE.search(path):
                continue
            lines = count_lines(os.path.join(root, path))
            limit = LONG.get(path, (LINES, ""))[0]
            if lines > limit:
                yield "%s: %d lines, at most %d" % (path, lines, limit)
            if path in LONG and lines <= LINES:
                yield "%s: %d lines; take its exception out of tests/style/sizes.py" % (path, lines)


def check_planted():
    lines = {"kernels/long.c": LINES + 1, "kernels/allowed.c": LINES, "include/dp.h": LINES + 1,
             "docs/page.md": 2 * LINES, "tests/sim/world.c": LONG["tests/sim/world.c"][0] + 1,
             "tests/unit/runtime/base/test_rendezvous.c": LINES}
    for number in range(FILES + 1):
        lines["fusion/part%d.c" % number] = 1
    with tempfile.TemporaryDirectory() as root:
        for path, count in lines.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write("\n" * count)
        found = sorted(line.split(":")[0] for line in too_large(root))
    expected = ["fusion", "kernels/long.c", "tests/sim/world.c",
                "tests/unit/runtime/base/test_rendezvous.c"]
    return [] if found == expected else ["found %s, planted %s" % (found, expected)]


def main():
    own_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = check_planted() if sys.argv[1:] == ["--planted"] else list(too_large(own_root))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
