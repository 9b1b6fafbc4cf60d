#!/usr/bin/env python3
"""Time a training step of the examples beside the same program in PyTorch, on the CPU.

    pip install torch
    cargo build --release --example mlp_moons --example cnn_digits --example lstm_text
    python scripts/bench_examples.py --threads 2

Both have the same layers, batch and optimizer. PyTorch is eager, as its tutorials write it, and is given its data the
fastest way: the moons are one batch, a batch of digits is taken by `index_select` from tensors that lie in memory, and
the letters are one batch of random ones, whose embeddings `torch.nn.LSTM` reads; the example multiplies the table's
rows once instead (`nn::RecurrentInput`), which are fewer. To time one core, `taskset -c 1` before the command and
`--threads 1`. The examples' time is what they print: batches by `DataLoader` included, the first step too. Programs
take turns, each several times; the table has the fastest of each, and the medians.
"""

import argparse
import gzip
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the examples beside PyTorch.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--moons-steps", type=int, default=3000)
    parser.add_argument("--digits-epochs", type=int, default=15)
    parser.add_argument("--letters-steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    programs = [("mlp_moons", args.moons_steps, moons), ("cnn_digits", args.digits_epochs, digits),
                ("lstm_text", args.letters_steps, letters)]
    print(f"{'':12} {'rustyflow ms':>20} {'PyTorch ms':>20} {'ratio':>7}   (fastest, median)")
    for name, length, program in programs:
        own, others = [], []
        for _ in range(args.rounds):
            own.append(example(name, length))
            others.append(program(length))
        ours, theirs = statistics.median(own), statistics.median(others)
        columns = [f"{min(own):.3f}, {ours:.3f}", f"{min(others):.3f}, {theirs:.3f}"]
        print(f"{name:12} {columns[0]:>20} {columns[1]:>20} {theirs / ours:7.2f}")


def example(name: str, length: int) -> float:
    """Milliseconds of a step, as the example prints them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [ROOT / "target/release/examples" / name, folder, str(length)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"steps, ([0-9.]+) ms each", text).group(1))


def moons(steps: int) -> float:
    """Milliseconds of a step of examples/mlp_moons.rs."""
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=2e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    x, y = torch.randn(100, 2), torch.randn(100, 1).sign()
    started = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        F.relu(1 - y * model(x)).mean().backward()
        optimizer.step()
        scheduler.step()
    return 1e3 * (time.perf_counter() - started) / steps


def digits(epochs: int) -> float:
    """Milliseconds of a step of examples/cnn_digits.rs."""
    with gzip.open(ROOT / "data/digits.csv.gz", "rt") as file:
        rows = torch.tensor([[float(value) for value in line.split(",")] for line in file])
    rows = rows[len(rows) // 5:]
    x, y, batch = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long(), 64
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    steps = epochs * (len(x) // batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps + 1, cycle_momentum=False)
    started = time.perf_counter()
    for _ in range(epochs):
        for indices in torch.randperm(len(x)).split(batch)[:len(x) // batch]:
            optimizer.zero_grad()
            F.cross_entropy(model(x.index_select(0, indices)), y.index_select(0, indices)).backward()
            optimizer.step()
            scheduler.step()
    return 1e3 * (time.perf_counter() - started) / steps


class Letters(nn.Module):
    """The network of examples/lstm_text.rs."""

    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width)
        self.head = nn.Linear(width, characters)

    def forward(self, ids: torch.Tensor, state: tuple | None) -> tuple:
        y, state = self.lstm(self.embedding(ids), state)
        return self.head(y).flatten(0, 1), tuple(part.detach() for part in state)


def letters(steps: int) -> float:
    """Milliseconds of a step of examples/lstm_text.rs."""
    characters = len(set((ROOT / "data/sample.txt").read_text(encoding="utf-8")))
    model, state = Letters(characters, 96), None
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 5e-4)
    x, y = torch.randint(characters, (64, 16)), torch.randint(characters, (64 * 16,))
    started = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        scores, state = model(x, state)
        F.cross_entropy(scores, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return 1e3 * (time.perf_counter() - started) / steps


if __name__ == "__main__":
    main()
