"""GroupQueryAttention: rotation, append to the cache and attention of one layer, with one length a row and keys and values in place."""

from __future__ import annotations

import numpy as np

from nearfar.compiler.errors import RequestError
from nearfar.compiler.ir.graph import Node
from nearfar.compiler.ir.rope import rope_table

from .builder import MICROSOFT
from .emitter import Emitter

# GroupQueryAttention with rotation takes no other heads.
HEAD_DIM_MULTIPLE = 16


def add_attention(emitter: Emitter, node: Node) -> None:
    """Raises RequestError for heads that the kernels do not take."""
    spec, builder, y = emitter.spec, emitter.builder, node.outputs["y"]
    if spec.head_dim % HEAD_DIM_MULTIPLE:
        raise RequestError(
            f"heads have {spec.head_dim} elements, and ONNX Runtime's GroupQueryAttention takes multiples of {HEAD_DIM_MULTIPLE}; "
            "take --target webgpu, cpu or cuda"
        )
    append = emitter.pending.pop(node.inputs["kv"])
    rotations = emitter.pending.pop(node.inputs["q"]), emitter.pending.pop(append.inputs["k"])
    (q, q_norm), (k, k_norm) = (before_rotation(emitter, rotation) for rotation in rotations)
    sequences = [
        builder.add("Reshape", [rows, "sequences_shape"], f"{y}.{role}")
        for role, rows in (("query", q), ("key", k), ("value", emitter.names[append.inputs["v"]]))
    ]
    past, present = cache(emitter)
    table = rope_caches(emitter, rotations[0].inputs["table"])
    inputs = [*sequences, *past, "seqlens_k", "total_sequence_length", *table]
    attrs: dict[str, int | float | str] = {"num_heads": spec.num_heads, "kv_num_heads": spec.num_kv_heads, "do_rotary": 1}
    # position_ids, attention_bias and head_sink, which are left out, then the scales of the cache and the norms of heads.
    inputs += ["", "", "", *cache_scales(emitter, past)]
    if emitter.cache_scales:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    if q_norm is not None and k_norm is not None:
        inputs += [emitter.vector(norm.inputs["weight"]) for norm in (q_norm, k_norm)]
        attrs["qk_norm_epsilon"] = q_norm.attrs["eps"]
    while not inputs[-1]:
        inputs.pop()
    builder.add("GroupQueryAttention", inputs, f"{y}.sequences", *present, domain=MICROSOFT, **attrs)
    columns = spec.num_heads * spec.head_dim
    emitter.names[y] = builder.add("Reshape", [f"{y}.sequences", builder.integers(-1, columns)], y)


def before_rotation(emitter: Emitter, rotation: Node) -> tuple[str, Node | None]:
    """What is rotated, and the norm of its heads where the attention is to do that too."""
    x = rotation.inputs["x"]
    norm = emitter.pending.pop(x, None)
    return emitter.names[norm.inputs["x"] if norm else x], norm


def cache(emitter: Emitter) -> tuple[list[str], list[str]]:
    """The next layer's inputs and outputs for keys and values."""
    builder, spec = emitter.builder, emitter.spec
    dtype = "int8" if emitter.cache_scales else emitter.activation
    layer = sum(each.name.startswith("past_key_values.") for each in builder.inputs) // 2
    past, present = ([f"{prefix}.{layer}.{plane}" for plane in ("key", "value")] for prefix in ("past_key_values", "present"))
    for before, after in zip(past, present, strict=True):
        builder.add_input(before, dtype, ("batch_size", spec.num_kv_heads, "past_sequence_length", spec.head_dim))
        builder.add_output(after, dtype, ("batch_size", spec.num_kv_heads, "present_sequence_length", spec.head_dim))
    return past, present


def cache_scales(emitter: Emitter, past: list[str]) -> list[str]:
    """The scales of a layer's keys and values, "" where the cache holds activations."""
    if not emitter.cache_scales:
        return ["", ""]
    return [emitter.builder.constant(f"{name}.scale", emitter.cache_scales[name]) for name in past]


def rope_caches(emitter: Emitter, name: str) -> list[str]:
    """Cosines and sines (context, head_dim / 2) as constants."""
    constant = emitter.graph.constants[name]
    if f"{name}.cos" not in emitter.builder.constants:
        table = rope_table(constant.attrs["inverse_frequencies"], constant.shape[0], constant.attrs["scale"])
        for index, part in enumerate(("cos", "sin")):
            emitter.builder.constant(f"{name}.{part}", table[..., index].astype(np.dtype(emitter.activation)))
    return [f"{name}.cos", f"{name}.sin"]
