"""report.py - the report as one HTML page without external resources, and its data as CSV and JSON.

It is written after the runs, and by --report again from their records alone. It computes nothing:
views.py does. tables.py makes the tables, figures.py the pictures.
"""
import csv
import json
import os
import time

from dpcompare import model, texts
from dpcompare.tables import Tables, escape, number, table

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["step", "seconds", "ms", "forward_ms", "backward_ms", "exposed_gradients_ms",
           "exposed_weights_ms", "skew_ms", "optimizer_ms", "other_ms", "transfer_ms", "wire_bytes",
           "loss", "val_loss", "lr", "norm", "clip", "scale", "skipped"]
SECTIONS = ("results", "waiting", "memory", "convergence", "gates", "links", "predictions",
            "surprises", "confounders", "limits", "reproduce")


def _list(items):
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


class Report(Tables):
    def __init__(self, view, about, absent, command, failures, left_out=()):
        """about: {name: what the machine has}; absent: {row: why it was not run}; failures and
        left_out, for want of time: [(run, why)]."""
        super().__init__(view, absent)
        self.about, self.command = about, command
        self.failures, self.left_out = failures, left_out

    def surprises(self):
        found = self.view.surprises()
        if not found:
            return "<p>Nothing measured was off its prediction by more than a quarter.</p>"
        return "<ul>" + "".join(
            f"<li><b>{name}</b>: {what} {number(measured)}, predicted {number(predicted)} "
            f"({100 * (measured / predicted - 1):+.0f} %); {escape(remark)}.</li>"
            for name, what, measured, predicted, remark in found) + "</ul>"

    def links_text(self):
        if not self.view.lines:
            return ("<p>Only one node was measured; the lines of the picture are the model's. "
                    "<code>--links 1g</code> adds a link between two namespaces (root).</p>")
        return _list(
            f"{name}: {escape(line['shape'])}; plain TCP carried {line['gbit_per_s']:.2f} Gb/s"
            + (", <b>EMULATED</b>" if line["emulated"] else "")
            for name, line in self.view.lines.items())

    # ---- The page ----

    def _setup(self):
        """What all rows share, as a paragraph."""
        view, study = self.view, self.view.speed
        seeds = max((len(found) for (name, *_), found in view.results.found.items()
                     if name == study.name), default=0)
        text = (f"Every row trains the same model ({escape(study.preset)}) from the same weights on "
                f"the same samples: a batch of {study.batch} sequences of {study.seq} tokens over all "
                f"ranks, {study.steps} steps, AdamW with a rate of {study.lr:g}, clipping at 1. "
                f"{view.ranks} rank{'s' if view.ranks > 1 else ''} unless a line says otherwise. "
                f"Medians of {seeds} turn{'s' if seeds != 1 else ''}, each with a seed of its own; "
                "ratios are taken within a turn.")
        if view.curve is not study:
            text += (f" Losses are those of {view.curve.steps} steps of the smaller model "
                     f"{escape(view.curve.preset)}.")
        return f"<p>{text}</p>"

    def _figures(self, pictures, why_none):
        """{name: HTML}, numbered in the order of the page."""
        found = {}
        for at, (name, text, caption) in enumerate(pictures, 1):
            found[name] = (f'<figure id="{name}">{text[text.index("<svg"):]}<figcaption><b>Figure '
                           f"{at}.</b> {escape(caption)}</figcaption></figure>")
        return found or {"speed": f"<p>{escape(why_none)}</p>"}

    def _rows_table(self):
        study = self.view.speed
        return table(["row", "what it is", "flags"], [([
            row.name, escape(row.about), "<code>" + escape(" ".join(map(str, (
                *row.flags, *study.flags(row)))) if not row.mode
                else f"peers/torch_gpt2.py {row.mode}") + "</code>"], "") for row in self.view.rows])

    def page(self, pictures, why_none=""):
        view = self.view
        with open(os.path.join(HERE, "report.css"), encoding="utf-8") as file:
            style = file.read()
        drawn = self._figures(pictures, why_none)

        def show(*names):
            return "".join(drawn.get(name, "") for name in names)
        beside, waits, over = self.beside_table(), self.waits_table(), self.links_table()
        parts = [
            "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
            'content="width=device-width">'
            f"<title>dpcompare: {escape(view.title())}</title><style>{style}</style></head><body>",
            "<h1>How should GPT-2 be trained on several processors?</h1>",
            f"<p class=quiet>{escape(self.command)} &middot; {time.strftime('%d %b %Y %H:%M')} "
            f"&middot; {escape(self.about.get('processor', ''))}</p>",
            "<nav>" + "".join(f"<a href=#{name}>{name}</a>" for name in SECTIONS) + "</nav>",
            "<section class=abstract><h2>In short</h2>", _list(
                escape(text) + "." for text in view.findings()), "</section>",
            "<h2 id=results>Results</h2>", self._setup(), self.first_table(),
            "<p class=quiet>Gates: " + "; ".join(f"<b>{name}</b>: {text}" for name, text in
                                                 texts.CLASSES.items())
            + ". A row that fails one, or has no verdict, has no speed. ms: median, 5th to 95th percentile. GFLOP/s: of "
            "the model, 6 per weight and token and 12 per layer, channel and position. MiB: growth "
            "of the PSS since before the model was made. MB sent: by the formula, were every rank a "
            "node of its own; on one node nothing is sent.</p>", show("speed"),
            ("<h3>Ours beside what it stands for</h3>" + beside) if beside else "",
            show("throughput", "cdf", "papers", "parts"),
            "<h2 id=waiting>Where a step goes</h2>", show("step"), waits and (
                "<p>Milliseconds of a step that rank 0 waited, by what it waited for; from the "
                "timeline.</p>" + waits),
            "<h2 id=memory>Memory</h2>", show("memory"), self.memory_table(),
            "<h2 id=convergence>Convergence</h2>", show("loss", "norm", "tuning"),
            "<h2 id=gates>Gates</h2>", f"<p>{texts.GATES}</p>", self.gates_table(),
            self.gate_notes(True), "<details><summary>Every gate that was asked</summary>",
            self.gate_notes(False), "</details>",
            "<h2 id=links>Links, and R</h2>", self.links_text(), over, show("links", "wire"),
            f"<p>{texts.REACH}</p>", self.reach_table(),
            "<h2 id=predictions>Predictions beside measurements</h2>",
            "<p>Steps: from dps' own forward, backward and update and the time its transfers took. "
            f"More than {100 * model.SURPRISE:g} % off is marked.</p>", self.predictions_table(),
            self.bytes_table(),
            "<h2 id=surprises>What surprised</h2>", self.surprises(),
            "<h2 id=confounders>Confounders, and what is done about each</h2>",
            _list(f"<b>{escape(name)}.</b> {escape(text)}" for name, text in texts.CONFOUNDERS),
            "<h2 id=limits>Limits</h2>", _list(map(escape, texts.LIMITS)),
            "<h2 id=reproduce>Machine, versions, rows</h2>",
            table(["", ""], [([escape(name), escape(value)], "") for name, value in
                             self.about.items()]), self._rows_table()]
        for title, runs in (("Runs that failed", self.failures),
                            ("Runs that were left out, as the time was over", self.left_out)):
            if runs:
                parts += [f"<h2>{title}</h2>", _list(
                    f"{escape(name)}: {escape(why)}" for name, why in runs)]
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
                failed = view.judged.failed(row.name, n)
                unjudged = "" if failed else view.judged.why_not(row.name, n)
                found[row.name].update(
                    ranks=n, failed_gate=failed, no_verdict=unjudged, final_loss=over(view.results.final_loss),
                    memory_mib=over(view.results.pss_mib),
                    planned_mib=over(view.results.planned_mib),
                    planned_sent_bytes=over(view.results.planned_sent),
                    utilisation=over(view.results.utilisation), skips=over(view.results.skips))
                if not failed and not unjudged:
                    ratio = view.ratio(row)
                    found[row.name].update(
                        tokens_per_s=over(view.results.tokens_per_s),
                        over_dps=ratio and ratio[0], step_ms=over(view.results.step_ms),
                        predicted_ms=view.predicted_ms(row), waits_ms=view.waits(row),
                        exposed_ms=over(view.results.exposed_ms),
                        gflops=over(view.results.gflops))
        return {"command": self.command, "machine": self.about, "rows": found,
                "gates": [{"row": name, "ranks": n, "study": study, "gate": gate.name,
                           "passed": gate.passed, "text": gate.text}
                          for (name, n), studies in view.judged.gates.items()
                          for study, of in studies.items() for gate in of],
                "findings": view.findings(),
                "beside": [{"ours": ours.name, "theirs": theirs.name, "ratio": ratio}
                           for ours, theirs, ratio in view.beside()],
                "tuning": [{"row": name, "best": best, "points": points}
                           for name, points, best in view.tuning()],
                "reach": view.reaches(),
                "links": {link: dict(line, rows={row.name: {"step_ms": ms, "over_dps": ratio and
                                                            ratio[0], "waits_ms": waits}
                                                 for row, ms, ratio, waits in view.over_link(link)})
                          for link, line in view.lines.items()},
                "failures": self.failures, "left_out": self.left_out,
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
    for name, text in (("report.html", report.page(pictures, why)), ("table.md", report.markdown()),
                       ("summary.json", json.dumps(report.as_json(), indent=1))):
        with open(os.path.join(out, name + ".new"), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(os.path.join(out, name + ".new"), os.path.join(out, name))
    return why
