"""Recurrent layers with PyTorch's parameter names: RNN (tanh), LSTM and GRU."""

from __future__ import annotations

import math
from typing import ClassVar, Optional, Tuple

from .._rustyflow import Tensor, _recurrent, dropout, zeros
from .layers import uniform
from .module import Module


class _Recurrent(Module):
    kind: ClassVar[str]
    gates: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size, self.num_layers, self.batch_first = hidden_size, num_layers, batch_first
        self.dropout, self.bias, self.directions = dropout, bias, 2 if bidirectional else 1
        bound, width = 1.0 / math.sqrt(max(hidden_size, 1)), self.gates * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else hidden_size * self.directions
            for suffix in self._suffixes():
                shapes = {"weight_ih": (width, inputs), "weight_hh": (width, hidden_size)}
                biases = {"bias_ih": (width,), "bias_hh": (width,)} if bias else {}
                for name, shape in {**shapes, **biases}.items():
                    setattr(self, f"{name}_l{layer}{suffix}", uniform(bound, *shape))

    def _suffixes(self) -> list[str]:
        return ["", "_reverse"][: self.directions]

    def _weights(self, layer: int) -> list[list[Tensor]]:
        names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if self.bias else [])
        return [[getattr(self, f"{name}_l{layer}{suffix}") for name in names] for suffix in self._suffixes()]

    def _run(self, x: Tensor, states: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        y = x.transpose(0, 1) if self.batch_first else x
        if states is None:
            shape = (self.num_layers * self.directions, y.shape[1], self.hidden_size)
            states = [zeros(shape, device=x.device) for _ in range(2 if self.kind == "lstm" else 1)]
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout > 0.0:
                y = dropout(y, self.dropout, self.training)
            y, states = _recurrent(self.kind, layer, y, self._weights(layer), states)
        return (y.transpose(0, 1) if self.batch_first else y), states


class RNN(_Recurrent):
    """Elman's network with tanh: x (T, B, I), or (B, T, I) with `batch_first`, to y (.., D H) and h (L D, B, H)."""

    kind = "rnn"
    gates = 1

    def forward(self, x: Tensor, h: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        y, states = self._run(x, None if h is None else [h])
        return y, states[0]


class GRU(_Recurrent):
    """Gated recurrent units: shapes as of `RNN`."""

    kind = "gru"
    gates = 3

    def forward(self, x: Tensor, h: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        y, states = self._run(x, None if h is None else [h])
        return y, states[0]


class LSTM(_Recurrent):
    """Long short-term memory: shapes as of `RNN`, and two states (h, c)."""

    kind = "lstm"
    gates = 4

    def forward(
        self, x: Tensor, states: Optional[Tuple[Tensor, Tensor]] = None
    ) -> Tuple[Tensor, Tuple[Tensor, Tensor]]:
        y, new = self._run(x, None if states is None else list(states))
        return y, (new[0], new[1])
