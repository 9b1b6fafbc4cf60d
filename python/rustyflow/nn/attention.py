"""Attention as a layer."""

from __future__ import annotations

from .._rustyflow import Tensor, linear, scaled_dot_product_attention, zeros
from . import init
from .layers import Linear
from .module import Module, Parameter


class MultiheadAttention(Module):
    """Queries (B, T, E) to keys and values (B, S, E): (B, T, E). PyTorch's names, with `batch_first=True`."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}")
        self.num_heads, self.dropout = num_heads, dropout
        self.in_proj_weight = Parameter(init.xavier_uniform_(zeros(3 * embed_dim, embed_dim)))
        self.in_proj_bias = Parameter(zeros(3 * embed_dim))
        self.out_proj = Linear(embed_dim, embed_dim)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            linear(x, weight, bias).reshape(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases)
        )
        p = self.dropout if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, attn_mask, p, is_causal)
        joined: Tensor = self.out_proj(y.transpose(1, 2).flatten(2))
        return joined
