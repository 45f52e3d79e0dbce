#!/usr/bin/env python3
"""prometheus.py - holds a text of `dprun --metrics` against the rules of Prometheus' format and of `promtool check
metrics`: prometheus.py TEXT [FILE...]. Every metric named dp_... in a FILE (a board, alert rules) must be one of it.

Prints a line for each fault; the exit code says whether there was one.
"""
import re
import sys

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
NOT_BASE_UNITS = {"ms", "us", "ns", "milliseconds", "minutes", "kb", "mb", "kilobytes", "megabytes", "percent"}


def faults_of(text):
    helps, types, series, order = {}, {}, set(), []
    if not text.endswith("\n"):
        yield "the last line does not end"
    for number, line in enumerate(text.splitlines(), 1):
        where = "line %d: " % number
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            if name in helps or name in order:
                yield where + "HELP of %s comes again, or behind its samples" % name
            if not words:
                yield where + "no help text"
            helps[name] = words
            continue
        if line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name in types or name in order:
                yield where + "TYPE of %s comes again, or behind its samples" % name
            if kind not in ("counter", "gauge"):
                yield where + "type %s" % kind
            if (kind == "counter") != name.endswith("_total"):
                yield where + "counters, and no others, end in _total: %s" % name
            if NOT_BASE_UNITS & set(name.split("_")):
                yield where + "not a base unit: %s" % name
            if name != name.lower():
                yield where + "not in small letters: %s" % name
            types[name] = kind
            continue
        sample = SAMPLE.match(line)
        if not sample:
            yield where + "no sample: %r" % line
            continue
        name, labels, value = sample.groups()
        if name not in helps or name not in types:
            yield where + "%s has no HELP or no TYPE" % name
        if not order or order[-1] != name:
            if name in order:
                yield where + "the samples of %s do not stand together" % name
            order.append(name)
        found = LABEL.findall(labels or "")
        if "".join('%s="%s",' % pair for pair in found).rstrip(",") != (labels or ""):
            yield where + "labels: %r" % labels
        names = [label for label, _ in found]
        if len(set(names)) != len(names) or {"job", "instance", "le", "quantile"} & set(names):
            yield where + "labels that are given twice, or Prometheus' own: %s" % names
        if (name, labels) in series:
            yield where + "this series comes again"
        series.add((name, labels))
        try:
            if types.get(name) == "counter" and float(value) < 0:
                yield where + "a counter below 0"
        except ValueError:
            yield where + "no number: %s" % value
    for name in helps:
        if name not in order:
            yield "%s has no sample" % name


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    faults = list(faults_of(text))
    known = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            named = set(re.findall(r"\bdp_[a-z_]+", file.read()))
        if not named:
            faults.append("%s names no metric" % path)
        faults += ["%s names %s, which there is not" % (path, name) for name in sorted(named - known)]
    print("\n".join(faults[:20]), end="\n" if faults else "")
    return 1 if faults else 0


def planted():
    """The checker finds each kind of fault."""
    whole = "# HELP dp_a_total Of a.\n# TYPE dp_a_total counter\ndp_a_total{rank=\"0\"} 1\n"
    wrong = [whole[:-1], whole.replace("_total", ""), whole + whole, whole + "dp_b 1\n", whole.replace("} 1", "} x"),
             whole.replace("rank", "job"), whole.replace("Of a.", ""), whole.replace('"0"', '"0'),
             whole.replace("} 1", "} -1"), whole.replace("counter", "histogram"), whole.replace("dp_a", "dp_A"),
             whole.replace("dp_a", "dp_ms"), whole[:-len('dp_a_total{rank="0"} 1\n')], whole + 'dp_a_total{rank="0"} 2\n']
    if list(faults_of(whole)):
        print("a text without fault: %s" % list(faults_of(whole)))
        return 1
    missed = [text for text in wrong if not list(faults_of(text))]
    print("".join("not found:\n%s\n" % text for text in missed), end="")
    return 1 if missed else 0


sys.exit(planted() if sys.argv[1:] == ["--planted"] else main())
