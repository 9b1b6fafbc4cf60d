#!/usr/bin/env python3
"""Checks that llama.cpp computes with exported GGUF files what rustyflow computes.

    pip install gguf llama-cpp-python numpy
    cargo build --release --examples --bins
    python3 scripts/check_gguf.py TEXT RUN [RUN ..]

Exports the best checkpoint of each run as f32, f16, q8_0 and q4_0, and compares on the last 2,000 tokens of TEXT, in
windows of the model's context:
- the package `gguf` reads the file;
- llama.cpp's token ids of the whole TEXT are rustyflow's, and, of bytes, those of an awkward one;
- f32, with a cache of f32: the same 100 tokens follow a prompt at temperature 0;
- f16: the same token is the likeliest at 99% of positions;
- the perplexity of each type.
Run by hand; exits with 1 if something differs. RUSTYFLOW and RUSTYFLOW_EXAMPLES name other builds.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = os.environ.get("RUSTYFLOW", ROOT / "target/release/rustyflow")
EXAMPLES = pathlib.Path(os.environ.get("RUSTYFLOW_EXAMPLES", ROOT / "target/release/examples"))
POSITIONS, GREEDY, F32, F16 = 2000, 100, 0, 1
AWKWARD = (
    "I'll say it's 1984's \"best\"  book,\n\n\tisn't it?   \r\n don't stop  now  \nÀ la carte: 日本語 и русский, naïve "
    "x=1_000;  'Tis 'S o'clock's <unk> x<unk>y <eos> , . ! ?  \n"
)


def call(*command, text=None):
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, input=text)
    return done.stdout


def load(path, context, cache):
    return llama_cpp.Llama(str(path), n_ctx=context, n_batch=context, n_ubatch=context, logits_all=True, type_k=cache,
                           type_v=cache, flash_attn=False, n_threads=1, n_threads_batch=1, verbose=False)


def windows(ids, context, logits_of):
    """The likeliest token at each position, and the mean cross-entropy, in windows side by side."""
    top, total, count = [], 0.0, 0
    for at in range(0, len(ids), context):
        window = ids[at:at + context]
        logits = logits_of(window).astype(np.float64)
        top += logits.argmax(axis=1).tolist()
        peak = logits.max(axis=1)
        log_sum = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
        losses = log_sum[:-1] - logits[np.arange(len(window) - 1), window[1:]]
        total, count = total + losses.sum(), count + len(losses)
    return top, total / count


def theirs_predict(model, ids, context, rows):
    def logits(window):
        model.reset()
        model.eval(window)
        return np.asarray(model.scores[:len(window)])[:, :rows]
    return windows(ids, context, logits)


def ours_predict(checkpoint, ids, context, rows):
    def logits(window):
        text = " ".join(map(str, window)).encode()
        done = subprocess.run([EXAMPLES / "logits", checkpoint], check=True, capture_output=True, input=text)
        return np.frombuffer(done.stdout, np.float32).reshape(len(window), -1)[:, :rows]
    return windows(ids, context, logits)


def greedy(model, prompt, rows):
    ids, model_ids = [], list(prompt)
    model.reset()
    model.eval(model_ids)
    for _ in range(GREEDY):
        ids.append(int(np.argmax(model.scores[model.n_tokens - 1][:rows])))
        model.eval(ids[-1:])
    return model.detokenize(ids).decode("utf-8", "replace")


def ids_of(checkpoint, model, text):
    """Those of rustyflow and of llama.cpp."""
    done = subprocess.run([EXAMPLES / "encode", checkpoint], check=True, capture_output=True, input=text.encode())
    return json.loads(done.stdout)["ids"], model.tokenize(text.encode(), add_bos=False, special=True)


def check(run, text, folder):
    checkpoint = pathlib.Path(run)
    if (checkpoint / "best").is_file():
        checkpoint = checkpoint / "checkpoints" / (checkpoint / "best").read_text().strip()
    config = json.loads((checkpoint / "config.json").read_text())
    context = config.get("n_positions") or config["max_position_embeddings"]
    files = {}
    for dtype in ("f32", "f16", "q8_0", "q4_0"):
        files[dtype] = folder / f"{checkpoint.parent.parent.name}-{dtype}.gguf"
        told = call(BINARY, "export", checkpoint, "-o", files[dtype], "--format", "gguf", "--dtype", dtype, "--device",
                    "cpu", "--text", text, "--json")
        assert json.loads(told)["files"] == [str(files[dtype])]
        assert len(gguf.GGUFReader(files[dtype]).tensors) > 0
    model = load(files["f32"], context, F32)
    ours, theirs = ids_of(checkpoint, model, text.read_text())
    awkward = True
    if model.metadata["tokenizer.ggml.model"] == "gpt2":
        awkward = len(set(map(tuple, ids_of(checkpoint, model, AWKWARD)))) == 1
    ids = ours[-POSITIONS:]
    # Neither rows without a token nor the end that was added are ever drawn.
    rows = len(json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"])
    distinct = np.mean([len(set(ids[at:at + 200])) for at in range(0, POSITIONS, 200)])
    here, loss = ours_predict(checkpoint, ids, context, rows)
    prompt = ids[:32]
    written = json.loads(call(BINARY, "generate", "--model", checkpoint, "--device", "cpu", "-n", GREEDY, "-t", "0",
                              "--json", "-p", model.detokenize(prompt).decode()))["text"]
    continued = greedy(model, prompt, rows)
    top, losses = {}, {}
    for dtype in files:
        cache = F32 if dtype == "f32" else F16
        top[dtype], losses[dtype] = theirs_predict(load(files[dtype], context, cache), ids, context, rows)
    same = {dtype: np.mean(np.array(top[dtype]) == np.array(here)) for dtype in files}
    checks = {
        f"{len(ours)} token ids": theirs == ours and awkward,
        f"{GREEDY} greedy tokens in f32": written.endswith(continued) and len(continued) >= GREEDY // 2,
        f"likeliest token in f16 at {100 * same['f16']:.2f}% of {POSITIONS}": same["f16"] >= 0.99,
        f"loss {loss:.5f} and {losses['f32']:.5f} in f32": abs(loss - losses["f32"]) < 1e-3,
    }
    name = checkpoint.parent.parent.name
    for what, good in checks.items():
        print(f"{name:14} {'ok    ' if good else 'FAILED'} {what}")
    perplexities = ", ".join(f"{dtype} {math.exp(loss):.4f}" for dtype, loss in losses.items())
    print(f"{name:14} perplexity: ours {math.exp(loss):.4f}, {perplexities}")
    print(f"{name:14} likeliest token: f32 {100 * same['f32']:.2f}%, q8_0 {100 * same['q8_0']:.2f}%, q4_0 "
          f"{100 * same['q4_0']:.2f}%; {distinct:.0f} distinct tokens in 200", flush=True)
    return all(checks.values())


def main():
    text = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        good = [check(run, text, pathlib.Path(folder)) for run in sys.argv[2:]]
    sys.exit(not (good and all(good)))


if __name__ == "__main__":
    main()
