"""attention -> GroupQueryAttention, which appends to the cache, attends, and may rotate and normalize the heads of
queries and keys first.

Every row of the batch has its own length, and keys and values are updated in place. Work that GroupQueryAttention
cannot include precedes it as separate nodes, so a model whose queries and keys differ in their norms, tables or widths
is computed correctly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel

from .builder import MICROSOFT
from .emitter import Emitter, Owner, layer_of
from .rotation import rope_caches, rotated_width

# The kernels' conditions: on the head size, and for a rotation inside GroupQueryAttention on the head size and the
# rotated width.
HEAD_DIM_MULTIPLE = 8
ROTATION_MULTIPLE = 16


def add_append(emitter: Emitter, node: Node) -> None:
    """The attention that reads these keys and values appends them."""
    emitter.appends[node.inputs["kv"]] = node


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """The inputs and attributes of a GroupQueryAttention, its keys' and values' outputs, and the size of its heads."""

    inputs: list[str]
    attrs: dict[str, Any]
    present: list[str]
    head_dim: int


def add_attention(emitter: Emitter, node: Node) -> None:
    """Raises RequestError for heads that the kernels do not support, and UnsupportedModel for an attention that they do
    not compute.
    """
    y, query = node.outputs["y"], group_query(emitter, node)
    emitter.names[y] = emitter.builder.add(
        "GroupQueryAttention", query.inputs, f"{y}.sequences", *query.present, domain=MICROSOFT, **query.attrs
    )
    emitter.reshaped.add(y)


def group_query(emitter: Emitter, node: Node, *, claims: bool = True) -> GroupQuery:
    """See `add_attention`. ``claims``: it includes rotations and norms that it can do."""
    y, kv = node.outputs["y"], node.inputs["kv"]
    append, owner = emitter.appends.pop(kv, None), emitter.owners.get(kv)
    if append is None and owner is not None:
        append = owner.append
    if append is None:
        raise UnsupportedModel(
            f"attention {y} appends no keys and values of its own, and ONNX Runtime's GroupQueryAttention always does; "
            "use --target webgpu, cpu or cuda"
        )
    _, _, num_kv_heads, _, head_dim = emitter.graph.states[kv].shape
    assert isinstance(num_kv_heads, int)
    assert isinstance(head_dim, int)
    if head_dim % HEAD_DIM_MULTIPLE:
        raise RequestError(
            f"heads have {head_dim} elements, and ONNX Runtime's GroupQueryAttention supports multiples of "
            f"{HEAD_DIM_MULTIPLE}; "
            "use --target webgpu, cpu or cuda"
        )
    values = {"query": node.inputs["q"], "key": append.inputs["k"], "value": append.inputs["v"]}
    rotated = rotated_width(emitter, values["key"])
    rotations = claim_rotations(emitter, node, append, head_dim) if claims else []
    norms = claim_norms(emitter, rotations)
    table = rope_caches(emitter, rotations[0].inputs["table"]) if rotations else ["", ""]
    for role, claimed in zip(("query", "key"), norms or rotations, strict=False):
        values[role] = claimed.inputs["x"]
    if owner is None:
        past, present = cache(emitter, layer_of(kv), num_kv_heads, head_dim)
        emitter.owners[kv] = Owner(append, (past[0], past[1]))
        emitter.caches[past[0]] = rotated
    else:
        # The same new keys and values behind the same past: the result is a copy that no one reads.
        past, present = list(owner.past), [f"{y}.keys", f"{y}.values"]
    sequences = [emitter.sequences(value, f"{y}.{role}") for role, value in values.items()]
    sinks = emitter.vector(node.inputs["sinks"]) if "sinks" in node.inputs else ""
    # Between the table and the sinks: position_ids and attention_bias.
    inputs = [
        *sequences,
        *past,
        "seqlens_k",
        "total_sequence_length",
        *table,
        "",
        "",
        sinks,
        *cache_scales(emitter, past),
    ]
    inputs += [emitter.vector(norm.inputs["weight"]) for norm in norms]
    while not inputs[-1]:
        inputs.pop()
    columns = emitter.columns(y)
    attrs: dict[str, int | float | str] = {
        "num_heads": columns // head_dim,
        "kv_num_heads": num_kv_heads,
        "do_rotary": int(bool(rotations)),
    }
    attrs |= score_attrs(emitter, node)
    if emitter.cache_scales:
        attrs |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    if norms:
        attrs["qk_norm_epsilon"] = norms[0].attrs["eps"]
    return GroupQuery(inputs, attrs, present, head_dim)


def score_attrs(emitter: Emitter, node: Node) -> dict[str, int | float | str]:
    """The attributes that define the scores. A window includes the row's own token, both here and in ONNX Runtime."""
    names = {"scale": "scale", "softcap": "softcap", "window": "local_window_size"}
    if node.attr("softcap") is not None and not emitter.device.soft_caps:
        raise UnsupportedModel(
            "the model has attention with softcap, which ONNX Runtime's kernel for this device ignores; "
            "use --device cpu, or --target webgpu, cpu or cuda"
        )
    return {name: node.attr(attr) for attr, name in names.items() if node.attr(attr) is not None}


def claim_rotations(emitter: Emitter, node: Node, append: Node, head_dim: int) -> list[Node]:
    """The rotations of queries and keys, if GroupQueryAttention can do both; it then includes them."""
    q, k = emitter.deferred_node(node.inputs["q"], "rope"), emitter.deferred_node(append.inputs["k"], "rope")
    if len([each for each in emitter.graph.users(node.inputs["kv"]) if each.op == "attention"]) > 1:
        # Layers that share the keys need them rotated.
        return []
    if q is None or k is None or q.inputs["table"] != k.inputs["table"]:
        return []
    if q.inputs["table"] not in emitter.graph.constants:
        return []
    alone = emitter.graph.only_user(q.outputs["y"]) is node and emitter.graph.only_user(k.outputs["y"]) is append
    sizes = head_dim, rotated_width(emitter, k.outputs["y"])
    fits = all(size % ROTATION_MULTIPLE == 0 for size in sizes) and all(
        each.attrs["head_dim"] == head_dim for each in (q, k)
    )
    if not alone or not fits:
        return []
    emitter.claim(q, k)
    return [q, k]


def claim_norms(emitter: Emitter, rotations: list[Node]) -> list[Node]:
    """The norms of heads before the rotations, if GroupQueryAttention can do both; it then includes them."""
    norms = [
        norm for rotation in rotations if (norm := emitter.deferred_node(rotation.inputs["x"], "rms_norm")) is not None
    ]
    if len(norms) != 2 or norms[0] is norms[1] or norms[0].attrs["eps"] != norms[1].attrs["eps"]:
        return []
    for norm, rotation in zip(norms, rotations, strict=True):
        width = emitter.graph.parameters[norm.inputs["weight"]].rows
        if width != rotation.attrs["head_dim"] or emitter.graph.only_user(norm.outputs["y"]) is not rotation:
            return []
    emitter.claim(*norms)
    return norms


def cache(emitter: Emitter, layer: int, num_kv_heads: int, head_dim: int) -> tuple[list[str], list[str]]:
    """A layer's inputs and outputs for keys and values."""
    builder = emitter.builder
    dtype = "int8" if emitter.cache_scales else emitter.activation
    past, present = (
        [f"{prefix}.{layer}.{emitter.cache_role}{plane}" for plane in ("key", "value")]
        for prefix in ("past_key_values", "present")
    )
    for before, after in zip(past, present, strict=True):
        builder.add_input(before, dtype, ("batch_size", num_kv_heads, "past_sequence_length", head_dim))
        builder.add_output(after, dtype, ("batch_size", num_kv_heads, "present_sequence_length", head_dim))
    return past, present


def cache_scales(emitter: Emitter, past: list[str]) -> list[str]:
    """The scales of a layer's keys and values, "" if the cache holds activations."""
    if not emitter.cache_scales:
        return ["", ""]
    return [emitter.builder.constant(f"{name}.scale", emitter.cache_scales[name]) for name in past]
