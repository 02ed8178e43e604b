"""The sizes of heads and the rotation of queries and keys, from a GGUF file's metadata and tensors of factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .container import Container, StoredTensor
from .metadata import Metadata
from .tensors import read_vector

Config = dict[str, Any]

# Tensors of RoPE, whose values the configuration contains.
ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
ROTATION = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
# The published values of Llama 3.1 to 3.3. A file contains only the factors of the frequencies.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def attention_config(metadata: Metadata, container: Container) -> Config:
    """Layers without attention have 0 heads of keys and values."""
    heads, _, head_dim = head_sizes(metadata)
    metadata.expect("attention.value_length", head_dim)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": max(kv_heads(metadata)),
        "head_dim": head_dim,
        **rotation(metadata, container, head_dim),
    }


def head_sizes(metadata: Metadata) -> tuple[int, int, int]:
    """The number of heads, the hidden size and the head size. Raises CheckpointError if they are impossible."""
    heads, hidden = metadata.size("attention.head_count"), metadata.size("embedding_length")
    if heads > hidden:
        raise metadata.corrupt(
            f"'{metadata.architecture}.attention.head_count' is {heads}, more than "
            f"'{metadata.architecture}.embedding_length', which is {hidden}"
        )
    return heads, hidden, metadata.size("attention.key_length", hidden // heads)


def kv_heads(metadata: Metadata) -> list[int]:
    """The number of heads of keys and values of each layer, 0 or the same for all. Raises CheckpointError."""
    heads = metadata.of_layers("attention.head_count_kv", metadata.size("attention.head_count"))
    if len({each for each in heads if each}) != 1:
        raise metadata.corrupt(f"'{metadata.architecture}.attention.head_count_kv' has no one number for all layers")
    return heads


def rotation(metadata: Metadata, container: Container, head_dim: int) -> Config:
    """The rotation of all layers."""
    config: Config = {"rope_theta": metadata.positive("rope.freq_base", 10_000.0)}
    rotated = metadata.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    # This key only states that the model was trained with the scaling.
    metadata.ignore("rope.scaling.finetuned")
    kind = metadata.text("rope.scaling.type", "none")
    factors = container.tensors.get(ROPE_FACTORS)
    if factors is not None:
        config["rope_scaling"] = llama3_scaling(metadata, factors, config["rope_theta"], head_dim)
    elif LONG_FACTORS in container.tensors:
        config |= longrope(metadata, container)
    elif kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": metadata.positive("rope.scaling.factor")}
    elif kind == "yarn":
        scaling: Config = {
            "rope_type": "yarn",
            "factor": metadata.positive("rope.scaling.factor"),
            "original_max_position_embeddings": metadata.size("rope.scaling.original_context_length"),
        }
        for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            if metadata.has(f"rope.scaling.{key}"):
                scaling[name] = metadata.positive(f"rope.scaling.{key}")
        # This value multiplies the magnitude that follows from the factor.
        metadata.expect("rope.scaling.attn_factor", 1.0)
        config["rope_scaling"] = scaling
    elif kind not in ("none", "longrope"):
        raise metadata.unsupported(f"'rope.scaling.type' is {kind!r}, which is not supported")
    else:
        metadata.expect("rope.scaling.factor", 0.0, 1.0)
        # Without factors, this is only the length of the training context.
        metadata.ignore("rope.scaling.original_context_length")
    return config


def llama3_scaling(metadata: Metadata, stored: StoredTensor, theta: float, head_dim: int) -> Config:
    """The scaling of Llama 3.1. The file contains only the divisors of the frequencies. If they differ from those of
    the published parameters, they become a "longrope" of one length.
    """
    found = read_vector(stored)
    if not (np.isfinite(found) & (found > 0)).all():
        raise metadata.corrupt(f"tensor {stored.name!r} has factors that are not finite numbers above 0")
    factor = float(found.max())
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = LLAMA3["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if len(found) == len(expected) and np.allclose(found, expected, rtol=1e-4):
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}
    metadata.ignore("rope.scaling.original_context_length")
    factors = [float(each) for each in found]
    return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}


def longrope(metadata: Metadata, container: Container) -> Config:
    lists = {
        name: [float(each) for each in read_vector(stored)]
        for name, stored in ((name, container.tensors.get(name)) for name in (SHORT_FACTORS, LONG_FACTORS))
        if stored is not None
    }
    if SHORT_FACTORS not in lists:
        raise metadata.unsupported(f"it has {LONG_FACTORS!r} without {SHORT_FACTORS!r}")
    scaling: Config = {
        "rope_type": "longrope", "short_factor": lists[SHORT_FACTORS], "long_factor": lists[LONG_FACTORS],
    }  # fmt: skip
    if metadata.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = metadata.positive("rope.scaling.attn_factor")
    return {
        "rope_scaling": scaling,
        "original_max_position_embeddings": metadata.size("rope.scaling.original_context_length"),
    }
