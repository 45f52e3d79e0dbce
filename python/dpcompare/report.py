"""report.py - the report as one HTML page without external resources, and its data as CSV and JSON.

It is written after the runs, and by --report again from their records alone. It computes nothing:
views.py does.
"""
import csv
import html
import json
import os
import time

from dpcompare import gates, model, stats, texts
from dpcompare import rows as all_rows

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["step", "seconds", "ms", "forward_ms", "backward_ms", "exposed_gradients_ms",
           "exposed_weights_ms", "skew_ms", "optimizer_ms", "other_ms", "transfer_ms", "wire_bytes",
           "loss", "val_loss", "lr", "norm", "clip", "scale", "skipped"]


def _number(value, digits=1):
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.{digits}f}"


def _table(heads, lines, numeric=()):
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


def _escape(text):
    return html.escape(str(text))


class Report:
    def __init__(self, view, about, absent, command, failures):
        """about: {name: what the machine has}; absent: {row: why it was not run}."""
        self.view, self.about, self.absent = view, about, absent
        self.command, self.failures = command, failures

    # ---- Lines ----

    def row_line(self, row):
        """Of the first table."""
        view, results = self.view, self.view.results
        n = 1 if row.single else view.ranks
        records = results.seeds(view.speed.name, row.name, n)
        name = f"<b>{row.name}</b><br><span class=quiet>{_escape(row.title)}</span>"
        if not records:
            why = self.absent.get(row.name) or results.why_failed(view.speed.name, row.name, n) \
                or "no run"
            return [name, f"not run: {_escape(why)}"] + [""] * 9, "absent"
        failed = view.judged.why_not(row.name, n)

        def over(figure):
            return results.over_seeds(view.speed.name, row.name, n, "none", figure)
        measured, planned = over(results.pss_mib), over(results.planned_mib)
        final = results.over_seeds(view.curve.name, row.name, n, "none", results.final_loss)
        sent = over(results.planned_sent)
        memory = [_number(measured, 1) + (f"<br><span class=quiet>plan {_number(planned, 1)}</span>"
                                          if planned else ""),
                  _number(sent / 1e6, 1) if sent is not None else "-",
                  _number(final, 4),
                  _number(over(results.skips), 0)]
        if failed:
            return [name, f"<span class=failed>failed</span><br><span class=quiet>{_escape(failed)}"
                    "</span>", "no speed", "", "", "", "", *memory], "failed"
        ratio = view.ratio(row)
        times = [over(lambda record, part=part: stats.percentile(results.timed(record, "ms"), part))
                 for part in (0.5, 0.95)]
        return [name, f"<span class=ok>{row.judged}</span>", _number(over(results.tokens_per_s), 0),
                "-" if ratio is None else f"{ratio[0]:.3f}<br><span class=quiet>{ratio[1]:.2f} to "
                f"{ratio[2]:.2f}</span>",
                f"{_number(times[0])}<br><span class=quiet>p95 {_number(times[1])}</span>",
                _number(over(results.exposed_ms)),
                _number(100 * over(results.utilisation), 0)
                if over(results.utilisation) is not None else "-",
                *memory], "peer" if row.mode else ""

    def first_table(self):
        heads = ["row", "gates", "tokens/s", "over dps", "ms a step", "ms exposed", "% of a core",
                 "MiB a rank", "MB sent", "final loss", "skips"]
        return _table(heads, [self.row_line(row) for row in self.view.rows], range(2, 11))

    def gates_table(self):
        lines = []
        for (name, n), studies in sorted(self.view.judged.gates.items(),
                                         key=lambda item: (list(all_rows.ALL).index(item[0][0]),
                                                           item[0][1])):
            for study, found in studies.items():
                failed = gates.failures(found)
                unknown = [gate for gate in found if gate.passed is None]
                text = "; ".join(f"{gate.name}: {gate.text}" for gate in (failed or [
                    gate for gate in found if gate.passed and gate.name not in (
                        "initial weights", "order of samples", "global batch", "sequence length",
                        "steps", "clipping")]))
                verdict = ("failed", "failed") if failed else ("hold", "ok")
                lines.append(([name, str(n), study, verdict,
                               f"{sum(1 for gate in found if gate.passed)} of "
                               f"{len(found) - len(unknown)}", _escape(text)], ""))
        return _table(["row", "ranks", "study", "gates", "held", "of note"], lines, (1,))

    def predictions_table(self):
        view, lines = self.view, []
        for name, parts, predicted in view.phases():
            row = all_rows.ALL[name]
            ms = view._speed(row, view.results.step_ms)
            if predicted is None or ms is None:
                continue
            off = ms / predicted - 1
            lines.append(([name, _number(predicted), _number(ms), (f"{100 * off:+.0f} %",
                           "flag" if abs(off) > model.SURPRISE else "")], ""))
        return _table(["row", "predicted ms", "measured ms", "off by"], lines, (1, 2, 3))

    def memory_table(self):
        lines = []
        for name, parts, measured in self.view.memory():
            total = sum(parts.values()) if parts else None
            off = measured / total - 1 if total and measured else None
            lines.append(([name, *(_number((parts or {}).get(part)) for part in (
                "weights", "gradients", "moments", "activations", "library")), _number(total),
                _number(measured), ("-" if off is None else f"{100 * off:+.0f} %",
                                    "flag" if off and abs(off) > model.SURPRISE else "")], ""))
        return _table(["row", "weights", "gradients", "moments", "activations", "library",
                       "plan, MiB", "measured, MiB", "off by"], lines, range(1, 9))

    def bytes_table(self):
        lines = []
        for name, planned, measured in self.view.bytes_sent():
            off = measured / planned - 1 if measured and planned else None
            lines.append(([name, _number(planned / 1e6, 3),
                           "-" if measured is None else _number(measured / 1e6, 3),
                           ("-" if off is None else f"{100 * off:+.0f} %",
                            "flag" if off and abs(off) > model.SURPRISE else "")], ""))
        return _table(["row", "MB a step by the formula", "counted", "off by"], lines, (1, 2, 3))

    def surprises(self):
        found = self.view.surprises()
        if not found:
            return "<p>Nothing measured was off its prediction by more than a quarter.</p>"
        return "<ul>" + "".join(
            f"<li><b>{name}</b>: {what} {_number(measured)}, predicted {_number(predicted)} "
            f"({100 * (measured / predicted - 1):+.0f} %); {_escape(remark)}.</li>"
            for name, what, measured, predicted, remark in found) + "</ul>"

    def links_text(self):
        if not self.view.lines:
            return ("<p>Only one node was measured; the lines of the picture are the model's. "
                    "<code>--links 1g</code> adds a link between two namespaces (root).</p>")
        return "<ul>" + "".join(
            f"<li>{name}: {_escape(line['shape'])}; plain TCP carried {line['gbit_per_s']:.2f} Gb/s"
            + (", <b>EMULATED</b>" if line["emulated"] else "") + "</li>"
            for name, line in self.view.lines.items()) + "</ul>"

    # ---- The page ----

    def page(self, pictures, why_none=""):
        view = self.view
        reach = view.parts() and model.reach(view.parts())
        with open(os.path.join(HERE, "report.css"), encoding="utf-8") as file:
            style = file.read()
        drawn = "".join(
            f'<figure id="{name}">{text[text.index("<svg"):]}<figcaption>{_escape(caption)}'
            "</figcaption></figure>" for name, text, caption in pictures)
        seeds = max((len(found) for found in view.results.found.values()), default=0)
        parts = [
            "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
            'content="width=device-width">'
            f"<title>dpcompare: {_escape(view.title())}</title><style>{style}</style></head><body>",
            "<h1>How should GPT-2 be trained on several processors?</h1>",
            f"<p class=quiet>{_escape(self.command)} &middot; {time.strftime('%d %b %Y %H:%M')} "
            f"&middot; {_escape(self.about.get('processor', ''))}</p>",
            "<nav>" + "".join(f"<a href=#{anchor}>{anchor}</a>" for anchor in (
                "speed", "gates", "pictures", "predictions", "surprises", "links", "confounders",
                "limits", "machine")) + "</nav>",
            f"<p>Every row trains the same model from the same weights on the same samples: "
            f"{_escape(view.title())}, a batch of {view.speed.batch} sequences of {view.speed.seq} "
            f"tokens over all ranks. Medians of {seeds} turn{'s' if seeds != 1 else ''}, each with a "
            f"seed of its own; ratios are taken within a turn"
            + (f". R, compute time over the time of a dense all-reduce, is {reach:.3g} here"
               if reach else "") + ".</p>",
            "<h2 id=speed>Speed, memory and loss</h2>", self.first_table(),
            "<p class=quiet>Gates: " + "; ".join(f"<b>{name}</b>: {text}" for name, text in
                                                 texts.CLASSES.items())
            + ". MiB: growth of the PSS since before the model was made. MB sent: by the formula, "
            "were every rank a node of its own; on one node nothing is sent.</p>",
            "<h2 id=pictures>Pictures</h2>", drawn or f"<p>{_escape(why_none)}</p>",
            "<h2 id=gates>Gates</h2>", self.gates_table(),
            "<h2 id=predictions>Predictions beside measurements</h2>",
            "<p>Steps: from dps' own forward, backward and update and the time its transfers took. "
            f"More than {100 * model.SURPRISE:g} % off is marked.</p>", self.predictions_table(),
            self.memory_table(), self.bytes_table(),
            "<h2 id=surprises>What surprised</h2>", self.surprises(),
            "<h2 id=links>Links</h2>", self.links_text(),
            "<h2 id=confounders>Confounders, and what is done about each</h2><ul>"
            + "".join(f"<li><b>{_escape(name)}.</b> {_escape(text)}</li>"
                      for name, text in texts.CONFOUNDERS) + "</ul>",
            "<h2 id=limits>Limits</h2><ul>" + "".join(f"<li>{_escape(text)}</li>"
                                                      for text in texts.LIMITS) + "</ul>",
            "<h2 id=machine>Machine, versions, rows</h2>",
            _table(["", ""], [([_escape(name), _escape(value)], "") for name, value in
                              self.about.items()]),
            _table(["row", "what it is", "flags"], [([row.name, _escape(row.about), "<code>"
                   + _escape(" ".join(row.flags) or f"peers/torch_gpt2.py {row.mode}") + "</code>"],
                   "") for row in view.rows]),
        ]
        if self.failures:
            parts += ["<h2>Runs that failed</h2><ul>" + "".join(
                f"<li>{_escape(name)}: {_escape(why)}</li>" for name, why in self.failures) + "</ul>"]
        return "\n".join(parts) + "</body></html>\n"

    def as_json(self):
        """Everything a program may want, without the steps."""
        view = self.view
        found = {}
        for row in view.rows:
            n = 1 if row.single else view.ranks
            records = view.results.seeds(view.speed.name, row.name, n)

            def over(figure):
                return view.results.over_seeds(view.speed.name, row.name, n, "none", figure)
            found[row.name] = {"why_not_run": "" if records else self.absent.get(row.name, "no run")}
            if records:
                failed = view.judged.why_not(row.name, n)
                found[row.name].update(
                    ranks=n, failed_gate=failed, final_loss=over(view.results.final_loss),
                    memory_mib=over(view.results.pss_mib),
                    planned_mib=over(view.results.planned_mib),
                    planned_sent_bytes=over(view.results.planned_sent),
                    utilisation=over(view.results.utilisation), skips=over(view.results.skips))
                if not failed:
                    ratio = view.ratio(row)
                    found[row.name].update(
                        tokens_per_s=over(view.results.tokens_per_s),
                        over_dps=ratio and ratio[0], step_ms=over(view.results.step_ms),
                        predicted_ms=view.predicted_ms(row),
                        exposed_ms=over(view.results.exposed_ms))
        return {"command": self.command, "machine": self.about, "rows": found,
                "gates": [{"row": name, "ranks": n, "study": study, "gate": gate.name,
                           "passed": gate.passed, "text": gate.text}
                          for (name, n), studies in view.judged.gates.items()
                          for study, of in studies.items() for gate in of],
                "links": view.lines, "failures": self.failures,
                "surprises": [dict(zip(("row", "what", "measured", "predicted", "remark"), one))
                              for one in view.surprises()]}


def write_csv(path, results):
    """A line for each step of each run."""
    with open(path + ".new", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["study", "row", "ranks", "link", "seed", *COLUMNS])
        for (study, row, ranks, link), records in results.found.items():
            for seed, record in sorted(records.items()):
                columns = [results.column(record, name) for name in COLUMNS]
                length = max(map(len, columns))
                for at in range(length):
                    writer.writerow([study, row, ranks, link, seed, *(
                        column[at] if at < len(column) else None for column in columns)])
    os.replace(path + ".new", path)


def write(report, out, preview=False):
    """All files of the report; a line about pictures that could not be drawn, or ""."""
    why = ""
    pictures = []
    try:
        from dpcompare import figures
        pictures = figures.draw(report.view, os.path.join(out, "svg"), preview)
    except ImportError as error:
        why = (f"no pictures: {error} (Debian: apt-get install python3-matplotlib); tables and data "
               "are whole, and --report draws them later")
    write_csv(os.path.join(out, "runs.csv"), report.view.results)
    for name, text in (("report.html", report.page(pictures, why)),
                       ("summary.json", json.dumps(report.as_json(), indent=1))):
        with open(os.path.join(out, name + ".new"), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(os.path.join(out, name + ".new"), os.path.join(out, name))
    return why
