#!/usr/bin/env python3
"""documents.py - writes the texts of .jsonl and .parquet files, a zero byte behind each.

    python3 python/tools/documents.py FILE... | gpt2 tokenize - --null --tokenizer DIR -o OUT.bin

A line of a .jsonl file (or .jsonl.gz) is an object, a row of a .parquet file a document; --field
names the text in it. Parquet needs pyarrow. A text's own zero bytes are left out.
"""
import argparse
import gzip
import json
import os
import sys


class Refused(Exception):
    """Why a file cannot be read, as a sentence that begins with its name."""


def member(value, field, where):
    if not isinstance(value, dict) or not isinstance(value.get(field), str):
        there = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise Refused(f"{where}: no text in the field {field!r}; there is: {there or 'nothing'}")
    return value[field]


def lines_of(path, field):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise Refused(f"{path}: line {number} is not JSON: {error}") from None
            yield member(value, field, f"{path}: line {number}")


def rows_of(path, field):
    try:
        import pyarrow.parquet
    except ImportError:
        raise Refused(f"{path}: reading .parquet needs pyarrow (pip install pyarrow)") from None
    with pyarrow.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise Refused(f"{path}: no text in the field {field!r}; there is: {', '.join(names)}")
        number = 0
        for batch in file.iter_batches(batch_size=1024, columns=[field]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield member({field: text}, field, f"{path}: row {number}")


def texts_of(path, field):
    if path.endswith((".jsonl", ".jsonl.gz", ".ndjson")):
        return lines_of(path, field)
    if path.endswith(".parquet"):
        return rows_of(path, field)
    raise Refused(f"{path}: expected .jsonl, .jsonl.gz or .parquet")


def write(paths, field, out):
    """Returns how many documents there were."""
    count = 0
    for path in paths:
        try:
            for text in texts_of(path, field):
                # A half of a UTF-16 pair, which JSON can write, is no text: U+FFFD.
                out.write(text.replace("\0", "").encode("utf-16", "surrogatepass")
                          .decode("utf-16", "replace").encode("utf-8") + b"\0")
                count += 1
        except BrokenPipeError:
            raise
        except (OSError, EOFError, ValueError) as error:
            # pyarrow's errors are of these kinds, too.
            raise Refused(f"{path}: cannot be read: {error}") from None
    out.flush()
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].split(" - ")[1])
    parser.add_argument("files", nargs="+", metavar="FILE", help=".jsonl, .jsonl.gz or .parquet")
    parser.add_argument("--field", default="text", help="the field that has the text [text]")
    options = parser.parse_args()
    try:
        count = write(options.files, options.field, sys.stdout.buffer)
    except Refused as refused:
        print(f"documents.py: {refused}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has said why
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print(f"documents.py: {count} documents", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
