#!/usr/bin/env python3
"""record.py - results.json of a visit, kept step by step for run.sh.

    record.py check FILE FACTS REHEARSAL     fails where FILE is of another revision, GPU, driver, or of the other kind
    record.py step FILE FACTS REHEARSAL STEP PART TITLE VERDICT SECONDS LIMIT CODE NOTE LOG LINES
                                             adds a step, or replaces it, with the last LINES of its LOG; stdin: figures
    record.py figures FILE NAME              STEP<tab>VALUE lines
    record.py table FILE                     for a terminal

FACTS and figures are lines with tabs between the fields: NAME, VALUE and, of figures, UNIT. REHEARSAL: 0 or 1.
"""
import json
import os
import re
import signal
import sys


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def rows(file):
    return [line.rstrip("\n").split("\t") for line in file if "\t" in line]


def check(path, facts, rehearsal):
    results = read(path)
    with open(facts, encoding="utf-8") as file:
        machine = dict(rows(file))
    if results is None:
        return 0
    if results["rehearsal"] != (rehearsal == "1"):
        sys.exit(f"run.sh: a rehearsal and a visit do not share {path}: give another --results")
    for name in ("revision", "gpu", "driver"):
        if results["machine"].get(name) != machine.get(name):
            sys.exit(f"run.sh: {path} is of another {name}: give another --results")
    return 0


def number(text):
    return json.loads(text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", text) else None


def step(path, facts, rehearsal, name, part, title, verdict, seconds, limit, code, note, log, lines):
    results = read(path) or {"steps": []}
    with open(log, encoding="utf-8", errors="replace") as file:
        tail = file.read().replace("\0", "").replace("\r", "").removesuffix("\n").split("\n")
    with open(facts, encoding="utf-8") as file:
        machine = dict(rows(file))
    figures = [{"name": row[0], "value": number(row[1]), "unit": row[2]} for row in rows(sys.stdin) if number(row[1]) is not None]
    new = {"step": name, "part": part, "title": title, "verdict": verdict, "seconds": float(seconds), "limit": int(limit),
           "code": int(code), "note": note, "figures": figures, "tail": "\n".join(tail[-int(lines):])}
    steps = {known["step"]: known for known in results["steps"]}
    steps[name] = new
    text = [json.dumps(known, separators=(",", ":")) for known in sorted(steps.values(), key=lambda known: known["step"][0])]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write('{\n "rehearsal": %s,\n "machine": %s,\n "steps": [\n%s\n ]\n}\n' %
                   (json.dumps(rehearsal == "1"), json.dumps(machine, indent=2), ",\n".join(text)))
    os.replace(path + ".new", path)
    return 0


def figures(path, name):
    for known in (read(path) or {"steps": []})["steps"]:
        for figure in known["figures"]:
            if figure["name"] == name:
                print(f"{known['step']}\t{figure['value']}")
    return 0


def table(path):
    results = read(path)
    if results["rehearsal"]:
        print("REHEARSAL: doubles on a CPU; no figure means anything.")
    for name, value in results["machine"].items():
        print(f"{name:18} {value}")
    print()
    for known in results["steps"]:
        print(f"{known['step']:18} {known['verdict']:8} {known['seconds']:7.1f} s  {known['note']}")
    failed = [known["step"] for known in results["steps"] if known["verdict"] == "failed"]
    if failed:
        print("\nFAILED: " + " ".join(failed))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads may have seen enough
    sys.exit({"check": check, "step": step, "figures": figures, "table": table}[sys.argv[1]](*sys.argv[2:]))
