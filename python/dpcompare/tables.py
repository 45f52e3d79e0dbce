"""tables.py - the tables of the report, as HTML.

report.py puts them into the page. Nothing is worked out here: views.py does that.
"""
import html

from dpcompare import gates, model, stats, studies
from dpcompare import rows as all_rows

# Gates that hold for every row or the run is worthless; the table of gates names them when they fail.
SHARED = ("initial weights", "order of samples", "global batch", "sequence length", "steps",
          "clipping")


def number(value, digits=1):
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{digits}f}"


def escape(text):
    return html.escape(str(text))


def quiet(text):
    return f"<span class=quiet>{text}</span>"


def table(heads, lines, numeric=()):
    """heads and cells are text; a cell may be (text, class), a line (cells, class)."""
    def cell(tag, text, at, extra=""):
        classes = " ".join(filter(None, ["n" if at in numeric else "", extra]))
        return f"<{tag}{f' class={chr(34)}{classes}{chr(34)}' if classes else ''}>{text}</{tag}>"

    found = ["<div class=wide><table><tr>" + "".join(cell("th", head, at) for at, head in
                                                     enumerate(heads)) + "</tr>"]
    for cells, kind in lines:
        parts = []
        for at, one in enumerate(cells):
            text, extra = one if isinstance(one, tuple) else (one, "")
            parts.append(cell("td", text, at, extra))
        found.append(f"<tr{f' class={kind}' if kind else ''}>" + "".join(parts) + "</tr>")
    return "".join(found) + "</table></div>"


def off_cell(off):
    """How far a measurement is from its prediction; marked where a reader should know."""
    if off is None:
        return "-"
    return f"{100 * off:+.0f} %", "flag" if abs(off) > model.SURPRISE else ""


class Tables:
    def __init__(self, view, absent):
        """absent: {row: why it was not run}."""
        self.view, self.absent = view, absent

    def _over(self, row, figure):
        """A figure of a row, the median over the turns."""
        n = 1 if row.single else self.view.ranks
        return self.view.results.over_seeds(self.view.speed.name, row.name, n, "none", figure)

    # ---- Speed, memory and loss ----

    def _untimed_line(self, row, name):
        """Of a row that has no run among those that are timed."""
        view = self.view
        n = 1 if row.single else view.ranks
        held = view.judged.held(row.name)
        ranks = min(view.speed.ranks) if row.single else n
        why = (self.absent.get(row.name) or view.results.why_failed(view.speed.name, row.name, n)
               or all_rows.fits(row, n) or studies.why_not(view.speed, row, ranks, "none") or "no run")
        if failed := view.judged.failed(row.name, n):
            return [name, "<span class=failed>failed</span><br>" + quiet(
                f"{escape(failed)}; not timed: {escape(why)}"), "no speed"] + [""] * 9, "failed"
        if not held:
            return [name, f"not run: {escape(why)}"] + [""] * 10, "absent"
        if unjudged := view.judged.why_not(row.name, n):
            return [name, "no verdict<br>" + quiet(
                f"{escape(unjudged)}; not timed: {escape(why)}"), "no speed"] + [""] * 9, "unjudged"
        where = ", ".join(sorted({f"{ranks} ranks (study {study})" for ranks, study in held}))
        return [name, f"<span class=ok>{row.judged}</span><br>" + quiet(
            f"holds with {where}; not timed: {escape(why)}")] + [""] * 10, "absent"

    def row_line(self, row):
        """Of the first table."""
        view, results = self.view, self.view.results
        n = 1 if row.single else view.ranks
        name = f"<b>{row.name}</b><br>" + quiet(escape(row.title))
        if not results.seeds(view.speed.name, row.name, n):
            return self._untimed_line(row, name)
        failed, unjudged = view.judged.failed(row.name, n), view.judged.why_not(row.name, n)
        measured, planned = self._over(row, results.pss_mib), self._over(row, results.planned_mib)
        final = None
        if row.judged != all_rows.TUNED:
            final = results.over_seeds(view.curve.name, row.name, n, "none", results.final_loss)
        sent = self._over(row, results.planned_sent)
        memory = [number(measured, 1) + ("<br>" + quiet(f"plan {number(planned, 1)}")
                                         if planned else ""),
                  number(sent / 1e6, 1) if sent is not None else "-",
                  number(final, 4), number(self._over(row, results.skips), 0)]
        if failed:
            return [name, "<span class=failed>failed</span><br>" + quiet(escape(failed)),
                    "no speed", "", "", "", "", "", *memory], "failed"
        if unjudged:
            return [name, "no verdict<br>" + quiet(escape(unjudged)),
                    "no speed", "", "", "", "", "", *memory], "unjudged"
        ratio, used = view.ratio(row), self._over(row, results.utilisation)
        times = [self._over(row, lambda record, part=part: stats.percentile(
            results.timed(record, "ms"), part)) for part in (0.05, 0.5, 0.95)]
        waits = view.waits(row)
        return [name, f"<span class=ok>{row.judged}</span>",
                number(self._over(row, results.tokens_per_s), 0),
                "-" if ratio is None else f"{ratio[0]:.2f}<br>" + quiet(
                    "one turn" if len(results.seeds(view.speed.name, row.name, n)) == 1
                    else f"{ratio[1]:.2f} to {ratio[2]:.2f}"),
                number(times[1]) + ("" if times[1] is None else "<br>" + quiet(
                    f"{number(times[0])} to {number(times[2])}")),
                number(sum(waits.values())) if waits else "-",
                number(self._over(row, results.gflops)),
                number(100 * used, 0) if used is not None else "-",
                *memory], "peer" if row.mode else ""

    def first_table(self):
        heads = ["row", "gates", "tokens/s", "over dps", "ms a step", "ms waiting", "GFLOP/s",
                 "% of a core", "MiB a rank", "MB sent", "final loss", "skips"]
        return table(heads, [self.row_line(row) for row in self.view.rows], range(2, 12))

    def beside_table(self):
        """Ours beside what it stands for elsewhere; "" without peers."""
        lines = []
        for ours, theirs, ratio in self.view.beside():
            lines.append(([ours.name, theirs.title, f"{ratio[0]:.2f}",
                           f"{ratio[1]:.2f} to {ratio[2]:.2f}"], ""))
        return table(["ours", "beside", "ours over theirs", "over the turns"], lines,
                     (2, 3)) if lines else ""

    def waits_table(self):
        """What each row waited for, by the timeline."""
        each = [(row, self.view.waits(row)) for row in self.view.measured_rows()
                if not row.single and self.view.counts(row)]
        each = [(row, waits) for row, waits in each if waits]
        names = [name for name in model.WAITS if any(waits.get(name, 0.0) >= 0.005
                                                     for _, waits in each)]
        lines = [([row.name, *(number(waits[name], 2) if waits.get(name, 0.0) >= 0.005 else ""
                               for name in names),
                   number(sum(waits.values()), 2)], "") for row, waits in each]
        return table(["row", *names, "ms a step"], lines, range(1, len(names) + 2)) if lines else ""

    def markdown(self):
        """The first table for a page of Markdown, in fewer columns."""
        lines = ["| row | gates | tokens/s | over dps | ms a step | ms waiting | MiB a rank | final loss |",
                 "|---|---|---|---|---|---|---|---|"]
        for row in self.view.rows:
            (cells, kind), plain = self.row_line(row), []
            name = row.title if row.mode else row.name
            if kind == "absent":
                held = sorted({n for n, _ in self.view.judged.held(row.name)})
                text = f"holds with {', '.join(map(str, held))} ranks, not timed" if held else "not run"
                plain = [text] + [""] * 6
            else:
                verdict = {"failed": "fails", "unjudged": "no verdict"}.get(kind, "holds")
                plain = [verdict, *(
                    str(cells[at][0] if isinstance(cells[at], tuple) else cells[at]).split("<br>")[0]
                    for at in (2, 3, 4, 5, 8, 10))]
            lines.append("| " + " | ".join([name, *plain]) + " |")
        return "\n".join(lines) + "\n"

    # ---- Gates ----

    def _judged(self):
        """[(row, ranks, study, gates that were asked)] in the rows' order."""
        order = list(all_rows.ALL)
        for (name, n), asked_in in sorted(self.view.judged.gates.items(),
                                         key=lambda item: (order.index(item[0][0]), item[0][1])):
            for study, found in asked_in.items():
                asked = [gate for gate in found if gate.passed is not None or gate.needed]
                if asked:
                    yield name, n, study, asked

    def gates_table(self):
        """A row's line has a cell for each study: with how many ranks its gates held, or failed."""
        cells, columns = {}, []
        for name, n, study, asked in self._judged():
            if study not in columns:
                columns.append(study)
            held, failed, unjudged = cells.setdefault(name, {}).setdefault(study, ([], [], []))
            (failed if gates.failures(asked) else unjudged if gates.unjudged(asked)
             else held).append(str(n))

        def cell(name, study):
            held, failed, unjudged = cells[name].get(study, ([], [], []))
            if failed:
                return f"fails with {', '.join(failed)}", "failed"
            if unjudged:
                return f"no verdict with {', '.join(unjudged)}"
            return (f"{', '.join(held)} rank{'s' if held != ['1'] else ''}", "ok") if held else ""
        return table(["row", "class", *columns], [
            ([name, all_rows.ALL[name].judged, *(cell(name, study) for study in columns)], "")
            for name in cells])

    def gate_notes(self, only_failed):
        lines = []
        for name, n, study, asked in self._judged():
            failed = gates.failures(asked) or gates.unjudged(asked)
            if only_failed and not failed:
                continue
            text = "; ".join(f"{gate.name}: {gate.text}" for gate in (failed or [
                gate for gate in asked if gate.name not in SHARED]))
            verdict = ("hold", "ok")
            if failed:
                verdict = ("failed", "failed") if gates.failures(asked) else "no verdict"
            lines.append(([name, str(n), study, verdict,
                           f"{sum(1 for gate in asked if gate.passed)}/{len(asked)}",
                           escape(text)], ""))
        return table(["row", "ranks", "study", "gates", "held", "of note"], lines,
                     (1, 4)) if lines else ""

    # ---- Predictions ----

    def predictions_table(self):
        view, lines = self.view, []
        for name, _, predicted in view.phases():
            ms = view.step_ms(all_rows.ALL[name])
            if predicted is not None and ms is not None:
                lines.append(([name, number(predicted), number(ms),
                               off_cell(ms / predicted - 1)], ""))
        return table(["row", "predicted ms", "measured ms", "off by"], lines, (1, 2, 3))

    def memory_table(self):
        lines = []
        for name, parts, measured in self.view.memory():
            total = sum(parts.values()) if parts else None
            off = model.off_plan(measured, parts) if parts and measured else None
            within = parts and parts["library"] > 0 and off == 0.0
            lines.append(([name, *(number((parts or {}).get(part)) for part in (
                "weights", "gradients", "moments", "activations", "library")), number(total),
                number(measured), "within" if within else off_cell(off)], ""))
        return table(["row", "weights", "gradients", "moments", "activations", "library, at most",
                      "plan, MiB", "measured, MiB", "off by"], lines, range(1, 9))

    def bytes_table(self):
        lines = []
        for name, planned, measured in self.view.bytes_sent():
            off = measured / planned - 1 if measured and planned else None
            lines.append(([name, number(planned / 1e6, 3),
                           "-" if measured is None else number(measured / 1e6, 3),
                           off_cell(off)], ""))
        return table(["row", "MB a step by the formula", "counted", "off by"], lines, (1, 2, 3))

    # ---- Links ----

    def links_table(self):
        """Rows over each link that was measured; "" without any."""
        lines = []
        for link, line in self.view.lines.items():
            for row, ms, ratio, waits in self.view.over_link(link):
                largest = max(waits.items(), key=lambda item: item[1], default=None) if waits else None
                lines.append(([f"{link}{' <b>EMULATED</b>' if line['emulated'] else ''}", row.name,
                               number(ms), "-" if ratio is None else f"{ratio[0]:.2f}",
                               number(sum(waits.values())) if waits else "-",
                               f"{largest[0]} {number(largest[1])}" if largest else "-"], ""))
            lines += [([link, row.name, "no speed", "", "", quiet(escape(why))],
                       "failed" if self.view.judged.failed(row.name, 2, link) else "unjudged")
                      for row, why in self.view.without_speed_over(link)]
        return table(["link", "row", "ms a step", "over dps there", "ms waiting", "most of it"],
                     lines, (2, 3, 4)) if lines else ""

    def reach_table(self):
        """R of this run and, by arithmetic, of others."""
        lines = [([escape(name), f"{reach:.3g}", escape(how)], "here" if is_here else "")
                 for name, reach, how, is_here in self.view.reaches()]
        return table(["where", "R", "how it is known"], lines, (1,)) if lines else ""
