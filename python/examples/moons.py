"""micrograd's demo: a network of 2, 16, 16 and 1 neurons tells two half moons apart.

    python python/examples/moons.py [device] [steps]
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

import rustyflow as rf
from rustyflow import nn, optim


def moons(n: int, noise: float, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Points (n, 2) on two half circles, and -1 or 1 (n, 1) for each."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, np.pi, n)
    upper = np.arange(n) % 2 == 0
    x = np.where(upper, np.cos(angle), 1.0 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, y], 1) + rng.normal(0.0, noise, (n, 2))
    return points.astype(np.float32), np.where(upper, -1.0, 1.0).astype(np.float32)[:, None]


def network() -> nn.Sequential:
    """micrograd's MLP."""
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def loss_of(model: nn.Module, x: rf.Tensor, y: rf.Tensor) -> tuple[rf.Tensor, rf.Tensor]:
    """The max-margin loss with a little L2 of the weights, (), and the scores (n, 1)."""
    scores: rf.Tensor = model(x)
    margin = (1.0 - y * scores).relu().mean()
    squares = rf.stack([(p * p).sum() for p in model.parameters()]).sum()
    return margin + 1e-4 * squares, scores


def main(device: str = "cpu", steps: int = 100) -> float:
    """Trains, and returns how many points of a hundred end on their side."""
    rf.manual_seed(1337)
    points, sides = moons(100, 0.1, 1337)
    x, y = rf.tensor(points, device=device), rf.tensor(sides, device=device)
    model = network().to(device)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    accuracy = 0.0
    for step in range(steps):
        loss, scores = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.lr = 1.0 - 0.9 * step / 100
        optimizer.step()
        accuracy = 100.0 * ((scores * y) > 0.0).mean().item()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}  {accuracy:.0f}% on their side")
    return accuracy


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", int(sys.argv[2]) if len(sys.argv) > 2 else 100)
