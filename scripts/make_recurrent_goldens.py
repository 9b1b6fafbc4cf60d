#!/usr/bin/env python3
"""Write small recurrent language models, and what they compute, for the tests to compare rustyflow with.

    pip install torch transformers safetensors
    python scripts/make_recurrent_goldens.py --out tests/goldens/recurrent

One folder for each model: `config.json` and `model.safetensors` with the names of `RNNModel` in pytorch/examples'
`word_language_model`, of which `Model` is the essence; and `golden.safetensors` with two batches of three rows that go
on from the first to the second: `ids` and `targets` (2, B, T), of which some are ignored, `logits` (2, B, T, V), `loss`
(2), the states after each batch, `h` and of an LSTM `c` (2, L, B, C), and `grad.<batch>.<name>`. The states are
detached in between. `golden.json` says what PyTorch itself loses when it computes the same in float32.

How to read the numbers: `scripts/make_goldens.py`. Everything is computed in float64 from weights that are float32, so
the whole tolerance belongs to the implementation under test.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from make_goldens import IGNORE, Draw, cross_entropy, rounded, scaled_error, versions

# Odd sizes: a width that no vector and no tile divides.
B, T, VOCAB, WIDTH, LAYERS = 3, 7, 53, 22, 2
# `model.kind`: the layer, its name in PyTorch's example, and whether the head has the embedding's weight.
KINDS = {"lstm": (nn.LSTM, "LSTM", True), "gru": (nn.GRU, "GRU", True), "rnn": (nn.RNN, "RNN_TANH", False)}


class Model(nn.Module):
    """Ids (B, T) and states to logits (B, T, V) and states."""

    def __init__(self, kind: str):
        super().__init__()
        layer, _, tied = KINDS[kind]
        self.encoder = nn.Embedding(VOCAB, WIDTH)
        self.rnn = layer(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.decoder = nn.Linear(WIDTH, VOCAB)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, ids: Tensor, states) -> tuple:
        y, states = self.rnn(self.encoder(ids), states)
        return self.decoder(y), states


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden files of recurrent models.")
    parser.add_argument("--out", type=Path, default=Path("tests/goldens/recurrent"), help="folder to write to")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # one order of summation, whatever the machine
    for kind in KINDS:
        write(out / kind, kind)


def write(folder: Path, kind: str) -> None:
    draw = Draw(f"recurrent {kind}")
    weights = {name: draw.normal(*p.shape, std=0.3) for name, p in Model(kind).named_parameters()}
    given = {"ids": draw.integers(VOCAB, 2, B, T), "targets": draw.integers(VOCAB, 2, B, T)}
    for batch, b, t in [(0, 0, 0), (0, 2, 6), (1, 1, 3), (1, 2, 5), (1, 2, 6)]:
        given["targets"][batch, b, t] = IGNORE
    want = run(kind, weights, given, torch.float64)
    got = run(kind, weights, given, torch.float32)
    errors: dict[str, float] = {}
    for name in want:
        group = name.split(".")[0]
        errors[group] = max(scaled_error(got[name], want[name]), errors.get(group, 0.0))

    folder.mkdir(parents=True, exist_ok=True)
    _, rnn_type, tied = KINDS[kind]
    config = {"model_type": kind, "rnn_type": rnn_type, "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS,
              "bptt": T, "bias": True, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors")
    file = {name: x if x.dtype == torch.int64 else x.float().contiguous() for name, x in (given | want).items()}
    save_file(file, folder / "golden.safetensors")
    description = {"versions": versions(), "float32_error": rounded(errors)}
    (folder / "golden.json").write_text(json.dumps(description, indent=2) + "\n")
    print(folder, rounded(errors))


def run(kind: str, weights: dict[str, Tensor], given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Forward and backward over both batches in `dtype`; nothing is updated."""
    model = Model(kind).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    result: dict[str, list[Tensor]] = {"logits": [], "loss": [], "h": [], "c": []}
    gradients: dict[str, Tensor] = {}
    states = None
    for batch, (ids, targets) in enumerate(zip(given["ids"], given["targets"])):
        logits, states = model(ids, states)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        model.zero_grad()
        loss.backward()
        gradients |= {f"grad.{batch}.{name}": p.grad.clone() for name, p in model.named_parameters()}
        states = tuple(s.detach() for s in states) if isinstance(states, tuple) else states.detach()
        for name, value in zip(("h", "c"), states if isinstance(states, tuple) else (states,)):
            result[name].append(value)
        result["logits"].append(logits.detach())
        result["loss"].append(loss.detach())
    return gradients | {name: torch.stack(values) for name, values in result.items() if values}


if __name__ == "__main__":
    main()
