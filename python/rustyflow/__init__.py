"""Tensors, autograd and Transformer training on any GPU (through wgpu) and on the CPU.

>>> import rustyflow as rf
>>> w = rf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
>>> loss = (rf.tensor([[1.0, -1.0]]) @ w).relu().sum()
>>> loss.backward()
>>> w.grad.tolist()
[[0.0, 0.0], [0.0, 0.0]]
"""

import atexit as _atexit

from . import losses, nn, optim
from ._rustyflow import (
    IGNORED,
    Tensor,
    __version__,
    _close,
    arange,
    cat,
    device_stats,
    devices,
    full,
    is_available,
    is_grad_enabled,
    manual_seed,
    multinomial,
    ones,
    profile,
    rand,
    randint,
    randn,
    randperm,
    set_threads,
    stack,
    synchronize,
    tensor,
    where,
    zeros,
)
from .autograd import no_grad
from .convert import from_dlpack, from_numpy
from .files import load_file, save_file
from .run import Model, Tokenizer, bench, load, train

float32 = "f32"
float16 = "f16"
uint32 = "u32"

# A GPU that still computes when the process ends is waited for.
_atexit.register(_close)

__all__ = [
    "IGNORED",
    "Model",
    "Tensor",
    "Tokenizer",
    "__version__",
    "arange",
    "bench",
    "cat",
    "device_stats",
    "devices",
    "float16",
    "float32",
    "from_dlpack",
    "from_numpy",
    "full",
    "is_available",
    "is_grad_enabled",
    "load",
    "load_file",
    "losses",
    "manual_seed",
    "multinomial",
    "nn",
    "no_grad",
    "ones",
    "optim",
    "profile",
    "rand",
    "randint",
    "randn",
    "randperm",
    "save_file",
    "set_threads",
    "stack",
    "synchronize",
    "tensor",
    "train",
    "uint32",
    "where",
    "zeros",
]
