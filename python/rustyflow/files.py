"""State dicts as files of safetensors, which PyTorch reads and writes too."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ._rustyflow import Tensor, _load_file, _save_file


def save_file(state: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Writes tensors by name, in place of a file that may be there: whole or not at all."""
    _save_file(dict(state), os.fspath(path))


def load_file(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Reads tensors of f32, f16 and bf16, the last of which become f32, on the CPU."""
    return _load_file(os.fspath(path))
