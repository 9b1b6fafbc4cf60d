"""Tokenizes a text with `rustyflow data prepare` and with Python's tokenizers on all cores, and compares ids and time.

    pip install tokenizers numpy
    cargo build --release && python3 scripts/bench_tokenizers.py TEXT TOKENIZER

TOKENIZER is what data.tokenizer takes, except char and word. The text goes to Python in pieces of 100 kB that end
before a space after a word, where no pre-token of GPT-2, Llama 3, Qwen or Metaspace runs across.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy
from tokenizers import Tokenizer

PIECE = 100_000


def pieces(text):
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and not (text[end] == " " and text[end - 1].isalpha()):
            end += 1
        yield text[start:end]
        start = end


def peak_of_anonymous_memory(process):
    """Waits for the process; the most RssAnon that it had, MB."""
    peak = 0
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon"):
                    peak = max(peak, int(line.split()[1]) / 1000)
        time.sleep(0.02)
    return peak


def main():
    path, tokenizer = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "tokens")
        command = ["target/release/rustyflow", "data", "prepare", "--corpus", path, "--tokenizer", tokenizer]
        command += ["--data-dir", os.environ.get("DATA_DIR", "data"), "--out", out, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "RUSTYFLOW_CACHE_DIR": folder})
        peak = peak_of_anonymous_memory(process)
        meta = json.load(process.stdout)
        ours = meta["seconds"]
        dtype = {"u16": "<u2", "u32": "<u4"}[meta["token_type"]]
        ids = [numpy.fromfile(os.path.join(out, name), dtype) for name in ("train.bin", "val.bin")]
        # The place of the split is a line boundary, where a pre-token may run across in the whole text.
        split = len(ids[0])
        ids = numpy.concatenate(ids)
        theirs = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    with open(path, encoding="utf-8", newline="") as file:
        parts = list(pieces(file.read()))
    began, at = time.time(), 0
    differences = []
    for first in range(0, len(parts), 64):
        for encoding in theirs.encode_batch_fast(parts[first : first + 64], add_special_tokens=False):
            expected = encoding.ids
            if not numpy.array_equal(ids[at : at + len(expected)], expected):
                differences.append(at)
            at += len(expected)
    seconds = time.time() - began
    size = meta["bytes"] / 1e6
    print(f"rustyflow         {ours:.1f} s, {size / ours:.1f} MB/s, {peak:.0f} MB of anonymous memory at most")
    print(f"encode_batch_fast {seconds:.1f} s, {size / seconds:.1f} MB/s: {seconds / ours:.1f} times as long")
    beyond = [d for d in differences if d < split - PIECE or d > split]
    print(f"{len(ids)} ids of {at}; pieces that differ, the one at the split apart: {len(beyond)}")
    if beyond or abs(len(ids) - at) > 2:
        sys.exit(1)


main()
