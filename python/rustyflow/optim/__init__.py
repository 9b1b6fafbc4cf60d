"""Optimizers with PyTorch's names and formulas, and learning rates over time (`lr_scheduler`).

An optimizer takes parameters (`module.parameters()`), or groups of them as dicts with "params" and, to differ, "lr" and
"weight_decay". They lie in one buffer of their device from then on, and an update takes a few kernels, however many
they are. Move a module to its device before.
"""

from . import lr_scheduler
from .optimizers import Adam, AdamW, Lion, Muon, Optimizer, RMSprop, SGD

__all__ = ["Adam", "AdamW", "Lion", "Muon", "Optimizer", "RMSprop", "SGD", "lr_scheduler"]
