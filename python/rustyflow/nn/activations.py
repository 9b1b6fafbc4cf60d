"""Functions of each element, or of each row, as modules."""

from __future__ import annotations

from .._rustyflow import Tensor
from .module import Module


class ReLU(Module):
    """`max(x, 0)`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class GELU(Module):
    """GELU in the tanh form of GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        return x.gelu()


class SiLU(Module):
    """`x sigmoid(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.silu()


class Sigmoid(Module):
    """`1 / (1 + e^-x)`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid()


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class Softplus(Module):
    """`log(1 + e^x)`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softplus()


class Hardswish(Module):
    """`x min(max(x + 3, 0), 6) / 6`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.hardswish()


class LeakyReLU(Module):
    """x where it is positive, else `negative_slope` times x."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return x.leaky_relu(self.negative_slope)


class ELU(Module):
    """x where it is positive, else `alpha (e^x - 1)`."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return x.elu(self.alpha)


class Softmax(Module):
    """e^x over its sum along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(self.dim)


class LogSoftmax(Module):
    """The logarithm of `Softmax`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.log_softmax(self.dim)


class Flatten(Module):
    """Joins the dimensions from `start_dim` to `end_dim`: (N, C, H, W) to (N, C H W)."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(self.start_dim, self.end_dim)
