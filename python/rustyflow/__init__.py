"""Tensors, autograd and Transformer training on a GPU (through wgpu) or the CPU.

>>> import rustyflow as rf
>>> w = rf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
>>> loss = (rf.tensor([[1.0, -1.0]]) @ w).relu().sum()
>>> loss.backward()
>>> w.grad.tolist()
[[0.0, 0.0], [0.0, 0.0]]
"""

import atexit as _atexit
import os as _os

from . import losses, nn, optim
from ._rustyflow import (
    IGNORED,
    Tensor,
    __version__,
    _after_fork,
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
from .functions import (
    abs,
    all,
    allclose,
    any,
    argmax,
    argmin,
    clamp,
    cos,
    exp,
    eye,
    flatten,
    floor,
    linspace,
    log,
    log_softmax,
    logsumexp,
    matmul,
    maximum,
    mean,
    minimum,
    ones_like,
    pow,
    prod,
    relu,
    sigmoid,
    sign,
    sin,
    softmax,
    sqrt,
    std,
    sum,
    tanh,
    tril,
    triu,
    var,
    zeros_like,
)
from .run import Model, Tokenizer, bench, load, train

float32 = "f32"
float16 = "f16"
uint32 = "u32"

# A GPU that still computes when the process ends is waited for.
_atexit.register(_close)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork)

__all__ = [
    "IGNORED",
    "Model",
    "Tensor",
    "Tokenizer",
    "__version__",
    "abs",
    "all",
    "allclose",
    "any",
    "arange",
    "argmax",
    "argmin",
    "bench",
    "cat",
    "clamp",
    "cos",
    "device_stats",
    "devices",
    "exp",
    "eye",
    "flatten",
    "float16",
    "float32",
    "floor",
    "from_dlpack",
    "from_numpy",
    "full",
    "is_available",
    "is_grad_enabled",
    "linspace",
    "load",
    "load_file",
    "log",
    "log_softmax",
    "logsumexp",
    "losses",
    "manual_seed",
    "matmul",
    "maximum",
    "mean",
    "minimum",
    "multinomial",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "optim",
    "pow",
    "prod",
    "profile",
    "rand",
    "randint",
    "randn",
    "randperm",
    "relu",
    "save_file",
    "set_threads",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sqrt",
    "stack",
    "std",
    "sum",
    "synchronize",
    "tanh",
    "tensor",
    "train",
    "tril",
    "triu",
    "uint32",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
