#!/usr/bin/env python3
"""Write the golden files that the tests compare rustyflow with.

    pip install torch transformers safetensors
    python scripts/make_goldens.py

PyTorch and Hugging Face transformers are the reference. The results are committed, so nobody needs
Python to run the tests; the versions that made them are recorded in each .json (`versions`).

What is written
    ops.safetensors, ops.json
        One case per op and shape: `<case>/in0`, `in1`.. , `out0`, the upstream gradient `grad_out0`, and
        `grad_in<i>` for every float input. ops.json lists the cases with their attributes. Ids and
        targets are int64 inputs and have no gradient.
    gpt2_tiny.safetensors, gpt2_tiny.json
        A two-layer GPT-2 (`GPT2LMHeadModel`, tied head, no dropout) on one batch: `weight.<name>`, `ids`,
        `targets`, `logits`, `loss`, `grad.<name>`; then ten AdamW steps on that same batch, with the norm
        of the gradient clipped: `lr`, `losses` (before each update), `grad_norms` (before clipping),
        `after10.<name>`. Names are those of Hugging Face without `transformer.`, so linear weights are
        laid out (in, out). `targets` are targets as they are, not labels still to be shifted.

How to read the numbers
    Inputs, weights and learning rates are rounded to float32 first; everything after that is computed in
    float64, and only the results are rounded to float32. The golden is therefore the true answer to half a
    unit in the last place, and the whole tolerance belongs to the implementation under test.

    `float32_error` in each .json says what PyTorch itself loses when it does the same work in float32, as
    max|got - want| / max|want| over a tensor, the worst tensor of its group. A few times that is a fair
    tolerance, under the same measure; comparing element by element would punish cancellation.

    The gradient of the key third of every `c_attn.bias` is zero in exact arithmetic (softmax does not see
    a shift of all scores), so in float32 it is nothing but rounding noise, which Adam divides by its own
    size. Compare that third of `after10` only loosely, within the sum of the learning rates;
    `float32_error` counts it apart as `after10_key_bias`.

    A target of -100 is ignored (`u32::MAX` in rustyflow). No input of relu is zero and no two candidates
    of maximum, minimum, argmax or argmin are equal; only `max` and `min` have cases with ties.
"""

import argparse
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor

IGNORE = -100


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden files of the tests.")
    parser.add_argument("--ops", type=Path, default=Path("crates/tensor/tests/goldens"), help="folder for single ops")
    parser.add_argument("--models", type=Path, default=Path("tests/goldens"), help="folder for the model")
    args = parser.parse_args()

    torch.set_num_threads(1)  # one order of summation, whatever the machine
    for folder in (args.ops, args.models):
        folder.mkdir(parents=True, exist_ok=True)
    write(args.ops / "ops", *ops_golden())
    write(args.models / "gpt2_tiny", *gpt2_golden())


# ---------------------------------------------------------------------------------------------------------
# Single ops
# ---------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    name: str
    op: str
    attrs: dict
    inputs: list[Tensor]  # float32, or int64 for ids and targets
    halves: int = 0  # so many of the first inputs hold values of float16, and are tested as such


def ops_golden() -> tuple[dict[str, Tensor], dict]:
    tensors: dict[str, Tensor] = {}
    listing = []
    float32_error: dict[str, float] = {}
    for case in op_cases():
        shape = OPS[case.op](*case.inputs, **case.attrs).shape
        grad_out = Draw(f"{case.name}/grad_out0").normal(*shape)
        if case.halves:
            grad_out = grad_out.half().float()

        want = run_op(case, grad_out, torch.float64)
        got = run_op(case, grad_out, torch.float32)
        error = max(scaled_error(got[key], want[key]) for key in want)
        if not case.halves:
            float32_error[case.op] = max(error, float32_error.get(case.op, 0.0))

        saved = {f"in{i}": tensor for i, tensor in enumerate(case.inputs)} | {"grad_out0": grad_out} | want
        assert all(torch.isfinite(tensor).all() for tensor in saved.values()), case.name
        tensors |= {f"{case.name}/{key}": tensor for key, tensor in saved.items()}
        listing.append({"name": case.name, "op": case.op, "attrs": case.attrs, "inputs": len(case.inputs)} | (
            {"halves": case.halves} if case.halves else {}))

    assert len({case["name"] for case in listing}) == len(listing), "two cases share a name"
    return tensors, {
        "versions": versions(),
        "ignored_target": IGNORE,
        "float32_error": rounded(float32_error),
        "cases": listing,
    }


def run_op(case: Case, grad_out: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The output of the op, and the gradient of each float input, computed in `dtype`."""
    inputs = [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in case.inputs]
    out = OPS[case.op](*inputs, **case.attrs)
    out.backward(grad_out.to(dtype))
    grads = {f"grad_in{i}": torch.zeros_like(x) if x.grad is None else x.grad  # None of what is only compared
             for i, x in enumerate(inputs) if x.is_floating_point()}
    return {"out0": out.detach()} | grads


def matmul(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


def attention(qkv: Tensor, n_head: int, causal: bool) -> Tensor:
    """From packed (B, T, 3*C), q then k then v, each split into heads, to (B, T, C)."""
    B, T, C3 = qkv.shape
    q, k, v = (x.view(B, T, n_head, -1).transpose(1, 2) for x in qkv.chunk(3, dim=-1))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C3 // 3)


def dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **options) -> Tensor:
    """A mask of integers is one of booleans."""
    if mask is not None and not mask.is_floating_point():
        mask = mask.bool()
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def multi_head_attention(*tensors: Tensor, n_head: int, causal: bool) -> Tensor:
    """`torch.nn.MultiheadAttention` with `batch_first` by its parameters, of one sequence or of three."""
    *sequences, in_weight, in_bias, out_weight, out_bias = tensors
    q, k, v = sequences if len(sequences) == 3 else sequences * 3
    layer = torch.nn.MultiheadAttention(q.shape[-1], n_head, batch_first=True, dtype=q.dtype)
    parameters = {"in_proj_weight": in_weight, "in_proj_bias": in_bias,
                  "out_proj.weight": out_weight, "out_proj.bias": out_bias}
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1) if causal else None  # True hides here
    return torch.func.functional_call(layer, parameters, (q, k, v), {"attn_mask": mask, "need_weights": False})[0]


def cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float = 0.0, class_weights: list[float] | None = None
) -> Tensor:
    """The mean over the rows whose target is not ignored, over their weights if classes have some."""
    weight = None if class_weights is None else torch.tensor(class_weights, dtype=logits.dtype)
    return F.cross_entropy(logits, targets, weight, ignore_index=IGNORE, label_smoothing=label_smoothing)


def loss_of_rows(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The loss of targets that number classes, the last dimension of x; PyTorch has them second."""

    def apply(x: Tensor, targets: Tensor, class_weights: list[float] | None = None, **options) -> Tensor:
        weight = None if class_weights is None else torch.tensor(class_weights, dtype=x.dtype)
        return loss(x.movedim(-1, 1), targets, weight, ignore_index=IGNORE, **options)

    return apply


def cosine_embedding_loss(a: Tensor, b: Tensor, margin: float, reduction: str) -> Tensor:
    """Every third pair should point apart."""
    target = torch.tensor([-1.0 if i % 3 == 2 else 1.0 for i in range(len(a))]).to(a.dtype)
    return F.cosine_embedding_loss(a, b, target, margin, reduction=reduction)


def recurrent(cell: Callable[..., tuple], states: int) -> Callable[..., Tensor]:
    """A stack of layers, without biases if there are two parameters for each direction: y (T, B, D H), and the
    final states, those of each layer and direction brought to its columns of y and added up."""

    def apply(x: Tensor, *tensors: Tensor, layers: int, directions: int, bias: bool) -> Tensor:
        state, parameters = tensors[:states], tensors[states:]
        y, *finals = cell(x, state if states > 1 else state[0], parameters, bias, layers, 0.0, True, directions == 2,
                          False)
        for factor, final in enumerate(finals, 2):
            B, H = final.shape[1:]
            y = y + factor * final.view(layers, directions, B, H).transpose(1, 2).reshape(layers, B, -1).sum(0)
        return y

    return apply


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, training: bool, momentum: float) -> Tensor:
    """With running statistics that are no inputs; what becomes of them is added to each channel."""
    mean = torch.linspace(-1, 1, x.shape[1]).to(x.dtype)
    variance = torch.linspace(0.5, 2, x.shape[1]).to(x.dtype)
    y = F.batch_norm(x, mean, variance, weight, bias, training, momentum)
    return y + (2 * mean + 3 * variance).view(-1, *[1] * (x.dim() - 2))
def compare(x: Tensor, y: Tensor, a: Tensor, b: Tensor, by: str) -> Tensor:
    """The choice between a and b by a comparison."""
    return torch.where(getattr(torch, by)(x, y), a, b)


def part(x: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, end, step),)]


# What each op means. The attributes of a case are the keyword arguments.
OPS: dict[str, Callable[..., Tensor]] = {
    "matmul": matmul,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "compare": compare,
    "scale": lambda x, factor: x * factor,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "recip": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "relu": F.relu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "clamp": torch.clamp,
    "powf": torch.pow,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
    # Both results, the sum and its norm, as one.
    "add_layer_norm": lambda x, branch, weight, bias, eps: (
        x + branch + F.layer_norm(x + branch, weight.shape, weight, bias, eps)),
    "feed_forward": lambda x, w1, w2, b1, b2: F.gelu(x @ w1 + b1, approximate="tanh") @ w2 + b2,
    "attention": attention,
    "scaled_dot_product_attention": dot_product_attention,
    "multi_head_attention": multi_head_attention,
    "embedding": lambda ids, table: F.embedding(ids, table),
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": lambda h, weight, targets, bias=None, **criterion: (
        cross_entropy(F.linear(h, weight, bias), targets, **criterion)),
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "binary_cross_entropy_with_logits": lambda x, target, reduction, pos_weight=None: (
        F.binary_cross_entropy_with_logits(x, target, reduction=reduction, pos_weight=(
            None if pos_weight is None else torch.tensor(pos_weight, dtype=x.dtype)))),
    "kl_div": F.kl_div,
    "nll_loss": loss_of_rows(F.nll_loss),
    "cross_entropy_loss": loss_of_rows(F.cross_entropy),
    "cosine_embedding_loss": cosine_embedding_loss,
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "prod": torch.prod,
    "var": torch.var,
    "logsumexp": torch.logsumexp,
    # The elements that it names.
    "argmax": lambda x, dim: x.gather(dim, x.argmax(dim, keepdim=True)),
    "argmin": lambda x, dim: x.gather(dim, x.argmin(dim, keepdim=True)),
    "permute": lambda x, dims: x.permute(dims),
    "rnn": recurrent(torch._VF.rnn_tanh, 1),
    "lstm": recurrent(torch._VF.lstm, 2),
    "gru": recurrent(torch._VF.gru, 1),
    "conv1d": F.conv1d,
    "conv2d": F.conv2d,
    "conv_transpose2d": F.conv_transpose2d,
    "max_pool2d": F.max_pool2d,
    "avg_pool2d": F.avg_pool2d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
    "max_pool1d": F.max_pool1d,
    "avg_pool1d": F.avg_pool1d,
    "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
    "batch_norm": batch_norm,
    "group_norm": lambda x, weight, bias, groups: F.group_norm(x, groups, weight, bias),
    "narrow": torch.narrow,
    "slice": part,
    "split": lambda x, size, dim, part: x.split(size, dim)[part],
    "flip": torch.flip,
    "expand": lambda x, shape: x.expand(shape),
    "pad": lambda x, padding, value: F.pad(x, [n for pair in reversed(padding) for n in pair], value=value),
    "cat": lambda *tensors, dim: torch.cat(tensors, dim),
    "stack": lambda *tensors, dim: torch.stack(tensors, dim),
    "tril": torch.tril,
    "triu": torch.triu,
    "gather": lambda x, index, dim: x.gather(dim, index),
    "index_select": lambda x, index, dim: x.index_select(dim, index),
    "scatter_add": lambda x, index, source, dim: x.scatter_add(dim, index, source),
}


class Draw:
    """Random float32 numbers that depend on a name alone, so that a new case leaves the others as they were."""

    def __init__(self, name: str):
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(self, *shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=self.generator) * std

    def positive(self, *shape: int) -> Tensor:
        return self.normal(*shape).abs() + 0.1

    def away_from_zero(self, *shape: int) -> Tensor:
        x = self.normal(*shape)
        return x + 0.5 * x.sign()

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)


def op_cases() -> list[Case]:
    """Odd sizes throughout: no kernel may rely on a multiple of its tile."""
    cases: list[Case] = []

    def add(name: str, op: str, inputs: Callable[[Draw], list[Tensor]], **attrs) -> None:
        cases.append(Case(name, op, attrs, inputs(Draw(name))))

    # Products. "tn" means that a is stored transposed and b is not.
    for suffix, a_shape, b_shape in [("nn", (5, 7), (7, 3)), ("nt", (5, 7), (3, 7)),
                                     ("tn", (7, 5), (7, 3)), ("tt", (7, 5), (3, 7))]:
        flags = {"transpose_a": suffix[0] == "t", "transpose_b": suffix[1] == "t"}
        add(f"matmul_2d_{suffix}", "matmul", lambda d: [d.normal(*a_shape), d.normal(*b_shape)], **flags)
        add(f"matmul_3d_3d_{suffix}", "matmul", lambda d: [d.normal(4, *a_shape), d.normal(4, *b_shape)], **flags)
        if not flags["transpose_a"]:
            add(f"matmul_3d_2d_{suffix}", "matmul", lambda d: [d.normal(4, *a_shape), d.normal(*b_shape)], **flags)

    # Two tensors, element by element; the shape of b is that of a or its trailing dims, or both are broadcast.
    pairs = [((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (3, 5)), ((2, 3, 5), (5,)),
             ((3, 1), (2, 1, 4)), ((5,), (2, 3, 1)), ((), (3,))]
    for op in ["add", "sub", "mul", "div", "maximum", "minimum", "pow"]:
        for a_shape, b_shape in pairs:
            name = f"{op}_{'x'.join(map(str, a_shape))}_{'x'.join(map(str, b_shape))}"
            add(name, op, lambda d: [
                d.positive(*a_shape) if op == "pow" else d.normal(*a_shape),
                d.away_from_zero(*b_shape) if op == "div" else d.normal(*b_shape)])
    # Whole powers of what is negative, and of 0: constants, because a gradient of the exponent is no number there.
    add("pow_negative", "pow", lambda d: [
        torch.cat([d.away_from_zero(16), torch.zeros(2)]), torch.arange(18) % 5])
    for op in ["eq", "ne", "lt", "le", "gt", "ge"]:
        # So coarse that some are equal.
        add(f"compare_{op}", "compare", lambda d: [
            d.normal(3, 1).round(), d.normal(1, 7).round(), d.normal(2, 3, 7), d.normal(7)], by=op)

    # One tensor, element by element. The wide ones reach well into their flat tails.
    wide = {"sin", "cos", "gelu", "silu", "sigmoid", "tanh", "floor", "elu", "softplus", "hardswish"}
    positive = {"log", "sqrt", "recip", "powf"}
    constants = {"scale": {"factor": 0.37}, "clamp": {"min": -0.5, "max": 1.0}, "powf": {"exponent": 2.5},
                 "leaky_relu": {"negative_slope": 0.01}, "elu": {"alpha": 1.3}}
    for op in ["scale", "neg", "exp", "log", "sqrt", "recip", "sin", "cos", "relu", "gelu", "silu", "sigmoid", "tanh",
               "abs", "sign", "floor", "clamp", "powf", "leaky_relu", "elu", "softplus", "hardswish"]:
        attrs = constants.get(op, {})
        for shape in [(17,), (3, 65)]:
            add(f"{op}_{'x'.join(map(str, shape))}", op, lambda d: [
                d.positive(*shape) if op in positive else d.normal(*shape, std=3.0 if op in wide else 1.0)], **attrs)

    add("powf_square", "powf", lambda d: [d.normal(17)], exponent=2.0)
    add("powf_cube_of_zero", "powf", lambda d: [torch.zeros(3)], exponent=3.0)
    add("clamp_above", "clamp", lambda d: [d.normal(17)], max=0.3)
    add("abs_zero", "abs", lambda d: [torch.zeros(3)])

    # Rows.
    def large_rows(d: Draw) -> list[Tensor]:
        x = d.normal(5, 17)
        x[0, 3], x[0, 8] = 80.0, -80.0  # one winner, one that underflows
        x[1] += 80.0
        x[2] -= 80.0
        x[3, ::2] = 80.0  # winners that tie
        x[4] *= 20.0
        return [x]

    def layer_norm_inputs(d: Draw) -> list[Tensor]:
        x = 2.0 * d.normal(5, 17) + 0.5
        x[0] *= 0.005  # a variance small enough that eps counts
        return [x, 1.0 + 0.1 * d.normal(17), 0.1 * d.normal(17)]

    add("softmax_5x17", "softmax", lambda d: [d.normal(5, 17)])
    add("softmax_5x17_large", "softmax", large_rows)
    add("log_softmax_5x17", "log_softmax", lambda d: [d.normal(5, 17)])
    add("log_softmax_5x17_large", "log_softmax", large_rows)
    add("layer_norm_5x17", "layer_norm", layer_norm_inputs, eps=1e-5)

    add("add_layer_norm_5x17", "add_layer_norm",
        lambda d: [d.normal(5, 17), d.normal(5, 17), 1.0 + 0.1 * d.normal(17), 0.1 * d.normal(17)], eps=1e-5)
    add("feed_forward_2x3x8_12_7", "feed_forward",
        lambda d: [d.normal(2, 3, 8), d.normal(8, 12), d.normal(12, 7), d.normal(12), d.normal(7)])

    # The model.
    def ids_with_a_gap(d: Draw) -> list[Tensor]:
        return [torch.tensor([[0, 6, 2, 2, 5], [2, 1, 0, 6, 3]]), d.normal(7, 3)]  # 2 three times, 4 never

    def targets(d: Draw, rows: int, vocab: int) -> Tensor:
        ids = d.integers(vocab, rows)
        ids[2] = IGNORE
        return ids

    add("attention_causal", "attention", lambda d: [d.normal(2, 9, 36)], n_head=3, causal=True)
    def attend(name: str, q: tuple, k: tuple, v: tuple, mask: Callable[[Draw], list[Tensor]], **options) -> None:
        add(f"scaled_dot_product_attention_{name}", "scaled_dot_product_attention",
            lambda d: [d.normal(*q), d.normal(*k), d.normal(*v)] + mask(d), **options)

    def hides_all_of_a_query(d: Draw) -> list[Tensor]:
        mask = d.integers(2, 2, 1, 5, 7)
        mask[1, 0, 3] = 0
        return [mask]

    cross = [(2, 3, 5, 6), (2, 3, 7, 6), (2, 3, 7, 4)]
    attend("cross", *cross, lambda d: [])
    attend("cross_causal", *cross, lambda d: [], is_causal=True)
    attend("scaled", *cross, lambda d: [], scale=0.7)
    attend("causal", *[(2, 3, 9, 6)] * 3, lambda d: [], is_causal=True)
    attend("causal_scaled", *[(2, 9, 6)] * 3, lambda d: [], is_causal=True, scale=0.7)
    attend("added", *cross, lambda d: [d.normal(3, 5, 7)])
    attend("added_to_keys", *cross, lambda d: [d.normal(2, 1, 1, 7)])
    attend("kept", *cross, hides_all_of_a_query)
    for name, sequences in [("self", [(2, 9, 12)]), ("cross", [(2, 5, 12), (2, 9, 12), (2, 9, 12)])]:
        for causal in [False, True]:
            shapes = sequences + [(36, 12), (36,), (12, 12), (12,)]
            add(f"multi_head_attention_{name}_{causal}", "multi_head_attention",
                lambda d: [d.normal(*shape, std=0.5) for shape in shapes], n_head=3, causal=causal)
    add("embedding_2x5_7x3", "embedding", ids_with_a_gap)
    add("cross_entropy_6x17", "cross_entropy", lambda d: [d.normal(6, 17, std=2.0), targets(d, 6, 17)])
    add("linear_cross_entropy_6x8_17x8", "linear_cross_entropy",
        lambda d: [d.normal(6, 8), d.normal(17, 8), targets(d, 6, 17)])

    for suffix, smoothing, weighted in [("smoothed", 0.1, False), ("weighted", 0.0, True), ("both", 0.3, True)]:
        # Class 0 counts nothing.
        criterion = {"label_smoothing": smoothing} | (
            {"class_weights": [(i % 7) * 0.375 for i in range(19)]} if weighted else {})
        add(f"cross_entropy_9x19_{suffix}", "cross_entropy",
            lambda d: [d.normal(9, 19, std=2.0), targets(d, 9, 19)], **criterion)
        add(f"linear_cross_entropy_9x5_19x5_{suffix}", "linear_cross_entropy",
            lambda d: [d.normal(9, 5), d.normal(19, 5), targets(d, 9, 19)], **criterion)
        add(f"linear_cross_entropy_9x5_19x5_19_{suffix}", "linear_cross_entropy",
            lambda d: [d.normal(9, 5), d.normal(19, 5), targets(d, 9, 19), d.normal(19)], **criterion)

    # Losses of pairs; those of l1_loss have no equal elements. Then of rows of classes, of which 0 counts nothing.
    constants = {"huber_loss": {"delta": 0.7}, "smooth_l1_loss": {"beta": 0.7}}
    for reduction in ["mean", "sum", "none"]:
        for op in ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss"]:
            add(f"{op}_3x17_{reduction}", op, lambda d: [d.normal(3, 17), d.normal(3, 17)],
                reduction=reduction, **constants.get(op, {}))
        for suffix, weights in [("", {}), ("_weighted", {"pos_weight": [0.25 + 0.5 * i for i in range(7)]})]:
            add(f"binary_cross_entropy_with_logits_5x7_{reduction}{suffix}", "binary_cross_entropy_with_logits",
                lambda d: [d.normal(5, 7, std=3.0), d.normal(5, 7).sigmoid()], reduction=reduction, **weights)
        # A gradient of the target is wanted too, so that no target is 0.
        add(f"kl_div_5x7_{reduction}", "kl_div",
            lambda d: [d.normal(5, 7).log_softmax(-1), d.normal(5, 7).softmax(-1)], reduction=reduction)
        add(f"kl_div_5x7_{reduction}_log", "kl_div",
            lambda d: [d.normal(5, 7).log_softmax(-1), d.normal(5, 7).log_softmax(-1)],
            reduction=reduction, log_target=True)
        for suffix, weights in [("", {}), ("_weighted", {"class_weights": [(i % 7) * 0.375 for i in range(19)]})]:
            add(f"nll_loss_9x19_{reduction}{suffix}", "nll_loss",
                lambda d: [d.normal(9, 19).log_softmax(-1), targets(d, 9, 19)], reduction=reduction, **weights)
            if reduction != "mean":
                for smoothing in [0.0, 0.2]:
                    add(f"cross_entropy_loss_9x19_{reduction}{suffix}_{smoothing}", "cross_entropy_loss",
                        lambda d: [d.normal(9, 19, std=2.0), targets(d, 9, 19)],
                        reduction=reduction, label_smoothing=smoothing, **weights)
        add(f"cosine_embedding_loss_8x5_{reduction}", "cosine_embedding_loss",
            lambda d: [d.normal(8, 5), d.normal(8, 5)], margin=-0.5, reduction=reduction)
    # More dimensions than one of targets.
    add("cross_entropy_loss_2x3x5", "cross_entropy_loss",
        lambda d: [d.normal(2, 3, 5), d.integers(5, 2, 3)], reduction="none")
    add("smooth_l1_loss_of_0", "smooth_l1_loss", lambda d: [d.normal(17), d.normal(17)], reduction="none", beta=0.0)

    # Whole dimensions; those reduced are dropped from the shape, or kept as 1.
    for op in ["sum", "mean", "max", "min", "prod", "var", "logsumexp", "argmax", "argmin"]:
        correction = {"correction": 1} if op == "var" else {}
        for dim in range(3):
            add(f"{op}_3x4x5_dim{dim}", op, lambda d: [d.normal(3, 4, 5)], dim=dim, **correction)
        if op not in ["prod", "argmax", "argmin"]:  # PyTorch has these of one dimension alone
            for dims in [[0, 2], [1, 2], [0, 1, 2]]:
                name = f"{op}_3x4x5_dims{''.join(map(str, dims))}"
                add(name, op, lambda d: [d.normal(3, 4, 5)], dim=dims, keepdim=True, **correction)
    add("var_3x4_population", "var", lambda d: [d.normal(3, 4)], dim=1, correction=0)
    add("logsumexp_5x17_large", "logsumexp", large_rows, dim=1)
    # So coarse that several are the largest, which share the gradient.
    for op in ["max", "min"]:
        add(f"{op}_5x17_ties", op, lambda d: [d.normal(5, 17).round()], dim=1)
    # Rows with no factor of 0, with one, and with two.
    add("prod_3x5_zeros", "prod", lambda d: [d.normal(3, 5).index_put(
        (torch.tensor([1, 2, 2]), torch.tensor([3, 0, 4])), torch.tensor(0.0))], dim=1)
    add("permute_2x3x4_201", "permute", lambda d: [d.normal(2, 3, 4)], dims=[2, 0, 1])

    # Recurrent layers.
    def stack(d: Draw, gates: int, states: int, layers: int, directions: int, bias: bool) -> list[Tensor]:
        T, B, I, H = 4, 3, 5, 6
        inputs = [d.normal(T, B, I)] + [d.normal(layers * directions, B, H) for _ in range(states)]
        for layer in range(layers):
            for _ in range(directions):
                shapes = [(gates * H, directions * H if layer else I), (gates * H, H)] + [(gates * H,)] * 2 * bias
                inputs += [d.normal(*shape, std=0.5) for shape in shapes]
        return inputs

    for op, gates, states in [("rnn", 1, 1), ("lstm", 4, 2), ("gru", 3, 1)]:
        for layers, directions, bias in [(1, 1, True), (2, 2, True), (2, 1, False)]:
            attrs = {"layers": layers, "directions": directions, "bias": bias}
            add(f"{op}_{layers}_{directions}_{bias}", op, lambda d: stack(d, gates, states, **attrs), **attrs)

    # Images: stride, padding, dilation, groups and bias, by themselves and together.
    def conv(name: str, op: str, x: tuple, weight: tuple, bias: int, **attrs) -> None:
        add(name, op, lambda d: [d.normal(*x), d.normal(*weight)] + [d.normal(bias)] * (bias > 0), **attrs)

    conv("conv2d_plain", "conv2d", (2, 3, 5, 7), (4, 3, 3, 2), 4)
    conv("conv2d_padded", "conv2d", (2, 3, 5, 4), (5, 3, 3, 3), 0, padding=[1, 2])
    conv("conv2d_strided", "conv2d", (2, 2, 9, 8), (3, 2, 3, 3), 3, stride=[2, 3], padding=[1, 1])
    conv("conv2d_all", "conv2d", (2, 4, 9, 10), (6, 2, 3, 2), 6,
         stride=[2, 1], padding=[2, 1], dilation=[2, 3], groups=2)
    conv("conv2d_depthwise", "conv2d", (1, 3, 6, 5), (6, 1, 3, 3), 6, padding=[1, 1], groups=3)
    conv("conv_transpose2d_plain", "conv_transpose2d", (2, 3, 4, 3), (3, 4, 3, 2), 4)
    conv("conv_transpose2d_all", "conv_transpose2d", (2, 4, 4, 3), (4, 3, 3, 2), 6,
         stride=[2, 3], padding=[1, 1], output_padding=[1, 2], dilation=[1, 2], groups=2)
    conv("conv1d_all", "conv1d", (3, 4, 11), (6, 2, 3), 6, stride=[2], padding=[2], dilation=[2], groups=2)

    def pool(name: str, op: str, x: tuple, **attrs) -> None:
        add(name, op, lambda d: [d.normal(*x)], **attrs)

    overlapping = {"kernel_size": [3, 3], "stride": [2, 1], "padding": [1, 1]}
    for op in ["max_pool2d", "avg_pool2d"]:
        pool(f"{op}_plain", op, (2, 3, 5, 6), kernel_size=[2, 2])
        pool(f"{op}_overlapping", op, (2, 3, 7, 6), **overlapping)
    pool("max_pool2d_dilated", "max_pool2d", (1, 2, 9, 8), **overlapping, dilation=[2, 2])
    pool("avg_pool2d_without_padding", "avg_pool2d", (1, 2, 7, 6), **overlapping, count_include_pad=False)
    # The last windows are not whole, or, of the third, left out.
    for op in ["max_pool2d", "avg_pool2d"]:
        pool(f"{op}_ceil", op, (2, 3, 5, 7), kernel_size=[2, 2], ceil_mode=True)
        pool(f"{op}_ceil_padded", op, (1, 2, 8, 10), kernel_size=[3, 3], stride=[2, 4], padding=[1, 1], ceil_mode=True)
        pool(f"{op}_ceil_apart", op, (1, 2, 3, 7), kernel_size=[2, 3], stride=[3, 3], padding=[1, 1], ceil_mode=True)
        pool(op.replace("2d", "1d_ceil"), op.replace("2d", "1d"), (2, 3, 12),
             kernel_size=[5], stride=[3], padding=[2], ceil_mode=True)
    pool("avg_pool2d_ceil_without_padding", "avg_pool2d", (1, 2, 8, 10), kernel_size=[3, 3], stride=[2, 4],
         padding=[1, 1], ceil_mode=True, count_include_pad=False)
    pool("max_pool2d_ceil_dilated", "max_pool2d", (1, 2, 10, 8), **overlapping, dilation=[2, 2], ceil_mode=True)
    pool("adaptive_avg_pool2d_3x4", "adaptive_avg_pool2d", (2, 3, 7, 10), output_size=[3, 4])
    pool("adaptive_avg_pool2d_5x1", "adaptive_avg_pool2d", (1, 2, 3, 4), output_size=[5, 1])
    for op in ["max_pool1d", "avg_pool1d"]:
        pool(op, op, (2, 3, 11), kernel_size=[3], stride=[2], padding=[1])
    pool("adaptive_avg_pool1d", "adaptive_avg_pool1d", (2, 3, 11), output_size=[4])

    def norm(name: str, op: str, x: tuple, **attrs) -> None:
        add(name, op, lambda d: [2.0 * d.normal(*x) + 0.5, 1.0 + 0.1 * d.normal(x[1]), 0.1 * d.normal(x[1])], **attrs)

    for training in [True, False]:
        norm(f"batch_norm_7x5_{training}", "batch_norm", (7, 5), training=training, momentum=0.1)
        norm(f"batch_norm_3x4x5x6_{training}", "batch_norm", (3, 4, 5, 6), training=training, momentum=0.3)
    norm("group_norm_2x6x5x3", "group_norm", (2, 6, 5, 3), groups=3)
    norm("group_norm_3x6", "group_norm", (3, 6), groups=2)
    # Parts, and what is larger.
    add("narrow_3x7x2", "narrow", lambda d: [d.normal(3, 7, 2)], dim=1, start=2, length=4)
    add("slice_3x7x2", "slice", lambda d: [d.normal(3, 7, 2)], dim=1, start=1, end=7, step=3)
    add("slice_9", "slice", lambda d: [d.normal(9)], dim=0, start=0, end=9, step=2)
    add("split_7x3", "split", lambda d: [d.normal(7, 3)], size=3, dim=0, part=2)
    add("flip_2x3x4", "flip", lambda d: [d.normal(2, 3, 4)], dims=[0, 2])
    add("expand_3x1", "expand", lambda d: [d.normal(3, 1)], shape=[2, 3, 4])
    add("pad_2x3", "pad", lambda d: [d.normal(2, 3)], padding=[[1, 0], [2, 1]], value=-1.5)
    add("cat_2x3_2x4_2x1", "cat", lambda d: [d.normal(2, 3), d.normal(2, 4), d.normal(2, 1)], dim=1)
    add("stack_2x3", "stack", lambda d: [d.normal(2, 3), d.normal(2, 3)], dim=1)
    for op in ["tril", "triu"]:
        for diagonal in [-1, 0, 2]:
            add(f"{op}_2x4x5_{diagonal}", op, lambda d: [d.normal(2, 4, 5)], diagonal=diagonal)
    # Dimensions counted from the last.
    for op in ["sum", "mean", "max", "var", "logsumexp"]:
        correction = {"correction": 1} if op == "var" else {}
        add(f"{op}_3x4x5_from_the_last", op, lambda d: [d.normal(3, 4, 5)], dim=[-1, -3], **correction)
    add("permute_from_the_last", "permute", lambda d: [d.normal(2, 3, 4)], dims=[-1, 0, -2])
    add("narrow_from_the_last", "narrow", lambda d: [d.normal(3, 7, 2)], dim=-2, start=2, length=4)
    add("split_from_the_last", "split", lambda d: [d.normal(7, 3)], size=2, dim=-1, part=1)
    add("flip_from_the_last", "flip", lambda d: [d.normal(2, 3, 4)], dims=[-1, 0])
    add("cat_from_the_last", "cat", lambda d: [d.normal(2, 3), d.normal(4, 3)], dim=-2)
    add("stack_from_the_last", "stack", lambda d: [d.normal(2, 3), d.normal(2, 3)], dim=-1)
    add("gather_from_the_last", "gather", lambda d: [d.normal(4, 3, 2), d.integers(3, 4, 5, 1)], dim=-2)
    add("index_select_from_the_last", "index_select", lambda d: [d.normal(3, 5, 2), d.integers(5, 7)], dim=-2)
    add("scatter_add_from_the_last", "scatter_add", lambda d: [
        d.normal(3, 5), d.integers(5, 3, 8), d.normal(3, 8)], dim=-1)
    # Lookups: some repeated, some never, an index that is shorter than the tensor.
    add("gather_3x5", "gather", lambda d: [d.normal(3, 5), d.integers(5, 3, 8)], dim=1)
    add("gather_4x3x2", "gather", lambda d: [d.normal(4, 3, 2), d.integers(4, 5, 2, 1)], dim=0)
    add("index_select_3x5x2", "index_select", lambda d: [d.normal(3, 5, 2), d.integers(5, 7)], dim=1)
    add("scatter_add_3x5", "scatter_add", lambda d: [
        d.normal(3, 5), d.integers(5, 3, 8), d.normal(3, 8)], dim=1)
    add("scatter_add_4x3x2", "scatter_add", lambda d: [
        d.normal(4, 3, 2), d.integers(4, 5, 2, 1), d.normal(5, 2, 1)], dim=0)

    # What also takes float16: the first inputs, of all ops but norms all of floats.
    def half(op: str, inputs: Callable[[Draw], list[Tensor]], halves: int, **attrs) -> None:
        name = f"{op}_f16"
        given = inputs(Draw(name))
        rounded = [x.half().float() if i < halves else x for i, x in enumerate(given)]
        cases.append(Case(name, op, attrs, rounded, halves))

    for op in ["add", "sub", "mul", "div", "maximum", "minimum", "pow"]:
        half(op, lambda d: [d.positive(2, 3, 5) if op == "pow" else d.normal(2, 3, 5),
                            d.away_from_zero(3, 1) if op == "div" else d.normal(3, 1)], 2)
    half("compare", lambda d: [d.normal(3, 1), d.normal(1, 7), d.normal(2, 3, 7), d.normal(7)], 4, by="lt")
    for op in ["softmax", "log_softmax"]:
        half(op, lambda d: [d.normal(5, 17)], 1)
    for op in ["sum", "mean", "max", "min", "prod", "var", "logsumexp", "argmax", "argmin"]:
        half(op, lambda d: [d.normal(3, 4, 5)], 1, dim=1, **({"correction": 1} if op == "var" else {}))
    half("gather", lambda d: [d.normal(3, 5), d.integers(5, 3, 8)], 1, dim=1)
    half("index_select", lambda d: [d.normal(3, 5, 2), d.integers(5, 7)], 1, dim=1)
    half("conv2d", lambda d: [d.normal(2, 4, 9, 10), d.normal(6, 2, 3, 2), d.normal(6)], 3,
         stride=[2, 1], padding=[2, 1], dilation=[2, 3], groups=2)
    half("conv_transpose2d", lambda d: [d.normal(2, 3, 4, 3), d.normal(3, 4, 3, 2), d.normal(4)], 3)
    half("conv1d", lambda d: [d.normal(3, 4, 11), d.normal(6, 2, 3), d.normal(6)], 3, stride=[2], padding=[2], groups=2)
    for op in ["max_pool2d", "avg_pool2d"]:
        half(op, lambda d: [d.normal(2, 3, 7, 6)], 1, **overlapping)
    half("adaptive_avg_pool2d", lambda d: [d.normal(2, 3, 7, 10)], 1, output_size=[3, 4])
    for op, attrs in [("batch_norm", {"training": True, "momentum": 0.1}), ("group_norm", {"groups": 2}),
                      ("layer_norm", {"eps": 1e-5})]:
        shape = (5, 6) if op == "layer_norm" else (5, 6, 3)
        half(op, lambda d: [2.0 * d.normal(*shape) + 0.5, 1.0 + 0.1 * d.normal(6), 0.1 * d.normal(6)], 1, **attrs)

    return cases


# ---------------------------------------------------------------------------------------------------------
# The whole model
# ---------------------------------------------------------------------------------------------------------

B, T, VOCAB, N_LAYER, N_HEAD, N_EMBD = 3, 17, 65, 2, 3, 24
ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}  # decay for dim >= 2 alone
GRAD_CLIP = 1.0
# Warm-up, then a decay: no two neighbours are equal, so a stale learning rate shows.
LR = [5e-3, 1e-2, 2e-2, 2.4e-2, 2e-2, 1.6e-2, 1.2e-2, 8e-3, 6e-3, 4e-3]


def gpt2_golden() -> tuple[dict[str, Tensor], dict]:
    draw = Draw("gpt2_tiny")
    given = {f"weight.{name}": random_weight(name, parameter, draw)
             for name, parameter in parameters(new_gpt2()).items()}
    given["ids"] = draw.integers(VOCAB, B, T)
    given["targets"] = draw.integers(VOCAB, B, T)
    for b, t in [(0, 0), (0, 16), (1, 7), (2, 15), (2, 16)]:
        given["targets"][b, t] = IGNORE
    given["lr"] = torch.tensor(LR)

    want = run_gpt2(given, torch.float64)
    got = run_gpt2(given, torch.float32)
    zero_key_bias_grad(want)

    norms = want["grad_norms"].tolist()
    assert min(norms) < 0.95 * GRAD_CLIP and max(norms) > 1.5 * GRAD_CLIP, f"clip some steps and not others: {norms}"

    return given | want, {
        "versions": versions(),
        "config": {"n_layer": N_LAYER, "n_head": N_HEAD, "n_embd": N_EMBD, "vocab_size": VOCAB, "n_positions": T,
                   "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True},
        "batch": {"B": B, "T": T, "ignored_target": IGNORE,
                  "ignored_count": int((given["targets"] == IGNORE).sum())},
        "optimizer": ADAMW | {
            "grad_clip": GRAD_CLIP,
            "clip_rule": "gradients *= min(1, grad_clip / (norm + 1e-6)), over all parameters together",
            "decay_rule": "parameters of two or more dims, before the Adam update: w -= lr * weight_decay * w",
            "lr": LR,
        },
        "losses": [round(loss, 6) for loss in want["losses"].tolist()],
        "grad_norms": [round(norm, 6) for norm in norms],
        "clipped": [norm > GRAD_CLIP for norm in norms],
        "float32_error": rounded(gpt2_float32_error(got, want)),
    }


def new_gpt2() -> transformers.GPT2LMHeadModel:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=N_LAYER, n_head=N_HEAD, n_embd=N_EMBD, vocab_size=VOCAB, n_positions=T,
        layer_norm_epsilon=1e-5, activation_function="gelu_new", tie_word_embeddings=True,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        use_cache=False, attn_implementation="eager"))


def parameters(model: transformers.GPT2LMHeadModel) -> dict[str, torch.nn.Parameter]:
    """By Hugging Face name without the prefix; the tied head is `wte.weight`, once."""
    return {name.removeprefix("transformer."): parameter for name, parameter in model.named_parameters()}


def random_weight(name: str, parameter: Tensor, draw: Draw) -> Tensor:
    """Ten times wider than GPT-2 starts, so that every gradient is significant."""
    if parameter.dim() >= 2:
        return draw.normal(*parameter.shape, std=0.2)
    around = 1.0 if name.endswith("weight") else 0.0  # LayerNorm's weight; all the others are biases
    return around + draw.normal(*parameter.shape, std=0.1)


def run_gpt2(given: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """One forward and backward, then the ten steps, in `dtype`."""
    model = new_gpt2().to(dtype).train()
    params = parameters(model)
    with torch.no_grad():
        for name, parameter in params.items():
            parameter.copy_(given[f"weight.{name}"])
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": ADAMW["weight_decay"]},
         {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}],
        betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False)

    result: dict[str, Tensor] = {}
    losses, grad_norms = [], []
    for step, lr in enumerate(given["lr"].tolist()):
        logits = model(given["ids"]).logits
        loss = cross_entropy(logits.flatten(0, 1), given["targets"].flatten())
        assert logits.dtype == loss.dtype == dtype
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result |= {"logits": logits.detach(), "loss": loss.detach()}
            result |= {f"grad.{name}": p.grad.clone() for name, p in params.items()}
        losses.append(loss.detach())
        grad_norms.append(torch.nn.utils.clip_grad_norm_(params.values(), GRAD_CLIP))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()

    result |= {"losses": torch.stack(losses), "grad_norms": torch.stack(grad_norms)}
    result |= {f"after10.{name}": p.detach().clone() for name, p in params.items()}
    return result


KEYS = slice(N_EMBD, 2 * N_EMBD)  # the key third of c_attn.bias


def zero_key_bias_grad(want: dict[str, Tensor]) -> None:
    """The gradient of a key bias is zero but for rounding; store the zero."""
    for layer in range(N_LAYER):
        keys = want[f"grad.h.{layer}.attn.c_attn.bias"][KEYS]
        assert keys.abs().max() < 1e-15
        keys.zero_()


def gpt2_float32_error(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    worst: dict[str, float] = {}

    def note(group: str, a: Tensor, b: Tensor) -> None:
        worst[group] = max(scaled_error(a, b), worst.get(group, 0.0))

    for name in want:
        group = name.split(".")[0]
        a, b = got[name], want[name]
        if group == "after10" and name.endswith("c_attn.bias"):
            note("after10_key_bias", a[KEYS], b[KEYS])
            a, b = (torch.cat([x[: KEYS.start], x[KEYS.stop :]]) for x in (a, b))
        note(group, a, b)
    return worst


# ---------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------


def scaled_error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / (want.abs().max() or 1.0))  # a step's gradient is 0


def rounded(errors: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{error:.1e}") for name, error in errors.items()}


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def write(stem: Path, tensors: dict[str, Tensor], description: dict) -> None:
    """Floats as float32 and integers as int64; in the .json, one line per key and one per case."""
    stored = {name: (x.float() if x.is_floating_point() else x).contiguous() for name, x in tensors.items()}
    save_file(stored, stem.with_suffix(".safetensors"))

    lines = []
    for key, value in description.items():
        if key == "cases":
            text = "[\n    " + ",\n    ".join(json.dumps(case) for case in value) + "\n  ]"
        else:
            text = json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    stem.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

    for path in (stem.with_suffix(".safetensors"), stem.with_suffix(".json")):
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
