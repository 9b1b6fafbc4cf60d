#!/usr/bin/env python3
"""Time a training step in PyTorch, for the models and batches of `rustyflow bench step`.

    python scripts/bench_torch.py --cases gpt2-124m,llama-124m --modes fp32,tf32,bf16,bf16-compile
    rustyflow bench step --case gpt2-124m --case llama-124m --device gpu

Both are written as a PyTorch user would today: `scaled_dot_product_attention`, fused AdamW, the gradient's norm clipped
at 1. Run it on the same machine at the same time: a line has milliseconds per step (the median of five rounds), tokens
per second, and the memory that PyTorch's allocator held at most.

fp32 multiplies in float32, tf32 lets matmuls use TensorFloat-32, bf16 is autocast; -compile adds `torch.compile`.
"""

import argparse
import contextlib
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Vocabulary, context T, layers, heads, width C, batch B; of a Llama heads of keys, width of the feed-forward layer.
CASES = {
    "seed": ((33280, 64, 2, 4, 128, 32), None),
    "shakespeare-char": ((65, 256, 6, 6, 384, 64), None),
    "gpt2-124m": ((50304, 1024, 12, 12, 768, 16), None),
    "gpt2-50257": ((50257, 1024, 12, 12, 768, 16), None),
    "gpt2-350m": ((50304, 1024, 24, 16, 1024, 8), None),
    "llama-124m": ((50304, 1024, 12, 12, 768, 16), (4, 2048)),
    "cpu-small": ((65, 64, 4, 4, 128, 12), None),
    "cpu-seed": ((8192, 64, 2, 4, 128, 32), None),
    "cpu-llama": ((8192, 64, 2, 4, 128, 32), (2, 384)),
}


class Gpt2Block(nn.Module):
    def __init__(self, c: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.attn_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.mlp_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x: Tensor, _: tuple[Tensor, Tensor] | None) -> Tensor:  # (B, T, C)
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, c: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, c // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(c, eps=1e-5), nn.RMSNorm(c, eps=1e-5)
        self.qkv = nn.Linear(c, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.o_proj = nn.Linear(c, c, bias=False)
        self.gate_up, self.down_proj = nn.Linear(c, 2 * hidden, bias=False), nn.Linear(hidden, c, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:  # (B, T, C)
        b, t, c = x.shape
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.view(b, t, -1, self.head_dim).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(sizes, dim=-1))
        q, k = rotate(q, *rotary), rotate(k, *rotary)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads < self.heads)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, c))
        gate, up = self.gate_up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class Model(nn.Module):
    def __init__(self, case: str) -> None:
        super().__init__()
        (vocab, t, layers, heads, c, _), llama = CASES[case]
        self.wte = nn.Embedding(vocab, c)
        if llama is None:
            self.wpe, self.norm = nn.Embedding(t, c), nn.LayerNorm(c)
            self.blocks = nn.ModuleList(Gpt2Block(c, heads) for _ in range(layers))
        else:
            self.wpe, self.norm = None, nn.RMSNorm(c, eps=1e-5)
            self.blocks = nn.ModuleList(LlamaBlock(c, heads, *llama) for _ in range(layers))
            angles = torch.outer(torch.arange(t), 10000 ** (-torch.arange(0, c // heads, 2) / (c // heads)))
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if "proj" in name else 1))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x, rotary = self.wte(ids), None
        if self.wpe is not None:
            x = x + self.wpe.weight
        else:
            rotary = (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, rotary)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def time_case(case: str, mode: str, device: str, steps: int) -> None:
    (vocab, t, _, _, _, b), _ = CASES[case]
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = not mode.startswith("fp32")
    model = Model(case).to(device)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    compute = torch.compile(model) if mode.endswith("-compile") else model
    autocast = torch.autocast(device, torch.bfloat16) if mode.startswith("bf16") else contextlib.nullcontext()
    ids, targets = (torch.randint(0, vocab, (b, t), device=device) for _ in range(2))

    def step() -> Tensor:
        with autocast:
            loss = compute(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(3):
        step()
    wait()
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        wait()
        rounds.append((time.perf_counter() - start) / steps)
    seconds = sorted(rounds)[2]
    gib = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    print(f"torch {case} {mode} B={b} T={t}: {seconds * 1e3:.3f} ms/step, {b * t / seconds:.0f} tok/s, {gib:.2f} GiB, "
          f"loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a training step in PyTorch.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", default="gpt2-124m,llama-124m")
    parser.add_argument("--modes", default="fp32,tf32,bf16,bf16-compile")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    for case in args.cases.split(","):
        for mode in args.modes.split(","):
            if args.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            time_case(case, mode, args.device, args.steps)


if __name__ == "__main__":
    main()
