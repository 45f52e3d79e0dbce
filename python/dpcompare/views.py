"""views.py - what tables and pictures show, worked out of results: one object that both ask.

Pure. It decides which study speaks for speed and which for curves, and with how many ranks.
"""
import os
from dataclasses import replace

from dpcompare import model, stats
from dpcompare import rows as all_rows
from dpcompare.gates import tuned
from dpcompare.results import WORK

MIB = 1048576.0
RATES = [0.1 * 10 ** (k / 12) for k in range(0, 44)]  # Gb/s of the model's lines


class View:
    def __init__(self, results, rows, judged, lines):
        """lines: {link: what it carried}."""
        self.results, self.rows, self.judged, self.lines = results, rows, judged, lines
        self.speed = next(one for one in results.studies.values() if one.timed)
        self.curve = next(one for one in results.studies.values() if one.curves)
        self.ranks = self._ranks()

    def _ranks(self):
        """Most ranks that have a core each, among those that were run."""
        cores = os.cpu_count() or 1
        there = sorted({n for (study, row, n, link) in self.results.found
                        if study == self.speed.name and row == all_rows.REFERENCE})
        fit = [n for n in there if n <= cores] or there[:1]
        return fit[-1] if fit else 1

    def title(self):
        return f"{self.speed.preset}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    def preset(self):
        return self.speed.preset

    def tokens_per_step(self):
        return self.curve.tokens()

    def _speed(self, row, figure, link="none", ranks=None):
        return self.results.over_seeds(self.speed.name, row.name, self._n(row, ranks), link, figure)

    def _n(self, row, ranks=None):
        return 1 if row.single else ranks or self.ranks

    def counts(self, row, ranks=None, link="none"):
        """Whether the row's speed counts: no gate of it failed."""
        return not self.judged.why_not(row.name, self._n(row, ranks), link)

    def measured_rows(self):
        """Rows with a run at this view's number of ranks."""
        return [row for row in self.rows
                if self.results.seeds(self.speed.name, row.name, self._n(row))]

    def ratio(self, row):
        """Tokens per second over dps', within turns: (median, low, high)."""
        ours = self.results.each(self.speed.name, row.name, self._n(row), "none",
                                 self.results.tokens_per_s)
        theirs = self.results.each(self.speed.name, all_rows.REFERENCE, self.ranks, "none",
                                   self.results.tokens_per_s)
        return stats.ratio(ours, theirs)

    def beside(self):
        """[(our row, a peer's that stands for the same, ratio)] where the gates of both hold."""
        found = []
        for theirs in self.rows:
            ours = all_rows.ALL.get(theirs.beside) if theirs.mode else None
            if ours not in self.rows or not self.counts(ours) or not self.counts(theirs):
                continue
            rates = [self.results.each(self.speed.name, row.name, self._n(row), "none",
                                       self.results.tokens_per_s) for row in (ours, theirs)]
            ratio = stats.ratio(*rates)
            if ratio is not None:
                found.append((ours, theirs, ratio))
        return found

    def without_speed_over(self, link):
        """[(row, the gate that takes its speed)] of the rows that were run over a link."""
        return [(row, why) for row in self.rows
                if self.results.seeds(self.speed.name, row.name, 2, link)
                and (why := self.judged.why_not(row.name, 2, link))]

    def over_link(self, link):
        """[(row, ms of a step, tokens per second over dps' there, waits)] of a link."""
        def rates(name):
            return self.results.each(self.speed.name, name, 2, link, self.results.tokens_per_s)
        found = []
        for row in self.rows:
            ms = self.results.over_seeds(self.speed.name, row.name, 2, link, self.results.step_ms)
            if ms is not None and self.counts(row, 2, link):
                found.append((row, ms, stats.ratio(rates(row.name), rates(all_rows.REFERENCE)),
                              self.waits(row, link)))
        return found

    def reaches(self):
        """[(where, R, how it is known, whether it is this run's)]."""
        here = self.parts()
        found = []
        if here is not None and model.reach(here):
            found.append((f"this run, {self.title()} of one node", model.reach(here),
                          "compute and transfers of dps, measured", True))
            found += [(f"this run over {rate:g} Gb/s", self.reach_at(rate * model.TCP),
                       "its compute, and TCP's share of that rate", True) for rate in (1, 10, 100)]
        found += [(name, model.reach_of(*numbers), f"arithmetic, {numbers[0]} tokens of a rank and "
                   "step", False) for name, *numbers in model.ELSEWHERE]
        return sorted(found, key=lambda one: -one[1])

    # ---- Pictures ----

    def speeds(self):
        """[(name, tokens per second of every turn, (ratio, low, high) to dps or None)]."""
        found = []
        for row in self.measured_rows():
            rates = self.results.each(self.speed.name, row.name, self._n(row), "none",
                                      self.results.tokens_per_s)
            if rates and self.counts(row):
                found.append((row.name, list(rates.values()), self.ratio(row)))
        return found

    def tuning(self):
        """[(name, [(rate, median loss, lowest, highest)], best rate)] of the optimizers that share
        a grid of rates."""
        found = []
        for row in self.rows:
            if row.judged != all_rows.TUNED and row.name != all_rows.REFERENCE:
                continue
            one = tuned(self.results, row.name, self.tuned_ranks())
            if one is not None:
                points = [(rate, stats.median(losses.values()), min(losses.values()),
                           max(losses.values())) for rate, losses in sorted(one.losses.items())]
                found.append((row.name, points, one.best))
        return found if len(found) > 1 else []

    def tuned_study(self):
        return next((one for one in self.results.studies.values() if one.grid), None)

    def tuned_ranks(self):
        study = self.tuned_study()
        return study.ranks[-1] if study else 1

    def _curve_ranks(self, row):
        there = [n for (study, name, n, link) in self.results.found
                 if study == self.curve.name and name == row.name and link == "none"]
        if not there:
            return None
        return min(there, key=lambda n: (abs(n - self._n(row)), n))

    def _curves(self):
        """Rows whose curves are worth a line of their own: one for all whose losses equal dps'."""
        found, same = [], []
        base = None
        for row in self.rows:
            n = self._curve_ranks(row)
            if n is None or row.judged == all_rows.TUNED:
                continue  # the rate of a tuned row is found in studies of its own
            records = self.results.seeds(self.curve.name, row.name, n)
            losses = [self.results.column(record, "loss") for _, record in sorted(records.items())]
            if row.name == all_rows.REFERENCE:
                base = losses
                found.append([row, row.name, records])
            elif base is not None and losses == base:
                same.append(row.name)
            else:
                found.append([row, row.name, records])
        for entry in found:
            if entry[1] == all_rows.REFERENCE and same:
                entry[1] = f"dps = {', '.join(same)}" if len(same) < 3 else \
                    f"dps = {', '.join(same[:2])},\n{', '.join(same[2:])}"
        return found

    def loss_curves(self):
        """[(name, label, steps, seconds, band)]."""
        found = []
        for row, label, records in self._curves():
            width = max(1, self.curve.steps // 40)
            curves = [stats.smooth(self.results.column(record, "loss"), width)
                      for record in records.values()]
            band = stats.band(curves)
            seconds = stats.band([self.results.column(record, "seconds")
                                  for record in records.values()])[0]
            found.append((row.name, label, list(range(1, len(band[0]) + 1)), seconds, band))
        return found

    def norms(self):
        """[(name, label, steps, values, skipped steps)] of the first seed."""
        found = []
        for row, label, records in self._curves():
            record = records[min(records)]
            values = self.results.column(record, "norm")
            steps = [at + 1 for at, value in enumerate(values) if value is not None]
            skips = [at + 1 for at, value in enumerate(self.results.column(record, "skipped"))
                     if value]
            found.append((row.name, label, steps, stats.known(values), skips))
        return found

    def _alone(self, row):
        """Tokens per second of one process that does what the row does with one rank: the row that
        is a process alone; None where that does other arithmetic, or was not run."""
        name = "torch-single" if row.mode else "single"
        if row.single or row.judged != (all_rows.CLOSE if row.mode else all_rows.EXACT):
            return None
        alone = all_rows.ALL[name]
        if not self.counts(alone):
            return None
        return self._speed(alone, self.results.tokens_per_s)

    def scaling(self):
        """[(name, [(ranks, tokens per second)])]."""
        found = []
        for row in self.rows:
            points = []
            for n in (1,) if row.single else self.speed.ranks:
                rate = self._speed(row, self.results.tokens_per_s, ranks=n)
                if rate and self.counts(row, n):
                    points.append((n, rate))
            if points and points[0][0] > 1 and (alone := self._alone(row)):
                points.insert(0, (1, alone))
            if points:
                found.append((row.name, points))
        return found

    def base_rate(self):
        for name in ("single", all_rows.REFERENCE):
            rate = self.results.over_seeds(self.speed.name, name, 1, "none",
                                           self.results.tokens_per_s)
            if rate:
                return rate
        return None

    def phases(self):
        """[(name, {work or wait: ms}, predicted ms or None)]: where rank 0's mean step goes. Waits
        come from the timeline; a peer's lie inside of its backward and update."""
        found = []
        for row in self.measured_rows():
            parts = {name.removesuffix("_ms"): self._speed(
                row, lambda record, name=name: self.results.phase_ms(record, name))
                for name in WORK}
            parts.update(self.waits(row) or {})
            if row.mode or parts["forward"] is not None:
                found.append((row.name, parts, self.predicted_ms(row)))
        return found

    def step_ms(self, row):
        return self._speed(row, self.results.step_ms)

    def waits(self, row, link="none"):
        """{what for: ms}, medians over the turns; None of a peer."""
        each = [self.results.waits(record) for record in self.results.seeds(
            self.speed.name, row.name, self._n(row), link).values()]
        each = [waits for waits in each if waits is not None]
        if not each:
            return None
        names = sorted({name for waits in each for name in waits})
        return {name: stats.median([waits.get(name, 0.0) for waits in each]) for name in names}

    def memory(self):
        """[(name, {part: MiB} or None, measured MiB)]."""
        found = []
        for row in self.measured_rows():
            parts = {part: self._speed(row, lambda record, part=part: self.results.planned_mib(
                record, part)) for part in ("weights", "gradients", "moments", "activations",
                                            "library")}
            planned = None if parts["weights"] is None else parts
            found.append((row.name, planned, self._speed(row, self.results.pss_mib)))
        return found

    def step_times(self):
        found = []
        for row in self.measured_rows():
            values = [ms for record in self.results.seeds(
                self.speed.name, row.name, self._n(row)).values()
                for ms in stats.known(self.results.timed(record, "ms"))]
            if values and self.counts(row):
                found.append((row.name, values))
        return found

    def bytes_sent(self):
        """[(name, planned, measured)] of a rank and step, counted between pretended nodes."""
        study = self.results.studies.get("bytes")
        found = []
        for row in self.rows:
            n = next((n for n in (self.ranks, *(study.ranks if study else ()))
                      if study and self.results.seeds("bytes", row.name, n)), None)
            if n is None:
                continue
            planned = self.results.over_seeds("bytes", row.name, n, "none",
                                              self.results.planned_sent)
            measured = self.results.over_seeds("bytes", row.name, n, "none", self.results.sent)
            if planned is not None:
                found.append((row.name, planned, measured))
        return found

    def bytes_against_exposed(self):
        found = []
        for row in self.measured_rows():
            sent = self._speed(row, self.results.planned_sent)
            waited = self._speed(row, self.results.exposed_ms)
            if sent is not None and waited is not None and not row.single and self.counts(row):
                found.append((row.name, sent, waited))
        return found

    def time_and_loss(self):
        """[(name, seconds, final loss, utilisation)] of the curves' study."""
        found = []
        for row in self.rows:
            n = self._curve_ranks(row)
            if n is None or row.judged == all_rows.TUNED:
                continue
            each = [self.results.over_seeds(self.curve.name, row.name, n, "none", figure)
                    for figure in (lambda record: stats.known(
                        self.results.column(record, "seconds"))[-1],
                        self.results.final_loss, self.results.utilisation)]
            if each[0] is not None and each[1] is not None:
                found.append((row.name, *each))
        return found

    def part_count(self):
        return min(5, self.curve.steps)

    def part_name(self):
        return f"part of the run (of {self.curve.steps // self.part_count()} steps)"

    def by_part(self):
        """[(name, [tokens/s, norm, seconds, MiB, loss])], each a list by part."""
        found = []
        for row in self.rows:
            n = self._curve_ranks(row)
            records = self.results.seeds(self.curve.name, row.name, n) if n else {}
            if not records:
                continue
            record = records[min(records)]
            size = self.curve.steps // self.part_count()
            columns = [[], [], [], [], []]
            for part in range(self.part_count()):
                window = slice(part * size, (part + 1) * size)
                ms = stats.median(self.results.column(record, "ms")[window])
                columns[0].append(None if not ms else 1e3 * self.curve.tokens() / ms)
                columns[1].append(stats.mean(self.results.column(record, "norm")[window]))
                columns[2].append(sum(stats.known(self.results.column(record, "ms")[window])) / 1e3)
                columns[3].append(self.results.pss_mib(record))
                columns[4].append(stats.mean(self.results.column(record, "loss")[window]))
            found.append((row.name, columns))
        return found

    # ---- The model ----

    def parts(self, gbit_per_s=None):
        """Of a step of dps, measured; over links of that rate, or on one node. None without dps."""
        row = all_rows.ALL[all_rows.REFERENCE]
        records = self.results.seeds(self.speed.name, row.name, self.ranks)
        if not records or self.ranks < 2:
            return None
        of = {name: self._speed(row, lambda record, name=name: self.results.phase_ms(record, name))
              for name in ("forward_ms", "backward_ms", "optimizer_ms", "transfer_ms")}
        summary = next(iter(records.values()))["summary"]
        arena = summary["plan"]["gradients"]
        shape = summary["configuration"]
        dense = of["transfer_ms"] if gbit_per_s is None else model.dense_ms(arena, self.ranks,
                                                                           gbit_per_s)
        embedding = 4.0 * shape["vocab"] * shape["width"] / arena
        return model.Parts(of["forward_ms"], of["backward_ms"], of["optimizer_ms"], dense, arena,
                           embedding, self.ranks, shape["layers"])

    def predicted_ms(self, row, gbit_per_s=None):
        if row.mode or row.single:
            return None
        parts = self.parts(gbit_per_s)
        if parts is None:
            return None
        if row.name.startswith("dps-o"):  # its products are its own; what it sends is predicted
            own = {name: self._speed(row, lambda record, name=name: self.results.phase_ms(
                record, name + "_ms")) for name in ("forward", "backward")}
            if None in own.values():
                return None
            parts = replace(parts, **own)
        return model.step_ms(row.name, parts)

    def reach_at(self, gbit_per_s):
        parts = self.parts(gbit_per_s)
        return model.reach(parts) if parts else 0.0

    def _relative(self, row, rate):
        """Speed over a link, by the model, where dps on one node is 1."""
        here = self.predicted_ms(all_rows.ALL[all_rows.REFERENCE])
        there = self.predicted_ms(row, rate)
        return here / there if here and there else None

    def _modelled(self):
        """Rows whose line differs from the others' by what they send."""
        return [row for row in self.rows if row.name in ("dps", "dps-fp16-wire", "sps", "zero1",
                                                         "zero3", "topk", "powersgd")
                and self.predicted_ms(row) is not None]

    def link_lines(self):
        if self.parts() is None:
            return []
        return [(row.name, RATES, [self._relative(row, rate) for rate in RATES])
                for row in self._modelled()]

    def link_points(self):
        """[(name, Gb/s measured, speed, emulated)]."""
        base = self._speed(all_rows.ALL[all_rows.REFERENCE], self.results.step_ms)
        found = []
        for link, line in self.lines.items():
            for row in self.rows:
                ms = self.results.over_seeds(self.speed.name, row.name, 2, link,
                                             self.results.step_ms)
                if ms and base and self.counts(row, 2, link):
                    found.append((row.name, line["gbit_per_s"], base / ms, line["emulated"]))
        return found

    def crossings(self):
        """[(text, rate, height)]: where a strategy that saves bytes stops being faster than dps."""
        found = []
        if self.parts() is None:
            return found
        dps = all_rows.ALL[all_rows.REFERENCE]
        for row in self._modelled():
            if not row.compresses or not self.counts(row):
                continue
            rate = model.crossing(lambda x, row=row: self.predicted_ms(row, x),
                                  lambda x: self.predicted_ms(dps, x), RATES[0], RATES[-1])
            if rate:
                found.append((f"{row.name} pays below {rate:.3g} Gb/s", rate,
                              self._relative(dps, rate)))
        return found

    # ---- Text ----

    def findings(self):
        """Sentences for the head of the page."""
        found = [self._gates_finding(), self._exact_finding(), self._fastest_finding(),
                 self._memory_finding(), self._beside_finding(), self._waiting_finding(),
                 self._compression_finding(), *map(self._link_finding, self.lines)]
        found += [text + " (by the model)" for text, *_ in self.crossings()]
        return [text for text in found if text]

    def _gates_finding(self):
        run = sorted({name for name, _ in self.judged.gates}, key=list(all_rows.ALL).index)
        def named(judge):
            return [name for name in run if any(judge(row, n) for row, n in self.judged.gates
                                                if row == name)]
        failed = named(self.judged.failed)
        unjudged = [name for name in named(self.judged.why_not) if name not in failed]
        text = (f"Of {len(run)} rows that were run, {len(run) - len(failed) - len(unjudged)} hold all "
                "their gates")
        if failed:
            text += f"; {', '.join(failed)} do{'es' if len(failed) == 1 else ''} not"
        if unjudged:
            text += f"; of {', '.join(unjudged)} there is no verdict"
        return text

    def _exact_finding(self):
        exact = [row.name for row in self.rows if row.judged == all_rows.EXACT
                 and row.name != all_rows.REFERENCE]
        ranks, holding = set(), []
        for name in exact:
            asked = {n for row, n in self.judged.gates if row == name}
            if asked and not any(self.judged.why_not(name, n) for n in asked):
                holding.append(name)
                ranks |= asked
        if not holding:
            return ""
        return (f"{', '.join(holding)} end{'s' if len(holding) == 1 else ''} with the bytes of dps, weights and both moments, with "
                f"{', '.join(map(str, sorted(ranks)))} ranks")

    def _fastest_finding(self):
        ours = [(ratio[0], name) for name, _, ratio in self.speeds()
                if ratio and not all_rows.ALL[name].mode]
        if len(ours) < 2:
            return ""
        (best, name), (worst, last) = max(ours), min(ours)
        if name == all_rows.REFERENCE:
            return f"None of ours is faster than dps; {last} is the slowest, at {worst:.2f} times dps"
        return (f"Of ours {name} is the fastest, at {best:.2f} times dps, and {last} the slowest, at "
                f"{worst:.2f}")

    def _memory_finding(self):
        known = [(mib, name) for name, parts, mib in self.memory() if mib and parts]
        base = next((mib for mib, name in known if name == all_rows.REFERENCE), None)
        if base is None or not known:
            return ""
        least, name = min(known)
        if least == base:
            return f"dps needs the least memory, {base:.0f} MiB a rank"
        return f"{name} needs the least memory, {least:.0f} MiB a rank where dps needs {base:.0f}"

    def _beside_finding(self):
        pairs = [f"{ours.name} is {ratio[0]:.1f} times as fast as {theirs.title}"
                 for ours, theirs, ratio in self.beside()]
        return "; ".join(pairs)

    def _waiting_finding(self):
        row = all_rows.ALL[all_rows.REFERENCE]
        waits, ms = self.waits(row), self.step_ms(row)
        if not waits or not ms or not self.counts(row):
            return ""
        total = sum(waits.values())
        return f"dps waits {total:.1f} ms of a step of {ms:.1f} ({100 * total / ms:.0f} %)"

    def _compression_finding(self):
        """Of rows that send fewer bytes: which of them lose by it on one node."""
        slower = [f"{row.name} at {ratio[0]:.2f} times dps" for row in self.measured_rows()
                  if row.compresses and self.counts(row) and (ratio := self.ratio(row))
                  and ratio[0] < 1]
        if not slower:
            return ""
        return ("Sending fewer bytes cannot win on one node, where nothing is sent over a link: "
                + ", ".join(slower))

    def _link_finding(self, link):
        """Of a link that was measured: every row over dps there, the fastest first."""
        found = sorted(((ratio[0], row.name) for row, _, ratio, _ in self.over_link(link)
                        if ratio and row.name != all_rows.REFERENCE), reverse=True)
        if not found:
            return ""
        line = self.lines[link]
        emulated = ", EMULATED" if line["emulated"] else ""
        return (f"Over {link}{emulated}, where plain TCP carried {line['gbit_per_s']:.2f} Gb/s, speeds "
                "over dps' are " + ", ".join(f"{name} {ratio:.2f}" for ratio, name in found))

    def surprises(self):
        """[(row, what, measured, predicted, remark)] of what is off by more than a quarter."""
        found = []
        for name, parts, predicted in self.phases():
            row = all_rows.ALL[name]
            ms = self._speed(row, self.results.step_ms)
            if model.is_surprise(ms, predicted):
                largest = max((value, part) for part, value in parts.items() if value is not None)
                found.append((name, "step, ms", ms, predicted,
                              f"most of it: {largest[1]}, {largest[0]:.1f} ms"))
        for name, parts, measured in self.memory():
            off = model.off_plan(measured, parts) if parts and measured else 0.0
            if abs(off) > model.SURPRISE:
                found.append((name, "memory, MiB", measured, measured / (1 + off),
                              "the plan counts no code and no data"))
        for name, planned, measured in self.bytes_sent():
            if model.is_surprise(measured, planned):
                found.append((name, "bytes sent", measured, planned, "between pretended nodes"))
        return found
