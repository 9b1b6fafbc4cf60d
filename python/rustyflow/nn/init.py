"""Initial values, written into tensors: `torch.nn.init`'s names."""

from __future__ import annotations

import math

from .._rustyflow import Tensor, full, rand, randn


def uniform_(tensor: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform between two bounds."""
    return tensor.copy_(rand(*tensor.shape) * (high - low) + low)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """From a normal distribution."""
    return tensor.copy_(randn(*tensor.shape) * std + mean)


def constant_(tensor: Tensor, value: float) -> Tensor:
    """The same value everywhere."""
    return tensor.copy_(full(tensor.shape, value))


def zeros_(tensor: Tensor) -> Tensor:
    """Zero everywhere."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """One everywhere."""
    return constant_(tensor, 1.0)


def _fans(tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(f"fan_in and fan_out need at least two dimensions, got {tensor.ndim}")
    kernel = math.prod(tensor.shape[2:])
    return max(tensor.shape[1] * kernel, 1), max(tensor.shape[0] * kernel, 1)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform, so that values and gradients keep their variance."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal, so that values and gradients keep their variance."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))))


def kaiming_uniform_(tensor: Tensor, gain: float = math.sqrt(2.0)) -> Tensor:
    """Uniform, so that values keep their variance through a nonlinearity of this gain: the default is ReLU's."""
    bound = gain * math.sqrt(3.0 / _fans(tensor)[0])
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, gain: float = math.sqrt(2.0)) -> Tensor:
    """Normal, so that values keep their variance through a nonlinearity of this gain: the default is ReLU's."""
    return normal_(tensor, 0.0, gain / math.sqrt(_fans(tensor)[0]))
