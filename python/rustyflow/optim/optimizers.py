"""The optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Tuple

from .._rustyflow import Tensor, _Optimizer

Betas = Tuple[float, float]


class Optimizer:
    """What all have in common. `lr` may be set at any time; schedulers do.

    `max_norm` clips: the largest norm of all gradients together, 0 for none.
    """

    kind: ClassVar[str]

    def __init__(
        self, params: Iterable[Any], lr: float, weight_decay: float, max_norm: float, **settings: float
    ) -> None:
        if lr < 0.0 or not math.isfinite(lr):
            raise ValueError(f"a learning rate is at least 0, not {lr}")
        self.lr = lr
        given = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        parameters: list[tuple[Tensor, int]] = []
        rules: list[tuple[str, dict[str, float], float, float]] = []
        for number, group in enumerate(groups):
            unknown = set(group) - {"params", "lr", "weight_decay"}
            if unknown:
                raise ValueError(f"a group has params, lr and weight_decay, not {', '.join(sorted(unknown))}")
            parameters += [(parameter, number) for parameter in group["params"]]
            own = group.get("lr", lr)
            if own != lr and lr == 0.0:
                raise ValueError("a group's lr is kept as a multiple of the optimizer's, which must not be 0")
            scale = own / lr if own != lr else 1.0
            rules.append((self.kind, settings, scale, group.get("weight_decay", weight_decay)))
        self._optimizer = _Optimizer(parameters, rules, max_norm)
        self._squares: Tensor | None = None

    def step(self) -> None:
        """Updates all parameters from their gradients."""
        self._squares = self._optimizer.step(self.lr)

    def zero_grad(self) -> None:
        """Sets all gradients to zero."""
        self._optimizer.zero_grad()

    def grad_norm(self) -> float:
        """The norm of all gradients at the last step, before clipping. Waits for the device."""
        if self._squares is None:
            raise RuntimeError("there is no gradient's norm before the first step")
        return math.sqrt(self._squares.flatten()[0].item())

    def state_dict(self) -> dict[str, Any]:
        """Copies of what it remembers, on the CPU: "lr", and under "state" for each parameter's number "step" and the
        moments by PyTorch's names, such as "exp_avg".
        """
        state: dict[int, dict[str, Any]] = {}
        updates = self._optimizer.updates()
        for number, name, moment in self._optimizer.moments():
            state.setdefault(number, {"step": updates})[name] = moment
        return {"lr": self.lr, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the optimizer was that `state_dict` is of: one of the same kind, of the same parameters in the
        same order. Its other settings stay.

        Raises ValueError, and changes nothing, if a moment is missing or has another shape.
        """
        if set(state) != {"lr", "state"}:
            raise ValueError(f"the state of an optimizer has lr and state, not {', '.join(sorted(state)) or 'nothing'}")
        steps = {int(own["step"]) for own in state["state"].values()}
        if len(steps) != 1:
            raise ValueError(f"the state of an optimizer has one number of steps, not {sorted(steps)}")
        moments = {
            (number, name): value if isinstance(value, Tensor) else Tensor(value)
            for number, own in state["state"].items()
            for name, value in own.items()
            if name != "step"
        }
        self._optimizer.restore(steps.pop(), moments)
        self.lr = float(state["lr"])


class SGD(Optimizer):
    """Gradient descent, with momentum and Nesterov's look ahead if asked for."""

    kind = "sgd"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, max_norm, momentum=momentum, nesterov=float(nesterov))


class Adam(Optimizer):
    """Kingma and Ba 2014; weight decay is added to the gradient."""

    kind = "adam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, max_norm, beta1=betas[0], beta2=betas[1], eps=eps)


class AdamW(Adam):
    """Loshchilov and Hutter 2017: Adam whose weight decay is apart from the gradient."""

    kind = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, max_norm)


class RMSprop(Optimizer):
    """Gradients over the root of their mean square."""

    kind = "rmsprop"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        max_norm: float = 0.0,
    ) -> None:
        settings = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": float(centered)}
        super().__init__(params, lr, weight_decay, max_norm, **settings)


class Lion(Optimizer):
    """Chen et al. 2023: the sign of the momentum."""

    kind = "lion"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0.0,
        max_norm: float = 0.0,
    ) -> None:
        super().__init__(params, lr, weight_decay, max_norm, beta1=betas[0], beta2=betas[1])


class Muon(Optimizer):
    """Momentum made orthogonal by `ns_steps` of Newton and Schulz, in f32. Of matrices alone: weights of linear layers.

    `adjust_lr_fn` is "original" or "match_rms_adamw".
    """

    kind = "muon"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "original",
        max_norm: float = 0.0,
    ) -> None:
        if adjust_lr_fn not in ("original", "match_rms_adamw"):
            raise ValueError(f'adjust_lr_fn is "original" or "match_rms_adamw", not {adjust_lr_fn!r}')
        settings = {
            "momentum": momentum,
            "nesterov": float(nesterov),
            "ns_steps": float(ns_steps),
            "match_rms_adamw": float(adjust_lr_fn == "match_rms_adamw"),
        }
        super().__init__(params, lr, weight_decay, max_norm, **settings)
