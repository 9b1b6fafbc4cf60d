#!/usr/bin/env python3
"""Check a run's TensorBoard event files and metrics.csv against its metrics.jsonl.

    pip install tensorboard
    python scripts/check_tensorboard.py runs/my-run

The run must have been trained with log.tensorboard = true; metrics.csv is checked if it is there. TensorBoard's own
reader reads the event files as its web page does, and must find every number of metrics.jsonl once, rounded to 32 bits,
at its step and time, and nothing else. The framing of each record, with its checksums, is checked by a reader of ours,
because TensorBoard's does not look at the checksum of the length.
"""

import argparse
import csv
import datetime
import json
import math
import pathlib
import struct
import sys

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

# As in src/train/run/sinks/mod.rs: kind and key in metrics.jsonl, tag, column.
SCALARS = [
    ("train", "epoch", "train/epoch", "epoch"),
    ("train", "loss", "train/loss", "train_loss"),
    ("train", "learning_rate", "train/learning_rate", "learning_rate"),
    ("train", "grad_norm", "train/grad_norm", "grad_norm"),
    ("train", "tokens", "train/tokens", "tokens"),
    ("train", "tokens_per_s", "train/tokens_per_s", "tokens_per_s"),
    ("train", "loss_scale", "train/loss_scale", "loss_scale"),
    ("train", "overflows", "train/overflows", "overflows"),
    ("eval", "loss", "validation/loss", "validation_loss"),
    ("eval", "perplexity", "validation/perplexity", "perplexity"),
    ("eval", "bits_per_byte", "validation/bits_per_byte", "bits_per_byte"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    run = parser.parse_args().run
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] in ("train", "eval")]
    for line in lines:
        # A speed that is not known is no scalar.
        if line.get("tokens_per_s", 0) is None:
            del line["tokens_per_s"]
    files = sorted((run / "tensorboard").iterdir())
    records = sum(check_framing(file) for file in files)
    scalars = check_scalars(run / "tensorboard", lines)
    print(f"{len(files)} event files, {records} records with right checksums, {scalars} scalars as in metrics.jsonl")
    if (run / "metrics.csv").exists():
        print(f"metrics.csv: {check_csv(run / 'metrics.csv', lines)} numbers as in metrics.jsonl")


def fail(text):
    sys.exit(f"error: {text}")


def check_framing(file):
    """The number of records. Half a record at the end is what a killed run leaves."""
    data, at, count = file.read_bytes(), 0, 0
    while at + 12 <= len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        if masked_crc32c(data[at : at + 8]) != length_crc:
            fail(f"{file}: the checksum of the length at byte {at} is wrong")
        if at + 16 + length > len(data):
            break
        content = data[at + 12 : at + 12 + length]
        if masked_crc32c(content) != struct.unpack_from("<I", data, at + 12 + length)[0]:
            fail(f"{file}: the checksum of the record at byte {at} is wrong")
        event = Event.FromString(content)
        if count == 0 and event.file_version != "brain.Event:2":
            fail(f"{file}: does not begin with the version of its format")
        if count == 1 and not event.HasField("session_log"):
            fail(f"{file}: does not say where it goes on")
        at, count = at + 16 + length, count + 1
    return count


def number(value):
    """A value of metrics.jsonl, where null is a number that is not finite."""
    return math.nan if value is None else float(value)


def check_scalars(folder, lines):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    compared = 0
    for kind, key, tag, _ in SCALARS:
        expected = [line for line in lines if line["kind"] == kind and key in line]
        found = accumulator.Scalars(tag) if tag in accumulator.Tags()["scalars"] else []
        if [event.step for event in found] != [line["step"] for line in expected]:
            steps = [line["step"] for line in expected]
            fail(f"{tag} has the steps {[event.step for event in found]}, metrics.jsonl {steps}")
        for event, line in zip(found, expected):
            value = float(numpy.float32(number(line[key])))
            same = event.value == value or (math.isnan(value) and not math.isfinite(event.value))
            time = datetime.datetime.fromisoformat(line["time"]).timestamp()
            if not same or abs(event.wall_time - time) > 1e-3:
                fail(f"{tag} of step {line['step']} is {event}, metrics.jsonl has {line[key]} at {line['time']}")
        compared += len(expected)
    others = set(accumulator.Tags()["scalars"]) - {tag for _, _, tag, _ in SCALARS}
    if others:
        fail(f"nothing is known of the tags {sorted(others)}")
    return compared


def check_csv(path, lines):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) != len(lines):
        fail(f"{path} has {len(rows)} rows, metrics.jsonl {len(lines)} lines with numbers")
    compared = 0
    for row, line in zip(rows, lines):
        if (row["step"], row["time"]) != (str(line["step"]), line["time"]):
            fail(f"{path}: {row} is not of {line}")
        for kind, key, _, column in SCALARS:
            has = kind == line["kind"] and key in line
            if has != (row[column] != ""):
                fail(f"{path}: {column} of step {row['step']} should {'' if has else 'not '}be there")
            if has:
                left, right = float(row[column]), number(line[key])
                if left != right and not (math.isnan(left) and math.isnan(right)):
                    fail(f"{path}: {column} of step {row['step']} is {left}, metrics.jsonl has {right}")
                compared += 1
    return compared


if __name__ == "__main__":
    main()
