#!/usr/bin/env python3
"""circles.py - finds files that call each other in a circle.

ctest runs it as style_circles. It prints nothing where all circles are those of KNOWN, and else what
is new, or gone. `circles.py --planted` checks the checker on small trees. `circles.py --calls` prints
the calls of each circle.

A file that is in no circle can be read once those below it have been read. It looks at the text of
.c files: a call is a use of a function that another .c file defines, directly or by an inline
function of a header. Callbacks and ops tables are no calls: their owner is told of them.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOPS = ["kernels", "runtime", "fusion", "coordinator", "launcher"]

# The circles there are: the files, and why they stay.
KNOWN = {
    # The rules of one tensor go round: a submission or an announcement (agree.c) can complete it or show a
    # conflict, which the root orders (order.c), which ends the occurrence (agree.c), behind which
    # announcements of the next one may wait (contest.c), which arrive now (agree.c). A rank that joins or
    # leaves completes or fails tensors (leave.c), and each of these rules asks who has joined, left, or is
    # missing (stall.c). All of it is one step: a message that comes in between would
    # belong to the wrong occurrence, so none of these calls can become a queue. The files are cut by idea,
    # each with a header, and none writes what another owns (doors.py); a cut between the questions and
    # the answers of one idea would make the circle smaller and the code harder to follow.
    "coordinator/negotiator/agree.c coordinator/negotiator/contest.c coordinator/negotiator/leave.c "
    "coordinator/negotiator/order.c coordinator/negotiator/stall.c",
    # dprun's two ends between nodes: each is one state machine in several files.
    "launcher/dprun/remote/fleet.c launcher/dprun/remote/fleet_files.c "
    "launcher/dprun/remote/fleet_input.c launcher/dprun/remote/fleet_start.c",
    "launcher/dprun/remote/station.c launcher/dprun/remote/station_dial.c "
    "launcher/dprun/remote/station_files.c launcher/dprun/remote/station_job.c",
}

NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
WORD = re.compile(r"\b[a-z]\w+\b")
FUNCTION = re.compile(r"^((?:[a-z]\w*[ *]+)+)(\w+)\([^;{]*\)\s*\{", re.M)


def functions(text):
    """Name, whether it is static, and the body of each function."""
    found = []
    for match in FUNCTION.finditer(text):
        depth, at = 1, match.end()
        while depth > 0 and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        found.append((match.group(2), "static" in match.group(1).split(), text[match.end():at]))
    return found


def calls(files):
    """For each .c file, the .c files that it calls, and the functions by which it does."""
    texts = {path: NOISE.sub(" ", text) for path, text in files.items()}
    owner, inlined, private = {}, {}, {}
    for path, text in texts.items():
        for name, is_static, body in functions(text):
            if path.endswith(".h"):
                inlined[name] = set(WORD.findall(body))
            elif is_static:
                private.setdefault(path, set()).add(name)
            else:
                owner[name] = path
    edges = {}
    for path, text in texts.items():
        if path.endswith(".h"):
            continue
        names, more = set(WORD.findall(text)), set()
        while names != more:
            more, names = names, names.union(*(inlined.get(name, set()) for name in names))
        for name in names - private.get(path, set()):
            to = owner.get(name)
            if to and to != path:
                edges.setdefault(path, {}).setdefault(to, []).append(name)
    return edges


def reaches(edges, start):
    seen, todo = set(), [start]
    while todo:
        for to in edges.get(todo.pop(), {}):
            if to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def circles(edges):
    reach = {path: reaches(edges, path) for path in edges}
    found = set()
    for path in edges:
        circle = sorted(to for to in reach[path] if path in reach.get(to, ()))
        if len(circle) > 1:
            found.add(" ".join(circle))
    return found


def read_tree():
    files = {}
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                if name.endswith((".c", ".h")):
                    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                        files[path] = file.read()
    return files


def check_planted():
    one = {"a.c": "int a_get(void)\n{\n    return b_get();\n}\n", "b.c": "int b_get(void)\n{\n    return 1;\n}\n"}
    trees = [
        (one, set()),
        ({**one, "b.c": "int b_get(void)\n{\n    return a_get();\n}\n"}, {"a.c b.c"}),
        ({**one, "b.c": "/* a_get() */\nint b_get(void)\n{\n    puts(\"a_get()\");\n}\n"}, set()),
        ({**one, "b.c": "int b_get(void)\n{\n    return a_now();\n}\n",
          "a.h": "static inline int a_now(void)\n{\n    return a_get();\n}\n"}, {"a.c b.c"}),
        ({**one, "b.c": "static int a_get(void)\n{\n    return 1;\n}\n\nint b_get(void)\n{\n    return c_get();\n}\n",
          "c.c": "int c_get(void)\n{\n    return 1;\n}\n"}, set()),
        ({"a.c": "int a_get(void)\n{\n    return b_get();\n}\n", "b.c": "int b_get(void)\n{\n    return c_get();\n}\n",
          "c.c": "int c_get(void)\n{\n    return a_get();\n}\n"}, {"a.c b.c c.c"}),
    ]
    return ["tree %d: found %s, not %s" % (i, sorted(circles(calls(tree))), sorted(wanted))
            for i, (tree, wanted) in enumerate(trees) if circles(calls(tree)) != wanted]


def check_tree(show_calls):
    edges = calls(read_tree())
    found = circles(edges)
    lines = ["call each other in a circle: " + circle for circle in sorted(found - KNOWN)]
    lines += ["no longer a circle, take it out of KNOWN: " + circle for circle in sorted(KNOWN - found)]
    for circle in sorted(found) if show_calls else []:
        for of in circle.split():
            for to in sorted(set(edges[of]) & set(circle.split())):
                print("%s -> %s: %s" % (of, to, ", ".join(sorted(edges[of][to]))))
    return lines


def main():
    found = check_planted() if "--planted" in sys.argv else check_tree("--calls" in sys.argv)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
