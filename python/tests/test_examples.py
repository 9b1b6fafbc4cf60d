"""The examples run, learn, and pass `mypy --strict`; so do the lines of README.md."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_moons_come_apart(device):
    assert load("moons").main(device) >= 99


def test_letters_are_learnt():
    makemore = load("makemore_mlp")
    assert makemore.examples_of(["ab"])[0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]
    # Evenly drawn letters cost ln 27 = 3.30.
    assert makemore.main(steps=400) < 2.6


def test_the_readme_trains(gpu):
    text = (FOLDER / "README.md").read_text()
    program = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    names = {}
    exec(program.replace('"gpu"', repr(gpu)).replace("range(500)", "range(60)"), names)
    assert names["loss"].item() < 0.3


def test_the_types_are_strict():
    pytest.importorskip("mypy")
    files = [str(path) for path in sorted((FOLDER / "examples").glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, *files]
    result = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER / "examples")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("RUSTYFLOW_NOTEBOOK_STEPS", "8")
    # A model so small that it takes seconds without optimization.
    small = {"MODEL__N_LAYER": 1, "MODEL__N_EMBD": 16, "MODEL__N_HEAD": 2, "MODEL__BLOCK_SIZE": 16}
    small |= {"DATA__TOKENIZER": "char", "TRAIN__BATCH_SIZE": 4, "TRAIN__EVAL_BATCHES": 2}
    for key, value in small.items():
        monkeypatch.setenv(f"RUSTYFLOW_{key}", str(value))
    monkeypatch.setenv("RUSTYFLOW_CACHE_DIR", str(tmp_path / "cache"))
    notebook = nbformat.read(FOLDER / "examples" / "live_loss.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("'steps': 8" in output.get("data", {}).get("text/plain", "") for output in outputs)
