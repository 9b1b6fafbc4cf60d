"""Runs, loaded models and measurements, beside the command's."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rustyflow as rf

TINY = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16},
    "data.corpus": "sample",
    "data.tokenizer": "char",
    "batch_size": 4,
    "max_steps": 6,
    "log": {"every": 2, "samples": False},
    "eval_every": 3,
    "train.eval_batches": 2,
    "generate": {"max_new_tokens": 8},
    "threads": 2,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder, and a cache, of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUSTYFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def train(**more):
    events = []
    more.setdefault("callback", events.append)
    return rf.train(device=more.pop("device", "cpu"), **{**TINY, **more}), events


def test_a_run_tells_its_events_and_leaves_a_model(folder):
    summary, events = train(**{"run.name": "mine"})
    kinds = [event["kind"] for event in events]
    assert {"start", "train", "eval", "checkpoint", "sample", "end"} <= set(kinds)
    assert summary["steps"] == 6 and not summary["interrupted"] and summary == events[-1]
    assert [event["step"] for event in events if event["kind"] == "train"] == [1, 2, 4, 6]
    assert Path(summary["folder"]).name == "mine"

    model = rf.load(summary["folder"], device="cpu")
    assert model.config["n_embd"] == 16 and model.device == "cpu" and "mine" in repr(model)
    ids = model.tokenizer.encode("the sun")
    assert model.tokenizer.decode(ids) == "the sun" and len(ids) == 7 <= model.tokenizer.vocab_size
    logits = model.logits(ids)
    assert logits.shape == (7, model.tokenizer.vocab_size) and not logits.requires_grad
    assert np.allclose(model.logits(rf.tensor([ids, ids])).numpy()[1], logits.numpy(), atol=1e-5)

    text = model.generate("the", temperature=0.7, seed=3, max_new_tokens=12)
    assert text.startswith("the") and len(text) == 15
    assert "".join(model.generate("the", stream=True, temperature=0.7, seed=3, max_new_tokens=12)) == text
    assert model.generate("the", echo=False, temperature=0.7, seed=3, max_new_tokens=12) == text[3:]
    stream = model.generate("the", stream=True, max_new_tokens=10**6)
    assert next(stream)
    stream.close()  # Ends the thread that writes.

    words = "the sun is up and the day is long"
    result = model.eval(words)
    (folder / "text.txt").write_text(words)
    assert result == model.eval(folder / "text.txt")
    # The mean over predicted letters, in windows of the context.
    ids = model.tokenizer.encode(words)[:17]
    log_p = model.logits(ids[:16]).log_softmax().numpy()
    first = -np.mean([log_p[i, ids[i + 1]] for i in range(16)])
    assert abs(model.eval(words[:17])["loss"] - first) < 1e-4 and result["tokens"] == len(words) - 1


@pytest.mark.slow
def test_a_model_from_python_and_one_from_the_command_are_the_same_bytes(folder):
    binary = os.environ.get("RUSTYFLOW_BINARY")
    if not binary:
        pytest.skip("RUSTYFLOW_BINARY does not name the command")
    config = folder / "tiny.toml"
    lines = ["[run]", 'name = "NAME"', "[device]", 'kind = "cpu"', "threads = 2"]
    lines += ["[model]", *(f"{key} = {value}" for key, value in TINY["model"].items())]
    lines += ["[data]", 'corpus = "sample"', 'tokenizer = "char"', "[train]", "batch_size = 4", "max_steps = 6"]
    config.write_text("\n".join(lines) + "\n")
    rf.train(config, print, **{"run.name": "python"})
    subprocess.run([binary, "train", config, "--name", "command", "--quiet"], check=True, capture_output=True)
    names = ["model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"]
    checkpoint = "checkpoints/step-000006"
    for name in names:
        python, command = (folder / "runs" / run / checkpoint / name for run in ("python", "command"))
        assert python.read_bytes() == command.read_bytes(), name


def test_an_exception_in_a_callback_ends_the_run_and_saves_it(folder):
    seen = []

    def callback(event):
        seen.append(event)
        if event["kind"] == "train":
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        train(callback=callback, **{"run.name": "broken"})
    assert [event["kind"] for event in seen].count("train") == 1
    run = folder / "runs" / "broken"
    assert any(run.glob("checkpoints/step-*")) and not (run / "finished").exists()
    summary = rf.train(resume=run, callback=seen.append)
    assert summary["steps"] == 6 and (run / "finished").exists()


def test_ctrl_c_saves_and_raises(folder):
    program = f"""
import os, signal, rustyflow as rf
def callback(event):
    print(event["kind"], flush=True)
    if event["kind"] == "train":
        os.kill(os.getpid(), signal.SIGINT)
try:
    rf.train(callback=callback, device="cpu", **{TINY!r}, **{{"run.name": "stopped"}})
except KeyboardInterrupt:
    print("interrupted")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stdout.endswith("interrupted\n"), result
    assert any((folder / "runs/stopped").glob("checkpoints/step-*")) and result.stdout.count("train\n") == 1


def test_what_makes_no_run_is_refused(folder):
    for wrong, message in [
        ({"steps": 3}, "steps"),
        ({"n_layer": 0}, "n_layer"),
        ({"train": {"batch_sise": 3}}, "batch_size"),
        ({"data.corpus": "no-such-file"}, "no-such-file"),
        ({"device": "tpu"}, "tpu"),
        ({"seed": 3}, "several sections"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(**wrong)
    with pytest.raises(OSError):
        rf.train("none.toml")
    with pytest.raises(ValueError, match="none"):
        rf.load("none")
    with pytest.raises(ValueError, match="dtype"):
        rf.load("none", dtype="f64")
    assert not (folder / "runs").exists()


def test_wrong_settings_of_a_model_are_refused(folder):
    summary, _ = train()
    model = rf.load(summary["folder"], device="cpu")
    for settings in [{"temperature": -1.0}, {"top_q": 1}, {"top_p": 0.0}]:
        with pytest.raises(ValueError):
            model.generate("a", **settings)
    with pytest.raises(ValueError):
        model.generate("\u2603")
    with pytest.raises(ValueError):
        list(model.generate("\u2603", stream=True))
    for ids in [[], [10**6], [[[1]]]]:
        with pytest.raises(ValueError):
            model.logits(ids)
    with pytest.raises(ValueError, match="context"):
        model.eval("the sun", context=1000)
    with pytest.raises(KeyError), rf.no_grad():
        model._generate("a", {}, True, lambda piece: {}[piece])


def test_progress_is_printed_without_a_callback(folder, capsys):
    rf.train(device="cpu", **TINY)
    printed = capsys.readouterr().out
    assert "step 6  loss" in printed and "validation loss" in printed


def test_a_run_trains_on_a_gpu_too(folder, gpu):
    summary, events = train(device=gpu, allow_software=True, max_steps=2)
    assert gpu in json.dumps(events[0]) or summary["steps"] == 2
    assert rf.load(summary["folder"], device=gpu).generate("the", max_new_tokens=3).startswith("the")


def test_ops_and_steps_are_timed():
    rows = rf.bench("softmax", sizes="small")
    assert rows and all(row["op"] == "softmax" and row["ms"] > 0 for row in rows)
    with pytest.raises(ValueError, match="no-such-op"):
        rf.bench("no-such-op")
    with pytest.raises(ValueError, match="cpu-small"):
        rf.bench(step="no-such-case")


def test_signals_keep_their_handlers(folder):
    before = signal.getsignal(signal.SIGINT)
    train(max_steps=1)
    assert signal.getsignal(signal.SIGINT) is before
