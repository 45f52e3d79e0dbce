"""results.py - the records of all runs, asked by study, row, ranks, seed and link.

Pure: records go in, figures come out. Steps that a study leaves out are left out of medians, never
of curves.
"""
from dpcompare import rows as all_rows
from dpcompare import stats

MIB = 1048576.0
WORK = ["forward_ms", "backward_ms", "optimizer_ms", "other_ms"]
# What a rank waits for, by the trainer's counters; the timeline tells more (waits()).
COUNTED = {"exposed_gradients_ms": "gradients", "exposed_weights_ms": "weights",
           "skew_ms": "late ranks"}


class Results:
    """Records that are ok, by key; and why others failed."""

    def __init__(self, studies, records):
        self.studies = {study.name: study for study in studies}
        self.found, self.failed = {}, {}
        for record in records:
            key = record["key"]
            at = (key["study"], key["row"], key["ranks"], key["link"])
            if record["ok"]:
                self.found.setdefault(at, {})[key["seed"]] = record
            else:
                self.failed.setdefault(at, {})[key["seed"]] = record["why"]

    def seeds(self, study, row, ranks, link="none"):
        """{seed: record}."""
        return self.found.get((study, row, ranks, link), {})

    def why_failed(self, study, row, ranks, link="none"):
        """Why a run failed that never succeeded; "" where one did, or none was made."""
        if self.seeds(study, row, ranks, link):
            return ""
        return next(iter(self.failed.get((study, row, ranks, link), {}).values()), "")

    def column(self, record, name):
        """A figure of every step; exposed time is told apart by what was waited for."""
        steps = record["summary"]["steps"]
        if name == "exposed_gradients_ms":
            if "exposed_ms" not in steps:
                return []
            return [None if all_ is None else all_ - (weights or 0.0)
                    for all_, weights in zip(steps["exposed_ms"], self.column(
                        record, "exposed_weights_ms"))]
        return steps.get(name, [])

    def timed(self, record, name):
        """The same without the steps that its study leaves out."""
        return self.column(record, name)[self.untimed(record):]

    def untimed(self, record):
        """How many steps those are."""
        key = record["key"]
        return self.studies[key["study"]].untimed(all_rows.ALL[key["row"]])

    def each(self, study, row, ranks, link, figure):
        """{seed: figure(record)}, where it is known."""
        found = {seed: figure(record) for seed, record in
                 self.seeds(study, row, ranks, link).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def over_seeds(self, study, row, ranks, link, figure):
        """The median over seeds."""
        return stats.median(self.each(study, row, ranks, link, figure).values())

    # ---- Figures of one record ----

    def step_ms(self, record):
        return stats.median(self.timed(record, "ms"))

    def tokens_per_s(self, record):
        ms = self.step_ms(record)
        study = self.studies[record["key"]["study"]]
        return None if not ms else 1e3 * study.tokens() / ms

    def phase_ms(self, record, name):
        """The mean, so that phases add up to the mean step."""
        return stats.mean(self.timed(record, name))

    def waits(self, record):
        """{what for: mean ms of a step}, of rank 0: each collective that was exposed, and the rest,
        by the timeline; by the trainer's counters where there is none; None of a peer."""
        if record.get("timeline"):
            return dict(record["timeline"]["waits_ms"])
        found = {name: self.phase_ms(record, column) for column, name in COUNTED.items()}
        return None if found["gradients"] is None else found

    def exposed_ms(self, record):
        parts = [self.phase_ms(record, name)
                 for name in ("exposed_gradients_ms", "exposed_weights_ms")]
        return None if parts[0] is None else parts[0] + (parts[1] or 0.0)

    @staticmethod
    def pss_mib(record):
        """Of the rank that has most, without what was there before the model."""
        ranks = record["summary"].get("ranks", {})
        pairs = zip(ranks.get("memory_pss", []), ranks.get("memory_before", []))
        values = [(pss - before) / MIB for pss, before in pairs if pss]
        return max(values, default=None)

    @staticmethod
    def planned_mib(record, part="total"):
        plan = record["summary"].get("plan")
        return None if plan is None else plan[part] / MIB

    @staticmethod
    def planned_sent(record):
        """Bytes per rank and step, by the plan."""
        plan = record["summary"].get("plan")
        return None if plan is None else plan["sent_gradients"] + plan["sent_weights"]

    def sent(self, record):
        """Bytes that rank 0, a parameter server's root, sent to other nodes in a step: measured."""
        return stats.mean(self.timed(record, "wire_bytes"))

    def gflops(self, record):
        """Of the model, per second and over all ranks: 6 per weight and token, and 12 per layer,
        channel and position for attention; work done again, or for nothing, does not count."""
        shape, rate = record["summary"]["configuration"], self.tokens_per_s(record)
        if rate is None or "parameters" not in shape:
            return None
        attention = 12.0 * shape["layers"] * shape["width"] * shape["seq"]
        return 1e-9 * rate * (6.0 * shape["parameters"] + attention)

    def utilisation(self, record):
        """Processor seconds per second of a rank, while it trained: 1 is one busy core."""
        summary = record["summary"]
        seconds = stats.known(self.column(record, "seconds"))
        used = summary.get("ranks", {}).get("cpu_seconds", [])
        return stats.mean(used) / seconds[-1] if seconds and seconds[-1] and used else None

    def final_loss(self, record):
        return stats.tail_mean(self.column(record, "loss"))

    def skips(self, record):
        return sum(1 for value in self.column(record, "skipped") if value)
