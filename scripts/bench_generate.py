#!/usr/bin/env python3
"""Time each new token in transformers, for the models of `rustyflow bench generate`, and those beside it.

    pip install torch transformers
    cargo build --release
    python3 scripts/bench_generate.py --device cpu
    python3 scripts/bench_generate.py --device cuda --dtype f16 --batches 1,64

Both continue random tokens greedily, with a key-value cache and random weights: transformers by `generate`, GPT-2 as it
comes from there (SDPA attention). They take turns, on the same machine at the same time; a line has milliseconds per
token and tokens per second, the median of the rounds, and the last the ratio.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM  # noqa: E402

BINARY = os.environ.get("RUSTYFLOW", str(pathlib.Path(__file__).resolve().parent.parent / "target/release/rustyflow"))


def gpt2(layers, heads, width):
    return GPT2LMHeadModel(GPT2Config(vocab_size=50304, n_positions=1024, n_layer=layers, n_head=heads, n_embd=width))


def llama(layers, heads, kv_heads, width, hidden):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=50304, max_position_embeddings=1024, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, hidden_size=width, intermediate_size=hidden))


MODELS = {
    "gpt2-124m": lambda: gpt2(12, 12, 768),
    "gpt2-350m": lambda: gpt2(24, 16, 1024),
    "llama-124m": lambda: llama(12, 12, 4, 768, 2048),
}


@torch.no_grad()
def theirs(model, batch, prompt, new):
    """Seconds per token after the first."""
    ids = torch.randint(50000, (batch, prompt), device=model.device)

    def seconds(count):
        started = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                             do_sample=False, pad_token_id=0)
        out.cpu()
        return time.perf_counter() - started

    return (seconds(new + 1) - seconds(1)) / new


def ours(case, device, dtype, batch, prompt, new):
    command = [BINARY, "bench", "generate", "--case", case, "--device", device, "--prompt-tokens", str(prompt),
               "--new-tokens", str(new + 1), "--json"]
    command += ["--batch-size", str(batch)] if batch > 1 else []
    command += ["--dtype", dtype] if dtype != "f32" else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["ms_per_token"] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="f32", choices=["f32", "f16"])
    parser.add_argument("--cases", default="gpt2-124m")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--prompts", default="1,252,504,960")
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.device} {args.dtype}")
    for case in args.cases.split(","):
        dtype = torch.float16 if args.dtype == "f16" else torch.float32
        model = MODELS[case]().to(args.device, dtype).eval()
        device = "gpu" if args.device == "cuda" else "cpu"
        for batch in numbers(args.batches):
            for prompt in numbers(args.prompts):
                new = args.new_tokens
                theirs(model, batch, prompt, 2)  # what is done once
                rounds = [(theirs(model, batch, prompt, new), ours(case, device, args.dtype, batch, prompt, new))
                          for _ in range(args.rounds)]
                t, o = (statistics.median(times) for times in zip(*rounds))
                print(f"{case} batch {batch} prompt {prompt}: transformers {1e3 * t:.3f} ms, {batch / t:.0f} tokens/s; "
                      f"rustyflow {1e3 * o:.3f} ms, {batch / o:.0f} tokens/s: {t / o:.2f} x", flush=True)


if __name__ == "__main__":
    main()
