"""gates.py - what must hold before a row's speed counts.

Rows of a study share weights, samples, batch and tokens; rows of the exact class end with the same
bytes as dps, rows of the close class have the same losses and norms to rounding, rows of the curve
class end at the same loss within what seeds differ by. Loss alone is no gate: AdamW hides gradients
that are too large by a constant, so norms count as well.

Pure: results go in, a list of Gate comes out.
"""
from dataclasses import dataclass

from dpcompare import rows as all_rows
from dpcompare import stats

CLOSE_STEPS = 10
CLOSE_LOSS, CLOSE_NORM = 1e-5, 1e-4
CURVE_LOSS = 0.02  # of dps' loss
CURVE_SPREADS = 2.0  # times the spread of dps' seeds
FILES = ("weights.bin", "adam_m.bin", "adam_v.bin")


@dataclass(frozen=True)
class Gate:
    name: str
    passed: object  # True, False, or None: there was nothing to compare with
    text: str


def _same(name, ours, theirs, other):
    if ours is None or theirs is None:
        return Gate(name, None, "not known")
    if ours == theirs:
        return Gate(name, True, f"equal to {other}'s")
    return Gate(name, False, f"{ours}, {other} has {theirs}")


def _shared(record, other, name):
    """What all rows of a study share, from the two records."""
    found = []
    mine, its = record["summary"], other["summary"]
    for label, key in (("initial weights", "initial"), ("order of samples", "samples")):
        found.append(_same(label, mine.get("hashes", {}).get(key), its.get("hashes", {}).get(key),
                           name))
    for label, key in (("global batch", "batch"), ("sequence length", "seq"), ("steps", "run_steps"),
                       ("clipping", "clip")):
        found.append(_same(label, mine["configuration"].get(key), its["configuration"].get(key),
                           name))
    return found


def _replicas(record):
    found = record.get("replicas")
    if found is None:
        return Gate("replicas", None, "one process, or not compared")
    return Gate("replicas", found[0] == found[1] and found[0] > 0,
                f"bit-equal in {found[0]} of {found[1]} comparisons")


def _series_equal(record, other, column):
    mine, its = record["summary"]["steps"].get(column), other["summary"]["steps"].get(column)
    return bool(mine) and mine == its


def _exact(record, other):
    """The same bytes as dps."""
    mine, its = record.get("checkpoint") or {}, other.get("checkpoint") or {}
    if mine or its:
        wrong = [file for file in FILES if mine.get(file) != its.get(file)]
        if not wrong:
            return Gate("checkpoint's bytes", True, "weights and both moments equal dps'")
        return Gate("checkpoint's bytes", False, f"{', '.join(wrong)} differ from dps'")
    hashes = [one["summary"].get("hashes", {}).get("final") for one in (record, other)]
    if hashes[0] != hashes[1]:
        return Gate("final weights", False, f"their hash is {hashes[0]}, dps' {hashes[1]}")
    if not _series_equal(record, other, "loss"):
        return Gate("final weights", False, "they have dps' hash, but losses on the way differ")
    return Gate("final weights", True, "their hash, and every loss, equal dps'")


def _close(record, other, name):
    """Losses and norms of the first steps."""
    found = []
    for column, limit in (("loss", CLOSE_LOSS), ("norm", CLOSE_NORM)):
        worst = stats.worst_difference(record["summary"]["steps"].get(column, [])[:CLOSE_STEPS],
                                       other["summary"]["steps"].get(column, [])[:CLOSE_STEPS])
        if worst is None:
            found.append(Gate(f"{column} of {CLOSE_STEPS} steps", None, "not known"))
            continue
        found.append(Gate(f"{column} of {CLOSE_STEPS} steps", worst[0] <= limit,
                          f"within {worst[0]:.1e} of {name}'s, {limit:g} allowed"))
    return found


def _curve(results, study, row, ranks, link):
    """Where the losses end, over all seeds, beside dps' with the same seeds."""
    mine = results.each(study, row.name, ranks, link, results.final_loss)
    its = results.each(study, all_rows.REFERENCE, ranks, link, results.final_loss)
    pairs = [(mine[seed], its[seed]) for seed in sorted(mine) if seed in its]
    if not pairs:
        return Gate("final loss", None, "no run of dps to compare with")
    off = stats.mean([a - b for a, b in pairs])
    level = stats.mean([b for _, b in pairs])
    spread = stats.spread([b for _, b in pairs])
    text = f"{100 * off / level:+.2f} % of dps', {100 * CURVE_LOSS:g} % allowed"
    passed = off <= CURVE_LOSS * level
    if spread is not None:
        room = max(CURVE_SPREADS * spread, 0.005 * level)
        passed = passed and off <= room
        text += f"; {off:+.4f}, and twice the spread of seeds is {CURVE_SPREADS * spread:.4f}"
    return Gate("final loss", passed, text)


def _reference(results, study, row, ranks, link):
    """The row that this one is held against, and its runs."""
    if row.name == all_rows.REFERENCE or row.single:
        other, n = ("single", 1) if row.name != "single" else (all_rows.REFERENCE, 1)
    else:
        other, n = all_rows.REFERENCE, ranks
    return other, results.seeds(study, other, n, link)


def of_row(results, study, row, ranks, link="none"):
    """All gates of a row in one study, over its seeds: the first failure of each name, or the last
    seed's text."""
    other, others = _reference(results, study, row, ranks, link)
    found = {}
    for seed, record in sorted(results.seeds(study, row.name, ranks, link).items()):
        gates = [_replicas(record)]
        if seed in others:
            gates += _shared(record, others[seed], other)
            if row.name in (all_rows.REFERENCE, "single") or row.judged == all_rows.CLOSE:
                gates += _close(record, others[seed], other)
            elif row.judged == all_rows.EXACT:
                gates.append(_exact(record, others[seed]))
        for gate in gates:
            before = found.get(gate.name)
            if before is None or before.passed is not False:
                found[gate.name] = gate
    if row.judged == all_rows.CURVE and found:
        found["final loss"] = _curve(results, study, row, ranks, link)
    return list(found.values())


def failures(gates):
    return [gate for gate in gates if gate.passed is False]


class Judged:
    """Whether a row's speed counts: with so many ranks, its gates of all studies on one node must
    hold."""

    def __init__(self, results, rows):
        self.gates = {}  # {(row, ranks): {study: [Gate]}}
        for (study, name, ranks, link) in results.found:
            row = all_rows.ALL.get(name)
            if row is None or row not in rows or link != "none":
                continue
            gates = of_row(results, study, row, ranks)
            if results.studies[study].pretend:  # a few steps, to count bytes
                gates = [gate for gate in gates if gate.name != "final loss"]
            self.gates.setdefault((name, ranks), {})[study] = gates

    def why_not(self, row, ranks):
        """The first gate that failed, as text; "" where all hold."""
        for study, gates in self.gates.get((row, ranks), {}).items():
            for gate in failures(gates):
                return f"{gate.name} (study {study}): {gate.text}"
        return ""
