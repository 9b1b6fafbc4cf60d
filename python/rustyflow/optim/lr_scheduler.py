"""Learning rates over time, by the names of `torch.optim.lr_scheduler`. Call `step()` after each `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from .._rustyflow import _LearningRate
from .optimizers import Optimizer


class LRScheduler:
    """Sets an optimizer's `lr` from the number of steps so far."""

    def __init__(self, optimizer: Optimizer, rate: Callable[[int], float]) -> None:
        self.optimizer, self._rate, self.last_epoch = optimizer, rate, 0
        optimizer.lr = rate(0)

    def step(self) -> None:
        """Goes on to the next step's rate."""
        self.last_epoch += 1
        self.optimizer.lr = self._rate(self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The rate in force."""
        return [self.optimizer.lr]

    def state_dict(self) -> dict[str, int]:
        """How far it is."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where one was that was made with the same arguments."""
        self.last_epoch = state["last_epoch"]
        self.optimizer.lr = self._rate(self.last_epoch)


class StepLR(LRScheduler):
    """The rate, times `gamma` after each `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, _LearningRate("step", optimizer.lr, every=step_size, factor=gamma).of_step)


class ExponentialLR(LRScheduler):
    """The rate, times `gamma` after each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(optimizer, _LearningRate("exponential", optimizer.lr, factor=gamma).of_step)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine down to `eta_min` at step `T_max`, after `warmup_steps` of linear warm-up that are among them."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, warmup_steps: int = 0) -> None:
        rate = _LearningRate("cosine", optimizer.lr, eta_min, T_max, warmup_steps)
        super().__init__(optimizer, rate.of_step)


class LinearDecayLR(LRScheduler):
    """A straight line down to `end` at step `total_steps`, after `warmup_steps` of linear warm-up among them."""

    def __init__(self, optimizer: Optimizer, total_steps: int, end: float = 0.0, warmup_steps: int = 0) -> None:
        super().__init__(optimizer, _LearningRate("linear", optimizer.lr, end, total_steps, warmup_steps).of_step)


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down again within `total_steps`."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        rate = _LearningRate(
            "one_cycle",
            max_lr,
            total_steps=total_steps,
            pct_start=pct_start,
            div_factor=div_factor,
            final_div_factor=final_div_factor,
        )
        super().__init__(optimizer, rate.of_step)


class LambdaLR(LRScheduler):
    """The rate, times what a function of the step says."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        first = optimizer.lr
        super().__init__(optimizer, lambda step: first * lr_lambda(step))
