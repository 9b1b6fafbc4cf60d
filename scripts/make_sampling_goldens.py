#!/usr/bin/env python3
"""Write with which probabilities transformers draws tokens, for the tests to compare rustyflow's with.

    pip install torch transformers
    python scripts/make_sampling_goldens.py --out tests/goldens

`sampling.json` has logits, the tokens of a text so far, and cases: settings, and the probabilities that are left of the
logits after what `generate` of transformers applies for them, in its order.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from make_goldens import Draw, versions

TOKENS = 24
TEXT = [3, 7, 7, 1, 20, 3]
CASES = [
    {"min_p": 0.1},
    {"min_p": 0.4, "temperature": 1.5},
    {"min_p": 0.05, "temperature": 2.0, "top_p": 0.8},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "temperature": 0.5},
    {"repetition_penalty": 2.0, "top_k": 10, "top_p": 0.9, "min_p": 0.2, "temperature": 1.5},
    {"logit_bias": [[5, 2.5], [7, -4.0]]},
    {"logit_bias": [[7, 3.0]], "repetition_penalty": 1.7, "top_k": 6},
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the golden file of sampling.")
    parser.add_argument("--out", type=Path, default=Path("tests/goldens"), help="folder to write to")
    out: Path = parser.parse_args().out
    logits = Draw("sampling").normal(TOKENS, std=1.0)
    cases = [{"settings": settings, "probabilities": probabilities(logits, settings)} for settings in CASES]
    golden = {"versions": versions(), "logits": logits.tolist(), "text": TEXT, "cases": cases}
    (out / "sampling.json").write_text(json.dumps(golden, indent=1) + "\n")


def probabilities(logits: torch.Tensor, settings: dict) -> list[float]:
    settings = dict(settings)
    bias = settings.pop("logit_bias", None)
    if bias:
        settings["sequence_bias"] = [[[token], value] for token, value in bias]
    # 0 and 1 turn top-k and top-p off.
    config = GenerationConfig(do_sample=True, **({"top_k": 0, "top_p": 1.0} | settings))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, n_layer=1, n_head=1, n_embd=4, n_positions=16))
    processors = model._get_logits_processor(config, input_ids_seq_length=len(TEXT))  # noqa: SLF001
    scores = processors(torch.tensor([TEXT]), logits[None].clone())
    return torch.softmax(scores[0].double(), dim=-1).tolist()


if __name__ == "__main__":
    main()
