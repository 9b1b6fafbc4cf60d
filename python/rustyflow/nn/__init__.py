"""Layers with PyTorch's names, parameters, shapes and initial values.

A network is a `Module` of others and of parameters: its attributes. `functional` has what layers compute as functions.
"""

from . import functional, init
from .activations import (
    ELU,
    GELU,
    Flatten,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .attention import MultiheadAttention
from .conv import AdaptiveAvgPool2d, AvgPool2d, Conv1d, Conv2d, ConvTranspose2d, MaxPool2d
from .layers import Dropout, Embedding, Linear
from .losses import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from .module import Module, ModuleList, Parameter, Sequential
from .norms import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm
from .recurrent import GRU, LSTM, RNN

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "GroupNorm",
    "Hardswish",
    "LSTM",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "RNN",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "functional",
    "init",
]
