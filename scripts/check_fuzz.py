#!/usr/bin/env python3
"""Compares ops with PyTorch on random shapes: broadcasting, slicing, joining, reducing and looking up, both ways.

    pip install torch transformers safetensors
    cargo build --release --example op_fuzz
    python3 scripts/check_fuzz.py --device cpu
    python3 scripts/check_fuzz.py --device gpu

Ranks from 0 to 6, dimensions of 0 and of 1 among them. A case follows from --seed and its number alone. PyTorch
computes in float64; outputs and gradients may differ by 1e-5 + 1e-5 |value|. Run by hand; exits with 1 if one does by
more.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys

import torch
from make_goldens import OPS

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("OP_FUZZ", ROOT / "target/release/examples/op_fuzz")
TOLERANCE = 1e-5
BINARY_OPS = ["add", "sub", "mul", "div", "maximum", "minimum", "pow"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
REDUCTIONS = ["sum", "mean", "max", "min", "var", "logsumexp"]


class Case:
    """An op, its attributes and its inputs, drawn from one number."""

    def __init__(self, seed, number):
        self.random = random.Random(seed * 1_000_003 + number)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(40))
        self.attrs, self.inputs = {}, []
        kinds = [self.binary] * 4 + [self.slice] * 4 + [
            self.compare, self.permute, self.flip, self.expand, self.pad, self.cat, self.stack, self.split,
            self.triangular, self.reduce, self.prod, self.arg, self.lookup, self.scatter]
        self.random.choice(kinds)()

    def shape(self, least=0, empty=True):
        """Of few elements in high ranks; now and then a long one."""
        rank = self.random.randint(least, 6)
        most = [70, 70, 40, 9, 5, 4, 3][rank]
        sizes = [self.random.choice([1, self.random.randint(1, most)]) for _ in range(rank)]
        if empty and rank and self.random.random() < 0.05:
            sizes[self.random.randrange(rank)] = 0
        return sizes

    def uniform(self, shape, low=-2.0, high=2.0):
        """Of distinct values as good as always."""
        return torch.rand(shape, generator=self.generator) * (high - low) + low

    def broadcastable(self, shape):
        """A shape that can be repeated to this one."""
        kept = shape[self.random.randint(0, len(shape)):] if self.random.random() < 0.5 else list(shape)
        return [1 if self.random.random() < 0.3 else size for size in kept]

    def binary(self):
        self.op = self.random.choice(BINARY_OPS)
        to = self.shape()
        a, b = self.broadcastable(to), self.broadcastable(to)
        low = 0.3 if self.op == "pow" else -2.0
        self.inputs = [self.uniform(a, low), self.uniform(b, 0.3)]

    def compare(self):
        self.op, self.attrs = "compare", {"by": self.random.choice(COMPARISONS)}
        to = self.shape()
        coarse = [self.uniform(self.broadcastable(to)).round() for _ in range(2)]
        self.inputs = coarse + [self.uniform(self.broadcastable(to)) for _ in range(2)]

    def of_dim(self, op, empty=True):
        self.op = op
        shape = self.shape(least=1, empty=empty)
        self.inputs = [self.uniform(shape)]
        dim = self.random.randrange(len(shape))
        return shape, dim

    def slice(self):
        shape, dim = self.of_dim(self.random.choice(["slice", "narrow"]))
        start = self.random.randint(0, shape[dim])
        end = self.random.randint(start, shape[dim])
        if self.op == "slice":
            self.attrs = {"dim": dim, "start": start, "end": end, "step": self.random.randint(1, 4)}
        else:
            self.attrs = {"dim": dim, "start": start, "length": end - start}

    def permute(self):
        shape, _ = self.of_dim("permute")
        self.attrs = {"dims": self.random.sample(range(len(shape)), len(shape))}

    def flip(self):
        shape, _ = self.of_dim("flip")
        self.attrs = {"dims": self.some(len(shape))}

    def some(self, rank):
        """At least one of the dimensions."""
        return sorted(self.random.sample(range(rank), self.random.randint(1, rank)))

    def expand(self):
        self.op = "expand"
        to = self.shape()
        self.attrs, self.inputs = {"shape": to}, [self.uniform(self.broadcastable(to))]

    def pad(self):
        shape, _ = self.of_dim("pad")
        border = [[self.random.randint(0, 2), self.random.randint(0, 2)] for _ in shape]
        self.attrs = {"padding": border, "value": 0.5}

    def cat(self):
        shape, dim = self.of_dim("cat")
        self.attrs = {"dim": dim}
        lengths = [self.random.randint(0, 5) for _ in range(self.random.randint(1, 4))]
        self.inputs = [self.uniform(shape[:dim] + [length] + shape[dim + 1:]) for length in lengths]

    def stack(self):
        self.op = "stack"
        shape = self.shape()[:5]
        self.attrs = {"dim": self.random.randint(0, len(shape))}
        self.inputs = [self.uniform(shape) for _ in range(self.random.randint(1, 3))]

    def split(self):
        shape, dim = self.of_dim("split", empty=False)
        size = self.random.randint(1, shape[dim])
        self.attrs = {"size": size, "dim": dim, "part": self.random.randrange(-(-shape[dim] // size))}

    def triangular(self):
        self.op = self.random.choice(["tril", "triu"])
        self.attrs, self.inputs = {"diagonal": self.random.randint(-4, 4)}, [self.uniform(self.shape(least=2))]

    def reduce(self):
        op = self.random.choice(REDUCTIONS)
        shape, _ = self.of_dim(op, empty=op == "sum")
        self.attrs = {"dim": self.some(len(shape))}
        if self.random.random() < 0.5:
            self.attrs["keepdim"] = True
        if op == "var":
            self.attrs["correction"] = 0

    def prod(self):
        shape, dim = self.of_dim("prod")
        self.attrs = {"dim": dim}
        # Some factors are 0.
        self.inputs = [self.uniform(shape, 0.5, 1.5) * (self.uniform(shape, 0.0, 1.0) < 0.95)]

    def arg(self):
        _, dim = self.of_dim(self.random.choice(["argmax", "argmin"]), empty=False)
        self.attrs = {"dim": dim}

    def ids(self, below, shape):
        return torch.randint(below, shape, generator=self.generator)

    def lookup(self):
        shape, dim = self.of_dim(self.random.choice(["gather", "index_select"]), empty=False)
        self.attrs = {"dim": dim}
        count = self.random.randint(0, 9)
        at_most = [self.random.randint(1, size) for size in shape]
        index = [count] if self.op == "index_select" else at_most[:dim] + [count] + at_most[dim + 1:]
        self.inputs.append(self.ids(shape[dim], index))

    def scatter(self):
        shape, dim = self.of_dim("scatter_add", empty=False)
        self.attrs = {"dim": dim}
        at_most = [self.random.randint(1, size) for size in shape]
        index = at_most[:dim] + [self.random.randint(0, 9)] + at_most[dim + 1:]
        self.inputs += [self.ids(shape[dim], index), self.uniform(index)]

    def run(self):
        """The output and the gradients in float64, and the gradient of the output that they begin with."""
        leaves = [x.double().requires_grad_() if x.is_floating_point() else x for x in self.inputs]
        y = OPS[self.op](*leaves, **self.attrs)
        grad_output = self.uniform(list(y.shape), -1.0, 1.0)
        y.backward(grad_output.double())
        floats = [x for x in leaves if x.is_floating_point()]
        return y.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in floats], grad_output

    def line(self, grad_output):
        describe = lambda x: {  # noqa: E731
            "shape": list(x.shape), "ids": not x.is_floating_point(), "values": x.flatten().tolist()}
        return json.dumps({"op": self.op, "attrs": self.attrs, "inputs": [describe(x) for x in self.inputs],
                           "grad_output": describe(grad_output)})

    def __str__(self):
        return f"{self.op} {self.attrs} of {[list(x.shape) for x in self.inputs]}"


def error(got, want):
    """The largest difference as a part of what is allowed."""
    got = torch.tensor([float(number) for number in got], dtype=torch.float64)
    want = want.flatten()
    if got.shape != want.shape:
        return float("inf")
    parts = (got - want).abs() / (TOLERANCE * (1 + want.abs()))
    parts[(got == want) | (got.isnan() & want.isnan())] = 0.0
    return parts.nan_to_num(nan=float("inf")).max().item() if len(parts) else 0.0


def main():
    parser = argparse.ArgumentParser(description="Compares ops with PyTorch on random shapes.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    options = parser.parse_args()
    cases = [Case(options.seed, number) for number in range(options.cases)]
    wanted = [case.run() for case in cases]
    lines = "\n".join(case.line(want[2]) for case, want in zip(cases, wanted))
    results = subprocess.run([BINARY, options.device], input=lines, capture_output=True, text=True, check=True)
    results = results.stdout.splitlines()
    assert len(results) == len(cases), f"{len(results)} results of {len(cases)} cases"
    worst, counts, gradients, failures = collections.Counter(), collections.Counter(), 0, []
    for number, (case, (y, grads, _), result) in enumerate(zip(cases, wanted, map(json.loads, results))):
        counts[case.op] += 1
        gradients += len(grads)
        if "error" in result or result["shape"] != list(y.shape) or len(result["grads"]) != len(grads):
            failures.append(f"case {number}: {case}: {result.get('error', result.get('shape'))}")
            continue
        parts = [error(result["values"], y)] + [error(*pair) for pair in zip(result["grads"], grads)]
        worst[case.op] = max(worst[case.op], max(parts))
        if max(parts) > 1.0:
            failures.append(f"case {number}: {case}: {max(parts):.1f} times what is allowed ({parts})")
    for op in sorted(counts):
        print(f"{op:>12}: {counts[op]:5} cases, worst {worst[op] * TOLERANCE:.1e}")
    print(f"{len(cases)} cases and {gradients} gradients on {options.device}, seed {options.seed}: "
          f"{len(failures)} differ, worst {max(worst.values(), default=0) * TOLERANCE:.1e}")
    print("\n".join(failures[:20]))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
