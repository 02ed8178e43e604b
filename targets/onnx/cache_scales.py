"""Scales for keys and values of 8-bit integers. ONNX Runtime's kernels require them as constants, one for each channel
of a head. So they are measured: a float graph reads a text, and its cache then shows how large each channel becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.ir.ops import Array

# Prose, dialogue, code, numbers and a few scripts, because different inputs make different channels large.
SAMPLE = """The river had risen in the night, and by morning the lower fields were a lake with fences in it.
"How far is it to the station?" she asked. "Twenty minutes, if the bridge is open; an hour if it isn't."
def area(width: float, height: float) -> float:
    return width * height  # square metres
In 1969 about 400,000 people worked on it; 3.5 % of the budget, $25.4 billion in all, went there.
<ul><li>name: "Ada"</li><li>{"id": 17, "tags": ["a", "b"], "ok": true}</li></ul>
Wie weit ist es? ¿Qué hora es? Où est la gare? 今日は天気がいいですね。 Привет, как дела?
Question: what is 17 + 25? Answer: 17 + 25 = 42. Then 42 / 6 = 7, and the square root of 49 is 7 as well.
"""
# Other texts may have larger values than this one, which are clipped. On the demo model and on random models, 1 clips
# too much, and 2 is too coarse.
MARGIN = 1.5


def measure_scales(model: Path, checkpoint: Checkpoint, context: int, caches: Mapping[str, int]) -> dict[str, Array]:
    """For each input of the cache, the value of one step of its integers: (1, kv_heads, 1, head_dim) float32.

    ``model`` is a graph for ``context`` tokens with a cache of float32; ``caches`` maps each input that holds keys to
    the number of rotated elements of a key.
    """
    import onnxruntime
    from tokenizers import Tokenizer

    token_ids = Tokenizer.from_buffer(checkpoint.tokenizer.content).encode(SAMPLE, add_special_tokens=False).ids
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    inputs = {each.name: each.shape for each in session.get_inputs() if each.name.startswith("past_")}
    names = [name for name in inputs if name.startswith("past_key_values.")]
    # A state of one sequence, or no tokens of its keys and values.
    sizes = {"batch_size": 1, "past_sequence_length": 0}
    empty = {name: np.zeros([sizes.get(size, size) for size in shape], np.float32) for name, shape in inputs.items()}
    largest: dict[str, Array] = {}
    for start in range(0, len(token_ids), context):
        piece = np.array([token_ids[start : start + context]])
        feeds = {"input_ids": piece, "attention_mask": np.ones_like(piece), **empty}
        presents = session.run([name.replace("past_key_values", "present") for name in names], feeds)
        for name, present in zip(names, presents, strict=True):
            found = largest_of(present, caches.get(name, 0))
            largest[name] = np.maximum(largest.get(name, found), found)
    # A channel that is always zero needs a scale too.
    return {name: np.maximum(each * np.float32(MARGIN / 127), np.float32(1e-6)) for name, each in largest.items()}


def unit_scales(inputs: Iterable[Any]) -> dict[str, Array]:
    """Scales of 1 in the shapes that `measure_scales` returns. ``inputs``: the graph's, as ValueInfoProto."""
    found = {}
    for each in inputs:
        if each.name.startswith("past_key_values."):
            _, heads, _, head_dim = (dim.dim_value for dim in each.type.tensor_type.shape.dim)
            found[each.name] = np.ones((1, heads, 1, head_dim), np.float32)
    return found


def largest_of(cache: Array, rotated: int) -> Array:
    """The largest magnitude of each channel of (1, kv_heads, tokens, head_dim), the first ``rotated`` of which are
    rotated in pairs.

    A channel of a pair can become as large as the pair is long, at another position.
    """
    magnitudes = np.abs(cache)
    if rotated:
        pairs = np.hypot(*np.split(magnitudes[..., :rotated], 2, axis=-1))
        magnitudes = np.concatenate([pairs, pairs, magnitudes[..., rotated:]], axis=-1)
    largest: Array = magnitudes.max(axis=2, keepdims=True)
    return largest
