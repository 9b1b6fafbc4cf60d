"""Where nothing is recorded for `backward`."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, Callable, TypeVar

from ._rustyflow import _set_grad_enabled

_F = TypeVar("_F", bound=Callable[..., Any])


class no_grad:
    """`with no_grad():`, or `@no_grad()` above a function: what this thread computes there has no gradient."""

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_set_grad_enabled(False))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _set_grad_enabled(self._before.pop())

    def __call__(self, function: _F) -> _F:
        @functools.wraps(function)
        def without_gradients(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return function(*args, **kwargs)

        return without_gradients  # type: ignore[return-value]
