"""plan.py - dpcompare --plan: what is to be expected of every row, by gpt2 --plan and arithmetic.

Nothing is measured and nothing trained.
"""
import os
import tempfile

from dpcompare import bench, model, studies
from dpcompare import rows as all_rows
from measuring.process import Failed, run

MIB = 1048576.0
RATES = (1, 10, 100)  # Gb/s


def of_row(options, study, row, ranks, folder):
    """gpt2's own plan of a row."""
    path = os.path.join(folder, "plan.json")
    run([os.path.join(options.build, "gpt2"), "--preset", study.preset,
         "--vocab", study.vocab, "--seq", study.seq, "--batch", study.batch, "--steps", study.steps,
         "--threads", options.threads, "--wire", "none", *row.flags,
         *study.flags(row), "--plan", "--plan-ranks", ranks,
         "--summary", path], 60)
    return bench.load_json(path)["plan"]


def lines(options, found, rows):
    """Heads and cells, one line for each row and number of ranks of the study of speeds."""
    study = next(one for one in found if one.timed)
    heads = ["row", "ranks", "MiB", "weights", "gradients", "moments", "activations", "library",
             "MB sent",
             *(f"ms at {rate} Gb/s" for rate in RATES)]
    cells = []
    with tempfile.TemporaryDirectory(prefix="dpcompare-") as folder:
        for ranks in study.ranks:
            for row in rows:
                if all_rows.fits(row, ranks) or row.single and ranks != study.ranks[0]:
                    continue
                n = 1 if row.single else ranks
                try:
                    plan = of_row(options, study, row, n, folder)
                except Failed as error:
                    cells.append([row.name, str(n), f"no plan: {error.reason[:80]}"])
                    continue
                sent = plan["sent_gradients"] + plan["sent_weights"]
                cells.append([row.name, str(n), *(f"{plan[part] / MIB:.1f}" for part in (
                    "total", "weights", "gradients", "moments", "activations", "library")),
                    f"{sent / 1e6:.2f}", *(f"{sent * 8 / (rate * model.TCP * 1e6):.1f}"
                                           for rate in RATES)])
    return study, heads, cells


def show(options, found, rows):
    study, heads, cells = lines(options, found, rows)
    print(f"{study.preset}, a batch of {study.batch} sequences of {study.seq} tokens; memory of a "
          "rank, bytes that it sends in a step\nwere every rank a node of its own, and how long that "
          "takes where nothing hides it (TCP at 89 % of the rate)\n")
    widths = [max(len(line[at]) for line in [heads, *cells] if len(line) > at and len(line) > 3)
              for at in range(len(heads))]
    for line in [heads, *cells]:
        print("  ".join(text.rjust(width) if at > 0 else text.ljust(width)
                        for at, (text, width) in enumerate(zip(line, widths))).rstrip())
    runs = studies.runs(found, rows)
    minutes = sum(one.study.estimate(one.row) for one in runs) / 60
    print(f"\n{len(runs)} runs, about {minutes:.0f} minutes without peers")
    return 0
