#!/usr/bin/env python3
"""Time steps of LoRA in transformers with PEFT, beside `rustyflow bench lora`.

    pip install torch transformers peft           # and bitsandbytes for --base-dtype nf4
    cargo build --release
    python3 scripts/bench_peft.py --model Qwen/Qwen3-0.6B --device cuda --batch-size 4
    python3 scripts/bench_peft.py --model FOLDER --device cpu --context 128

Both train adapters of rank r on all linear layers of the same model, on random tokens: SDPA attention, AdamW (fused on
CUDA), gradients clipped to norm 1; PEFT in bf16 on CUDA, rustyflow in mixed precision with a frozen f16 base, and both
in f32 on a CPU. They take turns on the same machine; a line has milliseconds per step, tokens per second and the
largest GPU memory, the median of the rounds, and the last the ratio. `--compile` adds torch.compile.
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
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training  # noqa: E402
from transformers import AutoModelForCausalLM, BitsAndBytesConfig  # noqa: E402

BINARY = os.environ.get("RUSTYFLOW", str(pathlib.Path(__file__).resolve().parent.parent / "target/release/rustyflow"))


def theirs(args, dtype):
    """A function that times a round of steps, in seconds per step."""
    quantized = None
    if args.base_dtype == "nf4":
        quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                       bnb_4bit_compute_dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=dtype, attn_implementation="sdpa", quantization_config=quantized)
    model = model if quantized else model.to(args.device)
    if quantized:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=args.recompute)
    elif args.recompute:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    config = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=args.device != "cpu")
    shape = (args.batch_size, args.context)
    ids = torch.randint(model.config.vocab_size, shape, device=args.device)
    forward = torch.compile(model) if args.compile else model

    def step():
        loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def round_of_steps():
        started = time.perf_counter()
        for _ in range(args.steps):
            step()
        if args.device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / args.steps

    round_of_steps()
    return round_of_steps


def ours(args):
    """The same, and the memory of the last round in GiB."""
    precision, base = ("f32", "f32") if args.device == "cpu" else ("mixed", "f16")
    command = [
        BINARY, "bench", "lora", "--json", "--model", args.model, "--rank", str(args.rank), "--precision", precision,
        "--base-dtype", "nf4" if args.base_dtype == "nf4" else base, "--batch-size", str(args.batch_size),
        "--context", str(args.context), "--steps", str(args.steps), "--rounds", "1",
        "--recompute", "block" if args.recompute else "none", "--device", "cpu" if args.device == "cpu" else "gpu"]
    line = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return line["ms_per_step"] / 1e3, line["gib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder in transformers' layout")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--base-dtype", choices=["16 bits", "nf4"], default="16 bits")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--recompute", action="store_true", help="recompute blocks (gradient checkpointing)")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    time_theirs = theirs(args, torch.float32 if args.device == "cpu" else torch.bfloat16)
    seconds = {"PEFT": [], "rustyflow": []}
    for _ in range(args.rounds):
        own, gib = ours(args)
        seconds["rustyflow"].append(own)
        seconds["PEFT"].append(time_theirs())
    memory = {"rustyflow": gib}
    if args.device != "cpu":
        memory["PEFT"] = torch.cuda.max_memory_allocated() / 2**30
    medians = {name: statistics.median(all_of_them) for name, all_of_them in seconds.items()}
    tokens = args.batch_size * args.context
    for name, median in medians.items():
        more = f", {memory[name]:.2f} GiB" if name in memory else ""
        print(f"{name}: {1e3 * median:.1f} ms/step, {tokens / median:,.0f} tokens/s{more}")
    print(f"rustyflow is {medians['PEFT'] / medians['rustyflow']:.2f} times as fast")


if __name__ == "__main__":
    main()
