"""Losses as modules."""

from __future__ import annotations

from .._rustyflow import Tensor, binary_cross_entropy_with_logits, cross_entropy, mse_loss
from .module import Module


class CrossEntropyLoss(Module):
    """Of logits (..., C) and classes (...), u32."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.reduction, self.label_smoothing = reduction, label_smoothing
        if weight is not None:
            self.register_buffer("weight", weight)
        self._weight = weight

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(input, target, self._weight, self.reduction, self.label_smoothing)


class MSELoss(Module):
    """Squared differences of tensors of one shape."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return mse_loss(input, target, self.reduction)


class BCEWithLogitsLoss(Module):
    """Of logits and probabilities of one shape."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(input, target, self.reduction)
