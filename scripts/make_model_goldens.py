#!/usr/bin/env python3
"""Write small models of Hugging Face's families, and what they compute, for the tests to compare rustyflow with.

    pip install torch transformers safetensors
    python scripts/make_model_goldens.py --out tests/goldens/models [--only NAME]

One folder for each model: `config.json` and `model.safetensors` as `save_pretrained` writes them, of `llama-shards` in
bf16, in shards, without the head and so without a prefix of names; and
`golden.safetensors` with one batch (`ids`, `targets`, of which some are ignored), `logits`, `loss`, `grad.<name>`, and
ten AdamW steps on that batch, with the norm of the gradient clipped: `lr`, `losses` before each update, `grad_norms`
before clipping, `after10.<name>`. `golden.json` says what PyTorch itself loses when it computes the same in float32.

How to read the numbers: `scripts/make_goldens.py`, whose settings these are. Everything is computed in float64 from
values that are float32, so the whole tolerance belongs to the implementation under test.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

import make_goldens
from make_goldens import ADAMW, GRAD_CLIP, IGNORE, LR, Draw, cross_entropy, rounded, scaled_error, versions

B, T, VOCAB = 3, 17, 53

# Odd sizes: heads whose size is no multiple of 8 or 4, wider together than the model; a feed-forward layer of 28.
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": T, "num_hidden_layers": 2, "hidden_size": 24,
         "num_attention_heads": 4, "intermediate_size": 28, "attn_implementation": "eager", "use_cache": False,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
          "original_max_position_embeddings": 11}


def models() -> dict[str, transformers.PretrainedConfig]:
    t = transformers
    return {
        "llama-gqa": t.LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=10, tie_word_embeddings=False,
                                   rope_parameters=LLAMA3, rms_norm_eps=1e-5),
        "llama-mqa": t.LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-6,
                                   rope_parameters={"rope_type": "linear", "rope_theta": 50.0, "factor": 2.5}),
        "llama-shards": t.LlamaConfig(**SIZES, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True,
                                      rms_norm_eps=1e-6),
        "mistral": t.MistralConfig(**SIZES, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
                                   sliding_window=5),
        "qwen2": t.Qwen2Config(**SIZES, num_key_value_heads=2, tie_word_embeddings=True, use_sliding_window=False),
        "qwen3": t.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
                               use_sliding_window=False),
        "qwen3-untied": t.Qwen3Config(**SIZES, num_key_value_heads=4, head_dim=6, tie_word_embeddings=False,
                                      use_sliding_window=False),
    }


# Name: the class of number that the folder has, and the bytes of a shard.
STORED = {"llama-shards": (torch.bfloat16, "8KB")}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden files of the models.")
    parser.add_argument("--out", type=Path, default=Path("tests/goldens/models"), help="folder to write to")
    parser.add_argument("--only", choices=models(), help="write this one alone")
    args = parser.parse_args()
    out: Path = args.out
    torch.set_num_threads(1)  # one order of summation, whatever the machine
    for name, config in models().items():
        if args.only in (None, name):
            write(out / name, name, config)


def write(folder: Path, name: str, config: transformers.PretrainedConfig) -> None:
    """Draws until no gradient is so small that Adam, which divides it by its size, makes steps of its rounding."""
    stored = STORED.get(name, (torch.float32, None))[0]
    attempts = (attempt(Draw(f"{name} {i}"), config, stored) for i in range(10))
    model, weights, given, want, errors = next(a for a in attempts if a[-1]["after10"] < 1e-5)
    load(model.float(), weights)
    if name in STORED:
        dtype, shard = STORED[name]
        model.to(dtype).base_model.save_pretrained(folder, max_shard_size=shard)
    else:
        model.save_pretrained(folder)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()
    file = {name: tensor if tensor.dtype == torch.int64 else tensor.float() for name, tensor in (given | want).items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in file.items()}, folder / "golden.safetensors")
    description = {"versions": versions(), "optimizer": ADAMW | {"grad_clip": GRAD_CLIP},
                   "grad_norms": want["grad_norms"].tolist(), "float32_error": rounded(errors)}
    (folder / "golden.json").write_text(json.dumps(description, indent=2) + "\n")
    print(folder, rounded(errors))


def attempt(draw: Draw, config: transformers.PretrainedConfig, stored: torch.dtype) -> tuple:
    """A model, its weights as `stored` holds them, the batch, what it computes, and PyTorch's own errors."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    weights = {name: random_weight(name, p, draw).to(stored).float() for name, p in model.named_parameters()}
    given = {"ids": draw.integers(VOCAB, B, T), "targets": draw.integers(VOCAB, B, T), "lr": torch.tensor(LR)}
    for b, t in [(0, 0), (0, 16), (1, 7), (2, 15), (2, 16)]:
        given["targets"][b, t] = IGNORE
    want = run(model, weights, given, torch.float64)
    got = run(model, weights, given, torch.float32)
    norms = want["grad_norms"].tolist()
    assert max(norms) > 1.5 * GRAD_CLIP, f"clip some steps: {norms}"
    errors: dict[str, float] = {}
    for name in want:
        group = name.split(".")[0]
        errors[group] = max(scaled_error(got[name], want[name]), errors.get(group, 0.0))
    return model, weights, given, want, errors


def random_weight(name: str, parameter: Tensor, draw: Draw) -> Tensor:
    """Ten times wider than models start, so that every gradient is significant."""
    if parameter.dim() >= 2:
        return draw.normal(*parameter.shape, std=0.2)
    return (0.0 if name.endswith("bias") else 1.0) + draw.normal(*parameter.shape, std=0.1)


def load(model: transformers.PreTrainedModel, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def run(model: transformers.PreTrainedModel, weights: dict[str, Tensor], given: dict[str, Tensor],
        dtype: torch.dtype) -> dict[str, Tensor]:
    """One forward and backward, then the ten steps, in `dtype`."""
    model = model.to(dtype).train()
    load(model, weights)
    params = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": ADAMW["weight_decay"]},
         {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0}],
        betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False)
    result: dict[str, Tensor] = {}
    losses, grad_norms = [], []
    for step, lr in enumerate(given["lr"].tolist()):
        logits = model(given["ids"]).logits
        loss = cross_entropy(logits.flatten(0, 1), given["targets"].flatten())
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
    return result | {f"after10.{name}": p.detach().clone() for name, p in params.items()}


if __name__ == "__main__":
    assert make_goldens.T == T, "the batches of both scripts are alike"
    main()
