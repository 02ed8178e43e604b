"""A decoder of Llama's kind in plain PyTorch, as fast as PyTorch alone runs one: keys and values of a fixed size, and
each decoded token as a CUDA graph. Projections have 16 bits, or 4 by the kernel in PyTorch that gpt-fast and torchao
use. Rope is not scaled, which costs no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

DTYPE = torch.bfloat16
# One scale for as many columns as in our q4f16.
GROUP = 32
# The layout of `_convert_weight_to_int4pack`: 16 times this number divides the columns.
INNER_TILES = 8
WARM_UPS = 3

Weights = Callable[[str, tuple[int, ...]], Any]
Projection = Callable[[Any], Any]


def random_weights(device: str) -> Weights:
    return lambda _, shape: torch.empty(shape, device=device, dtype=DTYPE).normal_(std=0.02)


def projection(weight: Any, bits: int) -> Projection:
    return projection_of_4_bits(weight) if bits == 4 else lambda x: linear(x, weight)


def projection_of_4_bits(weight: Any) -> Projection:
    """Symmetric integers of -8 to 7 in groups of 32 columns, scales in bfloat16."""
    outputs, columns = weight.shape
    groups = weight.float().reshape(outputs, -1, GROUP)
    scales = groups.abs().amax(2, keepdim=True).clamp(min=1e-8) / 7
    numbers = ((groups / scales).round().clamp(-8, 7) + 8).reshape(outputs, columns).to(torch.int32)
    # (groups, outputs, 2): the scale, and the value of number 8.
    factors = torch.stack([scales.squeeze(2), torch.zeros_like(scales.squeeze(2))], 2)
    factors = factors.transpose(0, 1).contiguous().to(DTYPE)
    if weight.is_cuda:
        pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_TILES)
        multiply = torch.ops.aten._weight_int4pack_mm
    else:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, INNER_TILES)
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda x: multiply(x.reshape(-1, columns), packed, GROUP, factors).reshape(*x.shape[:-1], outputs)


class Decoder:
    """``config``: the keys of config.json. ``weights`` returns a tensor by transformers' name and its shape. One
    sequence has at most ``length`` tokens.
    """

    def __init__(self, config: Mapping[str, Any], weights: Weights, bits: int, device: str, length: int) -> None:
        hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or hidden // self.heads
        self.length, self.device = length, device
        ffn, rows, kv_rows = config["intermediate_size"], self.heads * self.size, self.kv_heads * self.size

        def joined(prefix: str, shapes: Mapping[str, tuple[int, int]]) -> Projection:
            parts = [weights(f"{prefix}.{name}_proj.weight", shape) for name, shape in shapes.items()]
            return projection(torch.cat(parts) if len(parts) > 1 else parts[0], bits)

        self.layers = []
        for index in range(config["num_hidden_layers"]):
            own = f"model.layers.{index}"
            qkv = {"q": (rows, hidden), "k": (kv_rows, hidden), "v": (kv_rows, hidden)}
            layer = {
                "norm": weights(f"{own}.input_layernorm.weight", (hidden,)),
                "qkv": joined(f"{own}.self_attn", qkv),
                "o": joined(f"{own}.self_attn", {"o": (hidden, rows)}),
                "ffn_norm": weights(f"{own}.post_attention_layernorm.weight", (hidden,)),
                "gate_up": joined(f"{own}.mlp", {"gate": (ffn, hidden), "up": (ffn, hidden)}),
                "down": joined(f"{own}.mlp", {"down": (hidden, ffn)}),
            }
            if config["model_type"] == "qwen3":
                layer |= {f"{x}_norm": weights(f"{own}.self_attn.{x}_norm.weight", (self.size,)) for x in "qk"}
            self.layers.append(layer)
        shape = (config["vocab_size"], hidden)
        self.embedding = weights("model.embed_tokens.weight", shape)
        self.norm = weights("model.norm.weight", (hidden,))
        tied = config.get("tie_word_embeddings", False)
        self.head = projection(self.embedding if tied else weights("lm_head.weight", shape), bits)
        steps = torch.arange(0, self.size, 2, device=device).float() / self.size
        angles = torch.arange(length, device=device).float()[:, None] / config["rope_theta"] ** steps
        self.rope = torch.cat([angles.cos(), angles.sin()], 1)

    def cache(self, sequences: int) -> Any:
        """Keys and values (layers, 2, sequences, kv_heads, length, size)."""
        shape = (len(self.layers), 2, sequences, self.kv_heads, self.length, self.size)
        return torch.zeros(shape, device=self.device, dtype=DTYPE)

    def __call__(self, ids: Any, positions: Any, cache: Any) -> Any:
        """The logits (sequences, vocabulary) of the last of the tokens ``ids`` (sequences, tokens) at ``positions``
        (tokens,).
        """
        x = self.embedding[ids]
        cos, sin = self.rope[positions].to(DTYPE).chunk(2, -1)
        seen = torch.arange(self.length, device=self.device) <= positions[:, None]
        for layer, kv in zip(self.layers, cache.unbind(0), strict=True):
            y = rms_norm(x, x.shape[-1:], layer["norm"], self.eps)
            x = x + self.attention(layer, y, cos, sin, seen, positions, kv)
            y = rms_norm(x, x.shape[-1:], layer["ffn_norm"], self.eps)
            gate, up = layer["gate_up"](y).chunk(2, -1)
            x = x + layer["down"](silu(gate) * up)
        return self.head(rms_norm(x[:, -1], x.shape[-1:], self.norm, self.eps)).float()

    def attention(
        self, layer: Mapping[str, Any], x: Any, cos: Any, sin: Any, seen: Any, positions: Any, kv: Any
    ) -> Any:
        count, tokens, _ = x.shape
        split = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = layer["qkv"](x).reshape(count, tokens, -1, self.size).transpose(1, 2).split(split, 1)
        if "q_norm" in layer:
            q = rms_norm(q, (self.size,), layer["q_norm"], self.eps)
            k = rms_norm(k, (self.size,), layer["k_norm"], self.eps)
        kv.index_copy_(3, positions, torch.stack([rotated(k, cos, sin), v]))
        # The query heads that share keys are rows of one matrix, so that nothing is copied for them.
        group = self.heads // self.kv_heads
        q = rotated(q, cos, sin).reshape(count, self.kv_heads, group * tokens, self.size)
        found = scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=seen.repeat(group, 1))
        found = found.reshape(count, self.heads, tokens, self.size).transpose(1, 2)
        return layer["o"](found.reshape(count, tokens, -1))


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Loop:
    """Greedy tokens of some sequences after ``context`` tokens. On a GPU, a step is a CUDA graph. ``compiled``: its
    kernels are those that torch.compile writes.
    """

    def __init__(self, decoder: Decoder, sequences: int, context: int, backend: str | None) -> None:
        self.ids = torch.ones(sequences, 1, device=decoder.device, dtype=torch.long)
        self.position = torch.full((1,), context, device=decoder.device)
        self._context, cache = context, decoder.cache(sequences)
        forward = decoder if backend is None else torch.compile(decoder, backend=backend, dynamic=False)

        def step() -> None:
            self.ids.copy_(forward(self.ids, self.position, cache).argmax(-1, keepdim=True))
            self.position += 1

        self._step = captured(step) if decoder.device == "cuda" else step

    def run(self, steps: int) -> None:
        """Returns when the tokens have been computed."""
        self.position.fill_(self._context)
        for _ in range(steps):
            self._step()
        self.ids.sum().item()


def captured(step: Callable[[], None]) -> Callable[[], None]:
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay
