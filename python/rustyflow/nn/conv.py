"""Convolutions and pooling. Sizes are a number for height and width, or a pair."""

from __future__ import annotations

import math
from typing import Tuple, Union

from .._rustyflow import (
    Tensor,
    adaptive_avg_pool2d,
    avg_pool2d,
    conv1d,
    conv2d,
    conv_transpose2d,
    max_pool2d,
)
from .layers import uniform
from .module import Module

Size = Union[int, Tuple[int, int]]


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


class _Conv(Module):
    """What convolutions have in common: a weight (out, in / groups, *kernel), of a transposed one (in, out / groups,
    *kernel), and a bias (out), uniform within 1 / sqrt(in / groups * kernel).
    """

    bias: Tensor | None

    def __init__(self, out_channels: int, shape: tuple[int, ...], groups: int, bias: bool) -> None:
        super().__init__()
        self.groups = groups
        bound = 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))
        self.weight = uniform(bound, *shape)
        self.bias = uniform(bound, out_channels) if bias else None


class Conv2d(_Conv):
    """Images (B, in_channels, H, W) to (B, out_channels, H', W')."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(out_channels, (out_channels, in_channels // max(groups, 1), *_pair(kernel_size)), groups, bias)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose2d(_Conv):
    """The transpose of a convolution: (B, in_channels, H, W) to (B, out_channels, H', W')."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
    ) -> None:
        super().__init__(out_channels, (in_channels, out_channels // max(groups, 1), *_pair(kernel_size)), groups, bias)
        self.stride, self.padding, self.output_padding, self.dilation = stride, padding, output_padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        moved = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return conv_transpose2d(x, self.weight, self.bias, *moved)


class Conv1d(_Conv):
    """Sequences (B, in_channels, L) to (B, out_channels, L')."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(out_channels, (out_channels, in_channels // max(groups, 1), kernel_size), groups, bias)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class _Pool(Module):
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding


class MaxPool2d(_Pool):
    """The largest element of each window of (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, self.kernel_size, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The average of each window of (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return avg_pool2d(x, self.kernel_size, self.stride, self.padding)


class AdaptiveAvgPool2d(Module):
    """The averages of windows that cover (B, C, H, W) evenly: (B, C, *output_size)."""

    def __init__(self, output_size: Size) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x, self.output_size)
