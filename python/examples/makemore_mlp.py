"""Karpathy's makemore, part 2: an MLP on the embeddings of three letters predicts the next one (Bengio et al. 2003).

    python python/examples/makemore_mlp.py [file with a name on each line] [device] [steps]

Without a file it learns the words of the sample corpus that ships with rustyflow, or of this file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rustyflow as rf
from rustyflow import losses

CONTEXT, CHANNELS, HIDDEN = 3, 10, 200


def words_of(path: Path | None) -> list[str]:
    """Lower-case words, each once, in order."""
    sample = Path(__file__).parents[2] / "data" / "sample.txt"
    text = (path or (sample if sample.exists() else Path(__file__))).read_text(encoding="utf-8")
    return sorted(set(re.findall("[a-z]+", text.lower())))


def examples_of(words: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Letters (n, 3) and the one after them (n): 0 is the end of a word, 1 to 26 are the letters."""
    contexts, targets = [], []
    for word in words:
        context = [0] * CONTEXT
        for id in [*(ord(letter) - 96 for letter in word), 0]:
            contexts.append(context)
            targets.append(id)
            context = [*context[1:], id]
    return np.array(contexts, np.uint32), np.array(targets, np.uint32)


class MLP:
    """The parameters, as in the lecture, and what is computed with them."""

    def __init__(self, device: str) -> None:
        inputs = CONTEXT * CHANNELS
        shapes: dict[str, tuple[int, ...]] = {
            "C": (27, CHANNELS),
            "W1": (inputs, HIDDEN),
            "b1": (HIDDEN,),
            "W2": (HIDDEN, 27),
            "b2": (27,),
        }
        scales = {"C": 1.0, "W1": (5 / 3) / inputs**0.5, "b1": 0.01, "W2": 0.01, "b2": 0.0}
        self.parameters: dict[str, rf.Tensor] = {
            name: (rf.randn(*shape) * scales[name]).to(device).requires_grad_() for name, shape in shapes.items()
        }

    def logits(self, x: rf.Tensor) -> rf.Tensor:
        """Letters (B, 3) to logits (B, 27)."""
        p = self.parameters
        embedded = p["C"][x]  # (B, 3, CHANNELS)
        hidden = (embedded.view(-1, CONTEXT * CHANNELS) @ p["W1"] + p["b1"]).tanh()  # (B, HIDDEN)
        return hidden @ p["W2"] + p["b2"]

    def step(self, x: rf.Tensor, y: rf.Tensor, lr: float) -> rf.Tensor:
        """One step of gradient descent, written out; returns the loss."""
        loss = losses.cross_entropy(self.logits(x), y)
        for p in self.parameters.values():
            p.grad = None
        loss.backward()
        for p in self.parameters.values():
            p.data += -lr * p.grad
        return loss

    @rf.no_grad()
    def word(self, device: str) -> str:
        """A word that the model makes up."""
        context, letters = [0] * CONTEXT, ""
        while len(letters) < 30:
            probabilities = self.logits(rf.tensor([context], device=device)).softmax()
            id = rf.multinomial(probabilities).item()
            if id == 0:
                break
            letters += chr(96 + id)
            context = [*context[1:], id]
        return letters


def main(path: Path | None = None, device: str = "cpu", steps: int = 2000) -> float:
    """Trains, and returns the loss of the last hundred steps."""
    rf.manual_seed(2147483647)
    contexts, targets = examples_of(words_of(path))
    model = MLP(device)
    recent: list[float] = []
    for step in range(steps):
        batch = rf.randint(0, len(targets), (32,)).numpy()
        x, y = rf.tensor(contexts[batch], device=device), rf.tensor(targets[batch], device=device)
        loss = model.step(x, y, 0.1 if step < steps // 2 else 0.01)
        recent = [*recent[-99:], loss.item()]
        if step % (steps // 10 or 1) == 0:
            print(f"step {step:6d}  loss {recent[-1]:.4f}")
    print("words:", ", ".join(model.word(device) for _ in range(10)))
    return sum(recent) / len(recent)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        Path(given[0]) if given and Path(given[0]).exists() else None,
        given[1] if len(given) > 1 else "cpu",
        int(given[2]) if len(given) > 2 else 2000,
    )
