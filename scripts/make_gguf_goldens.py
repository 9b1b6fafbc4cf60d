#!/usr/bin/env python3
"""Makes what the tests of `src/models/gguf/` compare with, by llama.cpp's own package `gguf`.

    pip install gguf safetensors numpy
    python3 scripts/make_gguf_goldens.py

Writes tests/goldens/gguf.safetensors (numbers, and each type's bytes of them and what these stand for), and
fuzz/seeds/gguf/package.gguf (a small file with values of every type).
"""
import pathlib

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


# Read only: blocks of any bits but for the scales, which are finite. (bytes of a block, where its f16 are)
READ_ONLY = {
    "q4_1": (gguf.GGMLQuantizationType.Q4_1, 20, (0, 2)),
    "q5_0": (gguf.GGMLQuantizationType.Q5_0, 22, (0,)),
    "q5_1": (gguf.GGMLQuantizationType.Q5_1, 24, (0, 2)),
    "q4_k": (gguf.GGMLQuantizationType.Q4_K, 144, (0, 2)),
    "q5_k": (gguf.GGMLQuantizationType.Q5_K, 176, (0, 2)),
    "q6_k": (gguf.GGMLQuantizationType.Q6_K, 210, (208,)),
}


def blocks(size, halves):
    """Six blocks of random bits."""
    random = np.random.default_rng(size)
    bits = random.integers(0, 256, (6, size), dtype=np.uint8)
    for at in halves:
        bits[:, at:at + 2] = random.standard_normal((6, 1)).astype(np.float16).view(np.uint8)
    return bits


def numbers():
    """Rows of 32: of different magnitudes, with ties, of zeros, of one number alone."""
    random = np.random.default_rng(7)
    rows = [random.standard_normal(32) * scale for scale in (1, 0.02, 1e-3, 30, 1e-6, 1e4)]
    rows += [np.zeros(32), np.arange(32) - 16, np.arange(32) / 2 - 7.5, np.eye(32)[5], -np.eye(32)[31]]
    rows += [np.where(np.arange(32) % 2, 1.0, -1.0), 127 * np.linspace(-1, 1, 32), np.full(32, 0.5)]
    return np.stack(rows).astype(np.float32)


def main():
    values = numbers()
    tensors = {"values": values}
    for name, kind in TYPES.items():
        encoded = np.ascontiguousarray(quantize(values, kind))
        tensors[f"{name}.bytes"] = encoded.view(np.uint8).reshape(-1)
        tensors[f"{name}.values"] = dequantize(encoded, kind).astype(np.float32).reshape(-1)
    for name, (kind, size, halves) in READ_ONLY.items():
        encoded = blocks(size, halves)
        tensors[f"{name}.bytes"] = encoded.reshape(-1)
        tensors[f"{name}.values"] = dequantize(encoded, kind).astype(np.float32).reshape(-1)
    save_file(tensors, ROOT / "tests/goldens/gguf.safetensors")

    seeds = ROOT / "fuzz/seeds/gguf"
    seeds.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(seeds / "package.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("a.u8", 255)
    writer.add_uint32("a.u32", 7)
    writer.add_int32("a.i32", -7)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_array("a.texts", ["x", "\u2581y"])
    writer.add_array("a.i32s", [1, -2])
    writer.add_array("a.f32s", [0.5, -2.0])
    writer.add_key_value("a.u64s", [1, 2], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
    writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("blocks", quantize(np.ones((1, 32), np.float32), TYPES["q8_0"]), raw_dtype=TYPES["q8_0"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
