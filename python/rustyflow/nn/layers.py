"""Linear layers, embeddings and dropout."""

from __future__ import annotations

import math

from .._rustyflow import Tensor, dropout, embedding, linear, rand, randn
from .module import Module, Parameter


def uniform(bound: float, *shape: int) -> Tensor:
    """A parameter with values uniform within a bound."""
    return Parameter((rand(*shape) * 2.0 - 1.0) * bound)


class Linear(Module):
    """`x W^T + b`: (..., in_features) to (..., out_features). Values begin uniform within 1 / sqrt(in_features)."""

    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1.0 / math.sqrt(max(in_features, 1))
        self.weight = uniform(bound, out_features, in_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """The rows of a table (num_embeddings, embedding_dim) that ids (...), u32, name. Values begin normal."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter(randn(num_embeddings, embedding_dim))

    def forward(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Dropout(Module):
    """In training sets elements to 0 with probability `p` and divides the others by 1 - p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout's probability must be at least 0 and below 1, not {p}")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
