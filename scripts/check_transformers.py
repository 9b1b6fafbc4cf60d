#!/usr/bin/env python3
"""Checks that transformers loads the checkpoints of every model family unchanged and computes the same with them.

    pip install torch transformers
    cargo build --release
    python3 scripts/check_transformers.py

Trains a tiny model of each family for some steps, loads its checkpoint by AutoModelForCausalLM, and compares: the
class, that no weight is missing or left over, the loss over a text that `rustyflow eval` prints, and 24 tokens that
`rustyflow generate` writes at temperature 0. Run by hand; exits with 1 if a family differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

BINARY = os.environ.get("RUSTYFLOW", pathlib.Path(__file__).resolve().parent.parent / "target/release/rustyflow")
SAMPLE = pathlib.Path(__file__).resolve().parent.parent / "data/sample.txt"
T = 32
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", ["model.kind=gpt2"]),
    "gpt2 without biases, untied": ("GPT2LMHeadModel", ["model.bias=false", "model.tie_embeddings=false"]),
    "llama": ("LlamaForCausalLM", ["model.kind=llama"]),
    "llama, grouped, untied, stretched": ("LlamaForCausalLM", [
        "model.kind=llama", "model.n_kv_head=2", "model.tie_embeddings=false", "model.rope_scaling=llama3",
        "model.rope_factor=4.0", "model.rope_original_block_size=16"]),
    "mistral": ("MistralForCausalLM", ["model.kind=llama", "model.sliding_window=9", "model.n_kv_head=1"]),
    "qwen2": ("Qwen2ForCausalLM", ["model.kind=llama", "model.qkv_bias=true", "model.n_kv_head=2"]),
    "qwen3": ("Qwen3ForCausalLM", ["model.kind=qwen3", "model.head_dim=24", "model.n_kv_head=2"]),
}


def checkpoint(folder, name, settings):
    settings = ["data.tokenizer=bpe", "data.vocab_size=300", "model.n_layer=2", "model.n_head=4", "model.n_embd=48",
                f"model.block_size={T}", "train.max_steps=60", "train.learning_rate=0.01", f"run.name={name}",
                *settings]
    command = [BINARY, "train", "--quiet", "--device", "cpu", *(f"--set={s}" for s in settings)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs" / name / "checkpoints/step-000060"


def loss(model, ids, context=T):
    """The mean over windows of the context side by side, as `eval` takes it."""
    total = 0.0
    for at in range(0, len(ids) - 1, context):
        window = torch.tensor([ids[at:at + context + 1]])
        logits = model(window[:, :-1]).logits[0]
        total += torch.nn.functional.cross_entropy(logits.double(), window[0, 1:], reduction="sum").item()
    return total / (len(ids) - 1)


def rustyflow(folder, *args):
    done = subprocess.run([BINARY, *args, "--device", "cpu", "--json"], cwd=folder, check=True, capture_output=True)
    return json.loads(done.stdout)


@torch.no_grad()
def check(folder, name, expected, settings):
    path = checkpoint(folder, name, settings)
    model, told = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = SAMPLE.read_text()[-3000:]
    (folder / "text.txt").write_text(text)
    theirs, ours = loss(model, tokenizer(text)["input_ids"]), rustyflow(
        folder, "eval", "--model", path, "--text", "text.txt")["loss"]
    prompt = "One morning"
    ids = tokenizer(prompt, return_tensors="pt")
    limit = min(24, T - ids["input_ids"].shape[1])
    written = model.generate(**ids, max_new_tokens=limit, do_sample=False, top_k=None, temperature=None, top_p=None)
    there = tokenizer.decode(written[0])
    here = rustyflow(folder, "generate", "--model", path, "-p", prompt, "-n", str(limit), "-t", "0")["text"]
    checks = {
        f"is a {expected}": type(model).__name__ == expected,
        "every weight in its place": not any(told[key] for key in told),
        f"loss {ours:.6f} and {theirs:.6f}": abs(ours - theirs) < 1e-5 * theirs,
        "the same text": there in (here, prompt + here),
    }
    for what, good in checks.items():
        print(f"{name:36} {'ok    ' if good else 'FAILED'} {what}")
    return all(checks.values())


def main():
    with tempfile.TemporaryDirectory() as folder:
        good = [check(pathlib.Path(folder), name, *row) for name, row in FAMILIES.items()]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
