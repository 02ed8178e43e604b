"""The demo models' Llama in torch, in as little code as possible: pre-norm blocks, grouped-query attention with
rotate-half RoPE, SwiGLU and a tied head. Parameter names are those of transformers' LlamaForCausalLM, so the state dict
is the checkpoint.

In training mode matrix products run in bfloat16; attention and norms stay in float32 (on a CPU the backward pass of
attention in bfloat16 is several times slower). In evaluation mode everything is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

# Matrices start as N(0, INIT^2 / inputs).
INIT = 0.8


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 352
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 512


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * scale / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs) f32."""
        if not self.training:
            return functional.linear(x, self.weight)
        return functional.linear(x.to(torch.bfloat16), self.weight.to(torch.bfloat16)).float()


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale the last axis to unit RMS. Zhang & Sennrich 2019."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, each (batch, kv heads, context, head_dim); filled in place."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, output_scale: float) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.num_attention_heads // config.num_key_value_heads
        query, key_value = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, query, INIT)
        self.k_proj = Linear(config.hidden_size, key_value, INIT)
        self.v_proj = Linear(config.hidden_size, key_value, INIT)
        self.o_proj = Linear(query, config.hidden_size, output_scale)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: LayerCache | None, start: int) -> Tensor:
        """x (batch, tokens, hidden) -> the same shape. With a cache, x holds one token per row, at index ``start``."""
        batch, tokens, _ = x.shape
        q, k, v = (
            project(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *rope), rotate(k, *rope)
        if cache is not None:
            cache.keys[:, :, start : start + 1], cache.values[:, :, start : start + 1] = k, v
            k, v = cache.keys[:, :, : start + 1], cache.values[:, :, : start + 1]
        k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, config: LlamaConfig, output_scale: float) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, INIT)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, INIT)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, output_scale)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        # The more layers add to the residual stream, the smaller their initial contributions.
        output_scale = INIT / (2 * config.num_hidden_layers) ** 0.5
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, output_scale)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config, output_scale)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: LayerCache | None, start: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, cache, start)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """The layers between token ids and the head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, tokens: Tensor, positions: Tensor, cache: list[LayerCache] | None = None, start: int = 0
    ) -> Tensor:
        """tokens and positions (batch, tokens) int64 -> hidden states (batch, tokens, hidden) f32."""
        rope = rotation(positions, self.config)
        x = self.embed_tokens(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, rope, cache[index] if cache is not None else None, start)
        out: Tensor = self.norm(x)
        return out


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = Stack(config)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., hidden) -> (..., vocabulary), through the embedding."""
        return functional.linear(hidden, self.model.embed_tokens.weight)

    def empty_cache(self, batch: int, context: int) -> list[LayerCache]:
        config = self.model.config
        shape = (batch, config.num_key_value_heads, context, config.head_dim)
        return [LayerCache(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]


def rotation(positions: Tensor, config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """positions (batch, tokens) -> cos and sin, each (batch, 1, tokens, head_dim / 2). Su et al. 2021."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions[:, None, :, None].float() * config.rope_theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of x (batch, heads, tokens, head_dim)."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
