"""Methods of `Tensor` as functions, by the names of `torch`, and tensors like others."""

from __future__ import annotations

from typing import Any

from ._rustyflow import Tensor, tensor

abs = Tensor.abs
all = Tensor.all
any = Tensor.any
argmax = Tensor.argmax
argmin = Tensor.argmin
clamp = Tensor.clamp
cos = Tensor.cos
exp = Tensor.exp
flatten = Tensor.flatten
floor = Tensor.floor
log = Tensor.log
log_softmax = Tensor.log_softmax
logsumexp = Tensor.logsumexp
matmul = Tensor.matmul
maximum = Tensor.maximum
mean = Tensor.mean
minimum = Tensor.minimum
pow = Tensor.pow
prod = Tensor.prod
relu = Tensor.relu
sigmoid = Tensor.sigmoid
sign = Tensor.sign
sin = Tensor.sin
softmax = Tensor.softmax
sqrt = Tensor.sqrt
std = Tensor.std
sum = Tensor.sum
tanh = Tensor.tanh
tril = Tensor.tril
triu = Tensor.triu
var = Tensor.var


def zeros_like(x: Tensor) -> Tensor:
    """Zeros of the shape, type and device of `x`."""
    return x.detach().clone().zero_()


def ones_like(x: Tensor) -> Tensor:
    """Ones of the shape, type and device of `x`."""
    return x.detach().clone().fill_(1.0)


def eye(n: int, device: str = "cpu") -> Tensor:
    """The identity (n, n), f32."""
    return tensor(range(n), dtype="u32", device=device).one_hot(n)


def linspace(start: float, end: float, steps: int, device: str = "cpu") -> Tensor:
    """`steps` numbers from `start` to `end` at equal distances, f32."""
    span = (end - start) / max(steps - 1, 1)
    return tensor([start + i * span for i in range(steps)], dtype="f32", device=device)


def allclose(x: Tensor, y: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Whether all elements of both differ by at most `atol + rtol |y|`."""
    y = y if isinstance(y, Tensor) else tensor(y, device=x.device)
    return bool(((x - y).abs() <= y.abs() * rtol + atol).all())
