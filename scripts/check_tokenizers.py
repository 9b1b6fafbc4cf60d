#!/usr/bin/env python3
"""Checks that transformers reads the tokenizer of a checkpoint as rustyflow does: the same ids, the same text.

    pip install transformers
    cargo build --release --examples --bins
    python3 scripts/check_tokenizers.py [DATA_DIR]

Trains a tiny model for two steps with each kind of tokenizer (`gpt2` if DATA_DIR, default `data`, has it); loads the
checkpoint by AutoTokenizer, and compares on awkward text what it makes with what `examples/encode.rs` prints. Also that
no id lies outside of the model, and that transformers adds no token of its own. Run by hand; exits with 1 if a kind
differs.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from transformers import AutoTokenizer, GenerationConfig  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY, ENCODE = ROOT / "target/release/rustyflow", ROOT / "target/release/examples/encode"
AWKWARD = (
    "I'll say it's 1984's \"best\"  book,\n\n\tisn't it?   \r\n don't stop  now  \nÀ la carte: 日本語 и русский, naïve "
    "x=1_000;  'Tis 'S o'clock's <unk> x<unk>y <eos> <|endoftext|> , . ! ?  \n"
)


def checkpoint(folder, kind, data_dir):
    """Two steps on text that holds every character of the awkward one."""
    (folder / "corpus.txt").write_text((ROOT / "data/sample.txt").read_text()[:100_000] + AWKWARD)
    settings = ["data.corpus=corpus.txt", f"data.tokenizer={kind}", "data.vocab_size=500", "model.n_layer=1",
                "model.n_head=1", "model.n_embd=16", "model.block_size=16", "train.max_steps=2", "run.name=" + kind]
    command = [BINARY, "train", "--device", "cpu", "--data-dir", data_dir, *(f"--set={s}" for s in settings)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs" / kind / "checkpoints/step-000002"


def main():
    data_dir = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "data").resolve()
    kinds = ["char", "word", "bpe"] + (["gpt2"] if (data_dir / "gpt2/vocab.json").is_file() else [])
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = checkpoint(pathlib.Path(folder), kind, data_dir)
            encoded = subprocess.run([ENCODE, path], input=AWKWARD.encode(), capture_output=True, check=True)
            ours = json.loads(encoded.stdout)
            theirs = AutoTokenizer.from_pretrained(path)
            ids = theirs(AWKWARD)["input_ids"]
            rows = json.loads((path / "config.json").read_text())["vocab_size"]
            GenerationConfig.from_pretrained(path)
            checks = {
                "ids": ids == ours["ids"],
                "text": theirs.decode(ids) == ours["text"],
                "no id outside of the model": max(ids) < rows and len(theirs) <= rows,
                "lossless": kind == "word" or ours["text"] == AWKWARD,
            }
            failed |= not all(checks.values())
            print(f"{kind:5} {type(theirs).__name__}, {len(ids)} ids below {rows}:",
                  ", ".join(f"{name} {'ok' if good else 'DIFFERS'}" for name, good in checks.items()))
    sys.exit(failed)


if __name__ == "__main__":
    main()
