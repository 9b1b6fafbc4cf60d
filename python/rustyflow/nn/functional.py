"""What layers compute, as functions: `torch.nn.functional`'s names."""

from __future__ import annotations

from .._rustyflow import (
    Tensor,
    adaptive_avg_pool2d,
    avg_pool2d,
    batch_norm,
    conv1d,
    conv2d,
    conv_transpose2d,
    dropout,
    embedding,
    group_norm,
    layer_norm,
    linear,
    max_pool2d,
    rms_norm,
    scaled_dot_product_attention,
)
from .. import losses
from ..losses import *  # noqa: F403


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`."""
    return x.relu()


def gelu(x: Tensor) -> Tensor:
    """GELU in the tanh form of GPT-2."""
    return x.gelu()


def silu(x: Tensor) -> Tensor:
    """`x sigmoid(x)`."""
    return x.silu()


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return x.tanh()


def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + e^-x)`."""
    return x.sigmoid()


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """e^x over its sum along `dim`."""
    return x.softmax(dim)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """The logarithm of `softmax`."""
    return x.log_softmax(dim)


def one_hot(ids: Tensor, num_classes: int) -> Tensor:
    """Of ids (...) rows of numbers (..., C), f32: 1 at the id, else 0."""
    return ids.one_hot(num_classes)


__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "dropout",
    "embedding",
    "gelu",
    "group_norm",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool2d",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]
__all__ += losses.__all__
