"""Normalization layers."""

from __future__ import annotations

from .._rustyflow import Tensor, batch_norm, group_norm, layer_norm, ones, rms_norm, zeros
from .module import Module, Parameter


class LayerNorm(Module):
    """Rows (..., C) with mean 0 and variance 1, times a weight, plus a bias (C)."""

    bias: Tensor | None

    def __init__(self, normalized_shape: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ones(normalized_shape))
        self.bias = Parameter(zeros(normalized_shape)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Rows (..., C) over the root of their mean square, times a weight (C)."""

    def __init__(self, normalized_shape: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(ones(normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class _BatchNorm(Module):
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(ones(num_features))
        self.bias = Parameter(zeros(num_features))
        self.register_buffer("running_mean", zeros(num_features))
        self.register_buffer("running_var", ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        running = (self.running_mean, self.running_var)
        return batch_norm(x, *running, self.weight, self.bias, self.training, self.momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """(N, C) or (N, C, L): in training by the statistics of the batch, in evaluation by their running averages."""


class BatchNorm2d(_BatchNorm):
    """(N, C, H, W): in training by the statistics of the batch, in evaluation by their running averages."""


class GroupNorm(Module):
    """(N, C, ...): by the statistics of each of `num_groups` parts of the channels."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = Parameter(ones(num_channels))
        self.bias = Parameter(zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
