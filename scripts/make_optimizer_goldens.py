#!/usr/bin/env python3
"""Write what optimizers of PyTorch make of weights in ten steps, for the tests to compare rustyflow with.

    pip install torch transformers safetensors
    python scripts/make_optimizer_goldens.py --out crates/tensor/tests/goldens

`optimizers.safetensors` has parameters of odd shapes, `weight.<name>`, the gradients of ten steps,
`grad.<step>.<name>`, and the weights after them by case, `after10.<case>.<name>`. `optimizers.json` says which
parameters are weights of linear layers, how they are stored (`outputs_first`) and which matrices they fuse (`outputs`),
and what the cases are: settings, learning rates, and how far the same steps end from the goldens where PyTorch computes
them in float32 (`float32_error`); and the rates of its learning-rate schedulers (`schedules`). Gradients are drawn;
their norm is clipped, all together.

torch.optim.Muon makes matrices orthogonal in bfloat16. Here its iteration is replaced by the same one in the type of
the gradient; `bfloat16_difference` says how far its own ends from the goldens. Each of the matrices that a weight fuses
is a parameter of its own to it, stored as (outputs, inputs). PyTorch has no Lion: that case is the update of its
paper (Chen et al. 2023, algorithm 2), in the order of its authors' PyTorch code: the decay comes first.

Moments of 8 bits (Dettmers et al. 2022) are not in PyTorch: the cases `<rule>-int8` are its formulas with moments that
are stored as bitsandbytes does, in blocks of 256 and with its tables, which are compared with its own where it is
installed. They are computed in float32, for a code depends on a rounding at a border between two.

How to read the numbers: `scripts/make_goldens.py`, whose settings these are. Everything is computed in float64 from
values that are float32, so the whole tolerance belongs to the implementation under test.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import _muon

from make_goldens import ADAMW, LR, Draw, rounded, scaled_error, versions

# Name: shape, and of linear layers whether outputs come first and how many each of its matrices has.
PARAMETERS = {
    "embed.weight": ((31, 12), None),
    "wide.weight": ((24, 40), {"outputs_first": True, "outputs": [24]}),
    "tall.weight": ((40, 23), {"outputs_first": True, "outputs": [40]}),
    "square.weight": ((17, 17), {"outputs_first": True, "outputs": [17]}),
    "twin.weight": ((17, 17), {"outputs_first": True, "outputs": [17]}),
    "qkv_proj.weight": ((30, 20), {"outputs_first": True, "outputs": [18, 6, 6]}),
    "c_attn.weight": ((20, 27), {"outputs_first": False, "outputs": [9, 9, 9]}),
    "c_proj.weight": ((36, 20), {"outputs_first": False, "outputs": [20]}),
    "norm.weight": ((24,), None),
}

CASES = {
    "muon": {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "adjust_lr": "match_rms_adamw", "grad_clip": 10.0},
    "muon-original": {"momentum": 0.9, "nesterov": False, "ns_steps": 3, "adjust_lr": "original", "grad_clip": 0.0},
    "lion": {"beta1": 0.9, "beta2": 0.99, "grad_clip": 10.0},
    "adam": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 10.0},
    "sgd": {"momentum": 0.9, "grad_clip": 10.0},
    "sgd-plain": {"momentum": 0.0, "grad_clip": 0.0},
    "nag": {"momentum": 0.9, "grad_clip": 10.0},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "grad_clip": 10.0},
    "rmsprop-momentum": {"alpha": 0.9, "eps": 1e-8, "momentum": 0.9, "centered": False, "grad_clip": 0.0},
    "rmsprop-centered": {"alpha": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": True, "grad_clip": 10.0},
    "rmsprop-both": {"alpha": 0.95, "eps": 1e-8, "momentum": 0.8, "centered": True, "grad_clip": 10.0},
    "adamw-int8": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 10.0},
    "lion-int8": {"beta1": 0.9, "beta2": 0.99, "grad_clip": 10.0},
    "sgd-int8": {"momentum": 0.9, "grad_clip": 10.0},
}


# Of a peak of 0.1. `warmup_steps` come first, and are among `total_steps`.
PEAK, STEPS = 0.1, 30
SCHEDULES = {
    "constant": {"kind": "constant"},
    "linear": {"kind": "linear", "minimum": 0.01, "total_steps": 25},
    "cosine": {"kind": "cosine", "minimum": 0.01, "total_steps": 25},
    "cosine-warmup": {"kind": "cosine", "minimum": 0.01, "total_steps": 25, "warmup_steps": 6},
    "step": {"kind": "step", "every": 4, "factor": 0.5},
    "exponential-warmup": {"kind": "exponential", "factor": 0.9, "warmup_steps": 3},
    "one-cycle": {"kind": "one-cycle", "total_steps": 30},
    "one-cycle-short": {"kind": "one-cycle", "total_steps": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden files of the optimizers.")
    parser.add_argument("--out", type=Path, default=Path("crates/tensor/tests/goldens"), help="folder to write to")
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)  # one order of summation, whatever the machine

    draw = Draw("optimizers")
    given = {f"weight.{name}": draw.normal(*shape, std=0.2) for name, (shape, _) in PARAMETERS.items()}
    for step in range(len(LR)):
        # Of a low rank and some noise, as gradients are: singular values of many sizes.
        given |= {f"grad.{step}.{name}": gradient(draw, shape) for name, (shape, _) in PARAMETERS.items()}

    tensors, cases = dict(given), {}
    for name, settings in CASES.items():
        int8 = name.endswith("-int8")
        want = run(given, name, settings, torch.float32 if int8 else torch.float64)
        cases[name] = dict(settings)
        if not int8:
            got = run(given, name, settings, torch.float32)
            cases[name] |= {"float32_error": rounded(errors(got, want))}
        if name.startswith("muon"):
            bfloat16 = errors(run(given, name, settings, torch.float32, in_bfloat16=True), want)
            cases[name] |= {"bfloat16_difference": {key: float(f"{error:.1e}") for key, error in bfloat16.items()}}
        tensors |= {f"after10.{name}.{parameter}": tensor.float() for parameter, tensor in want.items()}
        print(name, cases[name])
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "optimizers.safetensors")
    schedules = {name: settings | {"peak": PEAK, "rates": rates(settings)} for name, settings in SCHEDULES.items()}
    description = {"versions": versions(), "adamw": ADAMW, "lr": LR, "cases": cases, "schedules": schedules,
                   "parameters": [{"name": name, "linear": linear} for name, (_, linear) in PARAMETERS.items()]}
    (out / "optimizers.json").write_text(json.dumps(description, indent=2) + "\n")


def rates(settings: dict) -> list[float]:
    """The learning rates of the first steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    warmup, total = settings.get("warmup_steps", 0), settings.get("total_steps", STEPS)
    schedulers = torch.optim.lr_scheduler

    def main_part() -> schedulers.LRScheduler:
        match settings["kind"]:
            case "constant":
                return schedulers.ConstantLR(optimizer, factor=1.0)
            case "linear":
                return schedulers.LinearLR(optimizer, 1.0, settings["minimum"] / PEAK, total_iters=total - warmup)
            case "cosine":
                return schedulers.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=settings["minimum"])
            case "step":
                return schedulers.StepLR(optimizer, step_size=settings["every"], gamma=settings["factor"])
            case "exponential":
                return schedulers.ExponentialLR(optimizer, gamma=settings["factor"])
            case "one-cycle":
                return schedulers.OneCycleLR(optimizer, max_lr=PEAK, total_steps=total)

    if warmup:
        # (t + 1) / (warmup + 1) of the peak at step t.
        rise = schedulers.LinearLR(optimizer, 1 / (warmup + 1), 1.0, total_iters=warmup)
        scheduler = schedulers.SequentialLR(optimizer, [rise, main_part()], milestones=[warmup])
    else:
        scheduler = main_part()
    rates = []
    # PyTorch's cosine rises again after its minimum, and one cycle has no further steps.
    for step in range(min(STEPS, total)):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < min(STEPS, total):
            scheduler.step()
    return rates


def gradient(draw: Draw, shape: tuple[int, ...]) -> Tensor:
    if len(shape) < 2:
        return draw.normal(*shape)
    return (draw.normal(shape[0], 3) @ draw.normal(3, shape[1]) + 0.3 * draw.normal(*shape)).float()


def errors(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    return {name: scaled_error(got[name], want[name]) for name in want}


def pieces(name: str, tensor: Tensor) -> list[Tensor]:
    """The matrices (outputs, inputs) of a parameter; itself if it is no weight of a linear layer."""
    linear = PARAMETERS[name][1]
    if linear is None:
        return [tensor]
    by_outputs = tensor if linear["outputs_first"] else tensor.T
    return [piece.contiguous() for piece in by_outputs.split(linear["outputs"])]


def whole(name: str, tensors: list[Tensor]) -> Tensor:
    """The parameter of these matrices."""
    linear = PARAMETERS[name][1]
    if linear is None:
        return tensors[0]
    fused = torch.cat(tensors)
    return fused if linear["outputs_first"] else fused.T


def run(given: dict[str, Tensor], case: str, settings: dict, dtype: torch.dtype,
        in_bfloat16: bool = False) -> dict[str, Tensor]:
    """The weights after the steps, computed in `dtype`."""
    # Blocks of 8 bits are of parameters as they are stored.
    cut = (lambda _, tensor: [tensor]) if case.endswith("-int8") else pieces
    params = {name: [torch.nn.Parameter(piece.to(dtype, copy=True)) for piece in cut(name, given[f"weight.{name}"])]
              for name in PARAMETERS}
    optimizers = optimizers_of(params, case, settings)
    own = _muon._zeropower_via_newtonschulz
    _muon._zeropower_via_newtonschulz = own if in_bfloat16 else newton_schulz
    for step, lr in enumerate(LR):
        for name, its in params.items():
            for param, grad in zip(its, cut(name, given[f"grad.{step}.{name}"].to(dtype)), strict=True):
                param.grad = grad.clone()
        if settings["grad_clip"] > 0:
            torch.nn.utils.clip_grad_norm_([p for its in params.values() for p in its], settings["grad_clip"])
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
    _muon._zeropower_via_newtonschulz = own
    joined = (lambda _, its: its[0]) if cut is not pieces else whole
    return {name: joined(name, [piece.detach() for piece in its]) for name, its in params.items()}


class Lion(torch.optim.Optimizer):
    """The weights decay, then move by the sign of the interpolated momentum, which is updated last."""

    def __init__(self, params, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].get("m", torch.zeros_like(p))
                p *= 1 - group["lr"] * group["weight_decay"]
                p -= group["lr"] * torch.sign(beta1 * m + (1 - beta1) * p.grad)
                self.state[p]["m"] = beta2 * m + (1 - beta2) * p.grad


def dynamic_table(signed: bool) -> Tensor:
    """The 256 numbers of the codes: bitsandbytes' `create_dynamic_map`."""
    numbers = [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade if signed else decade + 1)
        own = [10.0 ** (decade - 6) * (0.1 + 0.9 * (j + 0.5) / count) for j in range(count)]
        numbers += own + ([-x for x in own] if signed else [])
    table = torch.tensor(sorted(numbers), dtype=torch.float64).float()
    try:
        from bitsandbytes.functional import create_dynamic_map
    except ImportError:
        return table
    torch.testing.assert_close(table, create_dynamic_map(signed), rtol=1e-6, atol=0)
    return table


TABLES = {True: dynamic_table(True), False: dynamic_table(False)}


class Int8(torch.optim.Optimizer):
    """AdamW, Lion or SGD whose moments are read from codes and stored as codes; the weights are updated before that."""

    def __init__(self, params, case: str, settings: dict) -> None:
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0})
        self.case, self.settings, self.steps = case, settings, 0

    def read(self, p: Tensor, name: str) -> Tensor:
        if name not in self.state[p]:
            return torch.zeros_like(p)
        codes, absmax = self.state[p][name]
        return (TABLES[name != "v"][codes] * absmax).flatten()[:p.numel()].view_as(p)

    def store(self, p: Tensor, name: str, moment: Tensor) -> None:
        blocks = torch.nn.functional.pad(moment.flatten(), (0, -moment.numel() % 256)).view(-1, 256)
        absmax = blocks.abs().amax(1, keepdim=True)
        scaled = blocks / absmax.where(absmax > 0, 1.0)
        self.state[p][name] = ((scaled[..., None] - TABLES[name != "v"]).abs().argmin(-1), absmax)

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        of = self.settings.get
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for p in group["params"]:
                g, m = p.grad, self.read(p, "m")
                if self.case == "sgd-int8":
                    g = g + decay * p
                    m = of("momentum") * m + g
                    p -= lr * m
                elif self.case == "lion-int8":
                    p *= 1 - lr * decay
                    p -= lr * torch.sign(of("beta1") * m + (1 - of("beta1")) * g)
                    m = of("beta2") * m + (1 - of("beta2")) * g
                else:
                    p *= 1 - lr * decay
                    m = of("beta1") * m + (1 - of("beta1")) * g
                    v = of("beta2") * self.read(p, "v") + (1 - of("beta2")) * g * g
                    hat = v / (1 - of("beta2") ** self.steps)
                    p -= lr * (m / (1 - of("beta1") ** self.steps)) / (hat.sqrt() + of("eps"))
                    self.store(p, "v", v)
                self.store(p, "m", m)


def optimizers_of(params: dict[str, list[Tensor]], case: str, settings: dict) -> list[torch.optim.Optimizer]:
    def of(belongs) -> list[Tensor]:
        return [piece for name, its in params.items() if belongs(name) for piece in its]

    decay = ADAMW["weight_decay"]
    if not case.startswith("muon"):
        matrices = {"params": of(lambda name: len(PARAMETERS[name][0]) == 2), "weight_decay": decay}
        vectors = {"params": of(lambda name: len(PARAMETERS[name][0]) == 1), "weight_decay": 0.0}
        return [elementwise([matrices, vectors], case, settings)]
    muon = torch.optim.Muon(of(lambda name: PARAMETERS[name][1]), momentum=settings["momentum"], weight_decay=decay,
                            nesterov=settings["nesterov"], ns_steps=settings["ns_steps"],
                            adjust_lr_fn=settings["adjust_lr"])
    is_other = lambda name, dim: PARAMETERS[name][1] is None and len(PARAMETERS[name][0]) == dim  # noqa: E731
    adamw = torch.optim.AdamW([{"params": of(lambda name: is_other(name, 2)), "weight_decay": decay},
                               {"params": of(lambda name: is_other(name, 1)), "weight_decay": 0.0}],
                              betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False)
    return [muon, adamw]


def elementwise(groups: list[dict], case: str, settings: dict) -> torch.optim.Optimizer:
    own = {name: value for name, value in settings.items() if name != "grad_clip"}
    if case.endswith("-int8"):
        return Int8(groups, case, own)
    if case == "lion":
        return Lion(groups, betas=(own["beta1"], own["beta2"]))
    if case == "adam":
        return torch.optim.Adam(groups, betas=(own["beta1"], own["beta2"]), eps=own["eps"], foreach=False)
    if case.startswith("rmsprop"):
        return torch.optim.RMSprop(groups, **own, foreach=False)
    return torch.optim.SGD(groups, **own, nesterov=case == "nag", foreach=False)


def newton_schulz(grad: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """torch.optim.Muon's iteration, in the type of the gradient."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


if __name__ == "__main__":
    main()
