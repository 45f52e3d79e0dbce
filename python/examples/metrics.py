#!/usr/bin/env python3
"""metrics.py - shows a run's log of gpt2 --log-jsonl in TensorBoard or Weights & Biases.

    python3 python/examples/metrics.py run.jsonl --tensorboard runs/first --follow
    python3 python/examples/metrics.py run.jsonl --wandb my-project

Each figure of a line is a scalar at the line's step. With --follow the file may still grow: the
program waits for more until it is interrupted. It needs the package tensorboard (with PyTorch) or
wandb.
"""
import argparse
import json
import os
import sys
import time


def rows(path, follow):
    """The objects of the file, and with follow those that are written while it waits. A run that is
    resumed cuts its log, and the file is then shorter than what was read: it is read anew."""
    part, at = b"", 0
    while True:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < at:
                part, at = b"", 0
            file.seek(at)
            data = file.read()
        at += len(data)
        *lines, part = (part + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
        if not follow:
            return
        time.sleep(1.0)


def to_tensorboard(folder):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        sys.exit(f"metrics.py: --tensorboard needs PyTorch and tensorboard: {error}")
    writer = SummaryWriter(folder)

    def send(step, figures):
        for name, value in figures.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return send


def to_wandb(project):
    try:
        import wandb
    except ImportError as error:
        sys.exit(f"metrics.py: --wandb needs wandb: {error}")
    run = wandb.init(project=project)
    return lambda step, figures: run.log(figures, step=step)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].split(" - ")[1])
    parser.add_argument("log", help="the file of gpt2 --log-jsonl")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--tensorboard", metavar="DIR", help="a folder for TensorBoard")
    where.add_argument("--wandb", metavar="PROJECT", help="a project of Weights & Biases")
    parser.add_argument("--follow", action="store_true", help="wait for more lines")
    options = parser.parse_args()
    send = to_tensorboard(options.tensorboard) if options.tensorboard else to_wandb(options.wandb)
    try:
        for row in rows(options.log, options.follow):
            send(row.pop("step"), row)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"metrics.py: {options.log}: cannot be read as a log: {error!r}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
