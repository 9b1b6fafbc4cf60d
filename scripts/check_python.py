#!/usr/bin/env python3
"""Compares the Python package with PyTorch: the losses of two small networks that begin with the same weights, the time
of their steps, and the overhead of an op.

    pip install ./python numpy torch; python scripts/check_python.py [threads]

Prints what it measured, and fails if a loss of a hundred steps differs by more than 1e-4, or a chain of 1,000 small ops
takes more than 1.5 times PyTorch's time on the CPU.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import rustyflow as rf

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "examples"))
import makemore_mlp  # noqa: E402
import moons  # noqa: E402

STEPS, TOLERANCE, OVERHEAD = 100, 1e-4, 1.5


def moons_losses(device):
    """micrograd's demo in both: the loss of every step, and the seconds of all."""
    points, sides = moons.moons(100, 0.1, 1337)
    rf.manual_seed(1)
    model = moons.network()
    twin = torch.nn.Sequential(
        torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    twin.load_state_dict({name: torch.tensor(t.numpy()) for name, t in model.state_dict().items()})
    model.to(device)
    optimizer, torch_optimizer = rf.optim.SGD(model.parameters(), 1.0), torch.optim.SGD(twin.parameters(), 1.0)
    x, y = rf.tensor(points, device=device), rf.tensor(sides, device=device)
    tx, ty = torch.tensor(points), torch.tensor(sides)

    def ours(step):
        loss, _ = moons.loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.lr = 1.0 - 0.9 * step / 100
        optimizer.step()
        return loss

    def theirs(step):
        margin = (1.0 - ty * twin(tx)).relu().mean()
        loss = margin + 1e-4 * torch.stack([(p * p).sum() for p in twin.parameters()]).sum()
        torch_optimizer.zero_grad()
        loss.backward()
        torch_optimizer.param_groups[0]["lr"] = 1.0 - 0.9 * step / 100
        torch_optimizer.step()
        return loss

    return ours, theirs


def makemore_losses(device):
    """makemore's MLP in both, with the same batches."""
    contexts, targets = makemore_mlp.examples_of(makemore_mlp.words_of(None))
    rf.manual_seed(2)
    model = makemore_mlp.MLP(device)
    twin = {name: torch.tensor(p.numpy(), requires_grad=True) for name, p in model.parameters.items()}
    batches = np.random.default_rng(2).integers(0, len(targets), (STEPS, 32))

    def ours(step):
        batch = batches[step % STEPS]
        return model.step(rf.tensor(contexts[batch], device=device), rf.tensor(targets[batch], device=device), 0.1)

    def theirs(step):
        batch = batches[step % STEPS]
        x, y = torch.tensor(contexts[batch].astype(np.int64)), torch.tensor(targets[batch].astype(np.int64))
        embedded = twin["C"][x].view(32, -1)
        hidden = torch.tanh(embedded @ twin["W1"] + twin["b1"])
        loss = F.cross_entropy(hidden @ twin["W2"] + twin["b2"], y)
        for p in twin.values():
            p.grad = None
        loss.backward()
        for p in twin.values():
            p.data += -0.1 * p.grad
        return loss

    return ours, theirs


def timed(step):
    """Seconds of a hundred steps, the losses read at the end."""
    started = time.perf_counter()
    losses = [step(i) for i in range(STEPS)]
    losses = [loss.item() for loss in losses]
    return time.perf_counter() - started, losses


def chain(x, a, b):
    """A thousand small ops."""
    for _ in range(250):
        x = x * a
        x = x + b
        x = x.tanh()
        x = x - 0.1
    return x


def median_ms(*runs, rounds=31):
    """The median milliseconds of each, taken in turns."""
    times = [[] for _ in runs]
    for _ in range(rounds):
        for run, its in zip(runs, times):
            started = time.perf_counter()
            run()
            its.append(1e3 * (time.perf_counter() - started))
    return [statistics.median(its) for its in times]


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    if threads:
        rf.set_threads(threads)
        torch.set_num_threads(threads)
    failures = []
    gpus = [info["name"] for info in rf.devices() if info["name"] != "cpu"]
    for name, make in [("moons 2-16-16-1", moons_losses), ("makemore MLP", makemore_losses)]:
        for device in ["cpu", *gpus[:1]]:
            ours, theirs = make(device)
            (_, losses), (_, expected) = timed(ours), timed(theirs)
            difference = max(abs(a - b) for a, b in zip(losses, expected))
            print(f"{name}, {device}: {losses[0]:.4f} to {losses[-1]:.4f}, largest difference {difference:.1e}")
            if not difference <= TOLERANCE:
                failures.append(f"{name} on {device} differs by {difference}")
            if device == "cpu":
                times = median_ms(lambda: timed(ours), lambda: timed(theirs), rounds=9)
                print(f"    a step takes {times[0] / STEPS:.3f} ms, PyTorch's {times[1] / STEPS:.3f} ms")
    for shape in [(16,), (32, 32)]:
        values = [np.random.default_rng(3).uniform(0, 1, shape).astype(np.float32) for _ in range(3)]
        for grad in (False, True):
            ours = [rf.tensor(v, requires_grad=grad) for v in values]
            theirs = [torch.tensor(v, requires_grad=grad) for v in values]
            mine, torchs = median_ms(lambda: chain(*ours), lambda: chain(*theirs))
            kind = "recorded" if grad else "not recorded"
            print(f"1,000 ops of {shape}, {kind}: {mine:.2f} ms, PyTorch's {torchs:.2f} ms: {mine / torchs:.2f} of it")
            if mine > OVERHEAD * torchs:
                failures.append(f"1,000 ops of {shape} take {mine / torchs:.2f} of PyTorch's time")
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    if failures:
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
