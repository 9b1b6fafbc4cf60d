"""Runs, trained models and measurements."""

from __future__ import annotations

import json
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Union, overload

from ._rustyflow import Tokenizer, _bench_ops, _bench_step, _config_keys, _Model, _train

PathLike = Union[str, "os.PathLike[str]"]
Event = dict[str, Any]
Callback = Callable[[Event], Any]


def _assignments(overrides: dict[str, Any]) -> list[str]:
    """`section.key=value` of each override: of "section.key", a section's dict, or a key that one section alone has."""
    keys = _config_keys()
    sections = {key.split(".")[0] for key in keys}
    found: list[tuple[str, Any]] = []
    for name, value in overrides.items():
        if name in sections and isinstance(value, dict):
            found += [(f"{name}.{key}", its) for key, its in value.items()]
            continue
        full = [key for key in keys if key == name or key.split(".", 1)[1] == name]
        if len(full) > 1:
            raise ValueError(f"{name} is a key of several sections: say {' or '.join(full)}")
        # An unknown name is refused by the library, which knows the nearest.
        found.append((full[0] if full else name, value))
    text = {True: "true", False: "false"}
    return [
        f"{key}={text[value] if isinstance(value, bool) else value if isinstance(value, str) else json.dumps(value)}"
        for key, value in found
    ]


def _show(event: Event) -> None:
    """Prints what a person wants to see of a run."""
    kind = event["kind"]
    if kind == "note":
        print(event["text"])
    elif kind == "start":
        print(f"{event['folder']}: {event['parameters']} parameters on {event['device']}, {event['total_steps']} steps")
    elif kind == "train":
        # Unknown before the second step is finished.
        speed = "-" if event["tokens_per_s"] is None else f"{event['tokens_per_s']:.0f}"
        print(f"step {event['step']}  loss {event['loss']:.4f}  {speed} tokens/s")
    elif kind == "eval":
        print(f"step {event['step']}  {event['split']} loss {event['loss']:.4f}")
    elif kind == "sample":
        print(event["text"])


def train(
    config: PathLike | None = None,
    callback: Callback | None = None,
    *,
    device: str | None = None,
    resume: PathLike | None = None,
    data_dir: PathLike = "data",
    **overrides: Any,
) -> Event:
    """Trains as a configuration file says, or without one a small model on the sample corpus; returns the last event.

    `callback` gets every event as a dict with "kind": "note", "start", "train" (a logged step), "eval", "checkpoint",
    "early_sample", "epoch", "rollback", "sample" and "end"; without one, progress is printed. An exception in it, or
    Ctrl-C, ends the run after the step under way, saves it, and is raised; `resume` goes on with its folder, or with
    "auto" with the newest that is not finished.

    `overrides` are keys of the configuration: `max_steps=100`, `train={"batch_size": 8}`, `**{"model.n_layer": 2}`.
    The same configuration trains the same model as the command `rustyflow train`, to the byte.
    """
    if device is not None:
        overrides["device.kind"] = device
    path = None if config is None else Path(config)
    going_on = None if resume is None else Path(resume)
    return _train(path, _assignments(overrides), going_on, Path(data_dir), callback or _show)


class Model(_Model):
    """A trained language model and its tokenizer: what `load` returns."""

    @overload
    def generate(
        self, prompt: str = "", *, stream: Literal[False] = False, echo: bool = True, **settings: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: str = "", *, stream: Literal[True], echo: bool = True, **settings: Any
    ) -> Iterator[str]: ...

    def generate(
        self, prompt: str = "", *, stream: bool = False, echo: bool = True, **settings: Any
    ) -> str | Iterator[str]:
        """Continues a prompt; returns the text, with the prompt before it if `echo`, or with `stream` its pieces as
        they come.

        Settings are max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, stop (a list of texts) and
        seed; those left out are the run's.
        """
        if stream:
            return self._stream(prompt, settings, echo)
        return self._generate(prompt, settings, echo, None)

    def _stream(self, prompt: str, settings: dict[str, Any], echo: bool) -> Iterator[str]:
        pieces: queue.Queue[str | BaseException | None] = queue.Queue()
        closed = threading.Event()

        def take(piece: str) -> bool:
            pieces.put(piece)
            return closed.is_set()

        def write() -> None:
            try:
                self._generate(prompt, settings, echo, take)
                pieces.put(None)
            except BaseException as error:  # Raised where the pieces are read.
                pieces.put(error)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            closed.set()
            writer.join()

    def eval(
        self, text: str | os.PathLike[str], context: int | None = None, stride: int | None = None, batch_size: int = 16
    ) -> dict[str, Any]:
        """How well it predicts a text, or the text in a file or folder (a `Path`): a dict with "loss" in nats per
        token, "perplexity", "bits_per_byte" and more.
        """
        if not isinstance(text, str):
            return self._evaluate(os.fspath(text), context, stride, batch_size)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text.txt"
            path.write_bytes(text.encode())
            return self._evaluate(str(path), context, stride, batch_size)


def load(path: PathLike, device: str = "auto", dtype: str = "f32") -> Model:
    """The model in a run's folder, a checkpoint's, one of Hugging Face's, or that was fetched by this name.

    `device` "auto" is the first hardware GPU, or the CPU where there is none. With `dtype` "f16" a GPU keeps the
    weights as 16-bit floats.
    """
    return Model(Path(path), device, dtype)


@overload
def bench(what: str | Sequence[str] = (), *, device: str = "cpu", sizes: str | None = None) -> list[dict[str, Any]]: ...
@overload
def bench(*, step: str, device: str = "cpu", steps: int = 10, rounds: int = 3) -> dict[str, Any]: ...


def bench(
    what: str | Sequence[str] = (),
    *,
    step: str | None = None,
    device: str = "cpu",
    sizes: str | None = None,
    steps: int = 10,
    rounds: int = 3,
) -> list[dict[str, Any]] | dict[str, Any]:
    """Times ops (`bench("matmul")`, all without a name) on a device: a dict for each kernel, with "op", "shape",
    "ms", "tflops", "gb_per_s" and "share" of what the device does at best. With `step="cpu-small"` a training step.
    """
    if step is not None:
        return _bench_step(step, steps, rounds, device)
    return _bench_ops([what] if isinstance(what, str) else list(what), sizes, device)


__all__ = ["Model", "Tokenizer", "bench", "load", "train"]
