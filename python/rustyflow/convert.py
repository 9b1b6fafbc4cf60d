"""Tensors of other libraries' arrays. Elements are copied; nothing is shared."""

from __future__ import annotations

from typing import Any

import numpy

from ._rustyflow import Tensor


def from_numpy(array: Any, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of the elements: float32 and float64 as f32, float16 as f16, whole numbers as u32."""
    return Tensor(array, device=device, requires_grad=requires_grad)


def from_dlpack(array: Any, device: str = "cpu") -> Tensor:
    """A tensor with a copy of the elements of an array on the CPU that speaks DLPack, such as PyTorch's."""
    return Tensor(numpy.from_dlpack(array), device=device)
