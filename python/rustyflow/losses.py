"""Losses: functions of a prediction and a target, by the names of `torch.nn.functional`.

`reduction` is "mean", "sum" or "none". The classes of `cross_entropy` and `nll_loss` are the last dimension of the
prediction, (..., C), and targets are ids (...), u32; the id `IGNORED` has no loss.
"""

from ._rustyflow import (
    IGNORED,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)

__all__ = [
    "IGNORED",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]
