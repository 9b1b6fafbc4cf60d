#!/usr/bin/env python3
"""Checks that PEFT loads the adapters that `rustyflow train` writes, and computes with them what rustyflow does.

    pip install torch transformers peft
    cargo build --release
    python3 scripts/check_lora.py

Trains a small model of each family, then adapters beside it on another text, and all of its weights on that text for
comparison. Compares PEFT's logits with those of the folder that `rustyflow merge` writes, in transformers, and PEFT's
loss over a text with that of `rustyflow eval`; and tells loss, memory and speed of both ways to go on. Run by hand;
exits with 1 if PEFT and rustyflow differ.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
from check_transformers import BINARY, SAMPLE, T, loss, rustyflow  # noqa: E402
from peft import PeftModel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

SHAPE = ["data.tokenizer=bpe", "data.vocab_size=300", "model.n_layer=2", "model.n_head=4", "model.n_embd=48",
         f"model.block_size={T}", "train.learning_rate=0.01"]
# Name: the model, and what is adapted.
CASES = {
    "gpt2, all": (["model.kind=gpt2"], ["lora.rank=3"]),
    "gpt2, a bare c_proj": (["model.bias=false"], ["lora.rank=2", 'lora.targets=["c_proj"]', "lora.alpha=5"]),
    "llama, q and v": (["model.kind=llama", "model.n_kv_head=2"], ["lora.rank=4", 'lora.targets=["q_proj", "v_proj"]']),
    "qwen3, all": (["model.kind=qwen3", "model.head_dim=24", "model.n_kv_head=1"], ["lora.rank=2", "lora.alpha=1"]),
    "gpt2, DoRA": (["model.kind=gpt2"], ["lora.rank=3", "lora.dora=true"]),
    "llama, DoRA of q and down, rsLoRA": (["model.kind=llama", "model.n_kv_head=2"],
                                          ["lora.rank=4", 'lora.targets=["q_proj", "down_proj"]', "lora.dora=true",
                                           "lora.rslora=true"]),
    "qwen2, up and o": (["model.kind=llama", "model.qkv_bias=true"],
                        ["lora.rank=5", 'lora.targets=["mlp.up_proj", "o_proj"]']),
    "llama with a head of its own, all of lm_head and norm": (
        ["model.kind=llama", "model.n_kv_head=2", "model.tie_embeddings=false"],
        ["lora.rank=3", 'lora.modules_to_save=["lm_head", "norm"]']),
    "llama, all of embed_tokens": (["model.kind=llama"], ["lora.rank=3", 'lora.modules_to_save=["embed_tokens"]']),
    "gpt2 without biases, all of wte, c_fc and ln_f": (
        ["model.bias=false"],
        ["lora.rank=2", 'lora.targets=["c_attn"]', 'lora.modules_to_save=["wte", "c_fc", "ln_f"]']),
}


def train(folder, name, *settings):
    command = [BINARY, "train", "--json", "--device", "cpu", "--set", f"run.name={name}", "--set", "log.samples=false",
               *(part for setting in settings for part in ("--set", setting))]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return next(event for event in reversed(events) if event["kind"] == "end")


@torch.no_grad()
def check(folder, model, adapters):
    train(folder, "base", *SHAPE, *model, "train.max_steps=60")
    (folder / "other.txt").write_text((SAMPLE.read_text()[:40_000]).upper())
    tune = ["model.init=runs/base", "data.corpus=other.txt", "train.max_steps=60", "train.learning_rate=0.01"]
    ends = {name: train(folder, name, *tune, *settings) for name, settings in
            {"lora": adapters, "f16": [*adapters, "lora.base_dtype=f16"], "full": []}.items()}
    path = next((folder / "runs/lora/checkpoints").glob("step-*60"))
    base = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), path).eval()
    subprocess.run([BINARY, "merge", path, "--output", "merged"], cwd=folder, check=True, capture_output=True)
    merged = AutoModelForCausalLM.from_pretrained(folder / "merged").eval()
    text = (folder / "other.txt").read_text()[-3000:]
    (folder / "text.txt").write_text(text)
    ids = AutoTokenizer.from_pretrained(path)(text)["input_ids"]
    batch = torch.tensor(ids[:8 * T]).view(8, T)
    theirs, ours = peft(batch).logits, merged(batch).logits
    with peft.disable_adapter():
        without = peft(batch).logits
    difference = ((theirs - ours).abs().max() / theirs.abs().max()).item()
    effect = ((theirs - without).abs().max() / theirs.abs().max()).item()
    own = rustyflow(folder, "eval", "--model", path, "--text", "text.txt")["loss"]
    its = loss(peft, ids)
    told = ", ".join(f"{name} {end['validation']['loss']:.4f} ({end['peak_memory_bytes'] / 2**20:.1f} MiB, "
                     f"{end['tokens_per_s']:.0f} tokens/s)" for name, end in ends.items())
    print(f"  logits differ by {difference:.1e} (without adapters {effect:.1e}), losses {its:.6f} {own:.6f}; {told}")
    return difference < 1e-5 and effect > 0.01 and abs(its - own) < 1e-5


def main():
    wrong = []
    for name, (model, adapters) in CASES.items():
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            if not check(pathlib.Path(folder), model, adapters):
                wrong.append(name)
    print(f"{len(CASES) - len(wrong)} of {len(CASES)} agree" + "".join(f"; not {name}" for name in wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
