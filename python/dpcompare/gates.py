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
FINAL_LOSS = "final loss"  # of the curve class


@dataclass(frozen=True)
class Gate:
    name: str
    passed: object  # True, False, or None: there was nothing to compare with
    text: str
    needed: bool = False  # without a verdict the row has no speed


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
    if why := results.studies[study].too_few(row):
        return Gate(FINAL_LOSS, None, why, needed=True)
    mine = results.each(study, row.name, ranks, link, results.final_loss)
    its = results.each(study, all_rows.REFERENCE, ranks, link, results.final_loss)
    pairs = [(mine[seed], its[seed]) for seed in sorted(mine) if seed in its]
    if not pairs:
        return Gate(FINAL_LOSS, None, "no run of dps to compare with")
    off = stats.mean([a - b for a, b in pairs])
    level = stats.mean([b for _, b in pairs])
    spread = stats.spread([b for _, b in pairs])
    gate = _ends_near(FINAL_LOSS, off, level, spread)
    return Gate(gate.name, gate.passed, gate.text + _rarely_updated(gate, row))


def _rarely_updated(gate, row):
    """What a row that keeps gradients back fails by: AdamW moves an element by about its rate
    whenever something arrives, however much that is, and it arrives rarely."""
    if gate.passed or row.waits < 2:
        return ""
    return (f"; {row.name} sends an element once in {row.waits} steps in the mean, and the optimizer "
            "moves it once for all of them")


def _ends_near(name, off, level, spread):
    text = f"{100 * off / level:+.2f} % of dps', {100 * CURVE_LOSS:g} % allowed"
    passed = off <= CURVE_LOSS * level
    if spread is not None:
        room = max(CURVE_SPREADS * spread, 0.005 * level)
        passed = passed and off <= room
        text += f"; {off:+.4f}, and twice the spread of seeds is {CURVE_SPREADS * spread:.4f}"
    return Gate(name, passed, text)


# ---- Rates of a grid ----------------------------------------------------------------------------

@dataclass(frozen=True)
class Tuned:
    """An optimizer over the grid."""

    losses: dict  # {rate: {seed: final loss}}
    best: float  # the rate whose median is lowest

    @property
    def at_edge(self):
        """Then a better one may lie outside."""
        return self.best in (min(self.losses), max(self.losses))


def tuned(results, row, ranks):
    """A row's losses over the studies of a grid; None without any."""
    losses = {}
    for name, study in results.studies.items():
        if study.grid and (found := results.each(name, row, ranks, "none", results.final_loss)):
            losses[study.lr] = found
    if not losses:
        return None
    return Tuned(losses, min(sorted(losses), key=lambda rate: stats.median(losses[rate].values())))


def _best(results, row, ranks):
    """Each optimizer with its best rate."""
    mine = tuned(results, row.name, ranks)
    its = tuned(results, all_rows.REFERENCE, ranks)
    if mine is None or its is None:
        return Gate("best of the grid", None, "no run to compare with", needed=True)
    rates = {study.lr for study in results.studies.values() if study.grid}
    run = {study.lr for study in results.studies.values() if study.grid and all(
        results.seeds(study.name, name, ranks) for name in (row.name, all_rows.REFERENCE))}
    if run != rates:
        return Gate("best of the grid", None, f"{len(run)} of {len(rates)} rates were run", needed=True)
    ours, theirs = mine.losses[mine.best], its.losses[its.best]
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours) if seed in theirs]
    if not pairs:
        return Gate("best of the grid", None, "no seed that both have")
    gate = _ends_near("best of the grid", stats.mean([a - b for a, b in pairs]),
                      stats.mean([b for _, b in pairs]), stats.spread([b for _, b in pairs]))
    edge = "".join(f"; {name} is best at the grid's edge" for name, one in
                   ((row.name, mine), (all_rows.REFERENCE, its)) if one.at_edge)
    return Gate(gate.name, gate.passed, f"rate {mine.best:g}, dps {its.best:g}: {gate.text}{edge}")


def _reference(results, study, row, ranks, link):
    """The row that this one is held against, and its runs."""
    if row.name == "single":
        there = [n for (of, name, n, over) in results.found
                 if (of, name, over) == (study, all_rows.REFERENCE, "none")]
        return all_rows.REFERENCE, results.seeds(study, all_rows.REFERENCE, min(there, default=1))
    if row.name == all_rows.REFERENCE or row.single:
        return "single", results.seeds(study, "single", 1)
    return all_rows.REFERENCE, results.seeds(study, all_rows.REFERENCE, ranks, link)


def _judged_as(row, study):
    """A hybrid row adds up node by node: it has dps' bytes where dps has as many nodes."""
    return all_rows.CLOSE if row.nodes > 1 and study.nodes != row.nodes else row.judged


def of_row(results, study, row, ranks, link="none"):
    """All gates of a row in one study, over its seeds: the first failure of each name, or the last
    seed's text."""
    other, others = _reference(results, study, row, ranks, link)
    judged = _judged_as(row, results.studies[study])
    found = {}
    for seed, record in sorted(results.seeds(study, row.name, ranks, link).items()):
        gates = [_replicas(record)]
        if seed in others:
            gates += _shared(record, others[seed], other)
            if row.name in (all_rows.REFERENCE, "single") or judged == all_rows.CLOSE:
                gates += _close(record, others[seed], other)
            elif judged == all_rows.EXACT:
                gates.append(_exact(record, others[seed]))
        for gate in gates:
            before = found.get(gate.name)
            if before is None or before.passed is not False:
                found[gate.name] = gate
    if judged == all_rows.CURVE and found and results.studies[study].curves:
        found[FINAL_LOSS] = _curve(results, study, row, ranks, link)
    return list(found.values())


def failures(gates):
    return [gate for gate in gates if gate.passed is False]


def unjudged(gates):
    """Those that are needed and have no verdict."""
    return [gate for gate in gates if gate.needed and gate.passed is None]


class Judged:
    """Whether a row's speed counts: with so many ranks, its gates of all studies on one node must
    hold, and those that are needed must have been asked. Over links the same gates are asked, and
    take the speed over that link."""

    def __init__(self, results, rows):
        self.gates = {}  # {(row, ranks): {study, or "study over link": [Gate]}}
        for (study, name, ranks, link) in results.found:
            row = all_rows.ALL.get(name)
            if row is None or row not in rows or results.studies[study].grid:
                continue
            title = study if link == "none" else f"{study} over {link}"
            self.gates.setdefault((name, ranks), {})[title] = of_row(results, study, row, ranks, link)
        for (name, ranks), found in self.gates.items():
            if all_rows.ALL[name].judged == all_rows.TUNED and any(
                    study.grid and ranks in study.ranks for study in results.studies.values()):
                found["large"] = [_best(results, all_rows.ALL[name], ranks)]
            if all_rows.ALL[name].judged == all_rows.CURVE and not any(
                    gate.name == FINAL_LOSS for gates in found.values() for gate in gates):
                curve = next((study.name for study in results.studies.values() if study.curves), "curve")
                found.setdefault(curve, []).append(Gate(
                    FINAL_LOSS, None, "no run whose loss could be compared", needed=True))

    def _first(self, row, ranks, link, which):
        """The first of the gates that which() chooses, as text; "" without one."""
        for title, gates in self.gates.get((row, ranks), {}).items():
            if " over " in title and not title.endswith(f" over {link}"):
                continue
            for gate in which(gates):
                return f"{gate.name} (study {title}): {gate.text}"
        return ""

    def failed(self, row, ranks, link="none"):
        """The first gate that failed, as text; "" where none did."""
        return self._first(row, ranks, link, failures)

    def why_not(self, row, ranks, link="none"):
        """Why a row has no speed: the first gate that failed, or that is needed and has no verdict;
        "" where all hold."""
        return self.failed(row, ranks, link) or self._first(row, ranks, link, unjudged)

    def held(self, row):
        """(ranks, study) of every study in which all gates of the row held, and some gate was asked."""
        return [(ranks, title) for (name, ranks), found in self.gates.items() if name == row
                for title, gates in found.items()
                if not failures(gates) and not unjudged(gates) and any(gate.passed for gate in gates)]
