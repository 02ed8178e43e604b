"""What prepares queries, keys and values moves into the attention that reads them: norms, rotations, and with all parts
of a joint projection also its slices and the append.

    q = rope(norm(slice(qkv))), k = rope(norm(slice(qkv))), v = slice(qkv), append_kv(k, v), attention(q)
        ->  attention(qkv, table, qk_norm)
    attention(rope(norm(q)))  ->  attention(q, table, qk_norm)
    rope(norm(x))             ->  rope(x, norm), for heads that no attention prepares
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.attention import SCORES
from ..ir.ops.kv_pages import head_dim_of
from ..ir.ops.projections import stores_halves
from .head_chain import NORM, chain_of
from .stack import module_of, stack_parameters

ATTENTION = {
    "inputs": ("q", "kv", "positions", "seq_starts", "page_indptr", "page_ids", "sinks", "reach"),
    "attrs": (*SCORES, "kv"),
}


def fuse_attention(graph: Graph) -> Graph:
    makers = graph.makers()
    parameters: dict[str, Parameter] = {}
    replaced: dict[int, Node | None] = {}
    append: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "append_kv" and node.has_only(inputs=("k", "v", "kv", "slots"), attrs=("kv",)):
            append[node.inputs["kv"]] = node
        # The next node that touches the pages: no node between the two may read the pages.
        elif "kv" in node.inputs:
            before = append.pop(node.inputs["kv"], None)
            if node.op == "attention" and node.has_only(**ATTENTION):
                joint = before and joint_attention(graph, makers, before, node, parameters)
                replaced |= joint or rotating_attention(graph, makers, node)
    return norm_rotated(graph.replace(replaced, parameters.values()))


def joint_attention(
    graph: Graph, makers: Mapping[str, Node], append: Node, attention: Node, parameters: dict[str, Parameter]
) -> dict[int, Node | None]:
    """What replaces the nodes from a joint projection to an attention; nothing if one step cannot compute it."""
    head_dim = head_dim_of(graph.shape_of(append.inputs["kv"]), {"kv": append.attr("kv")})
    names = (attention.inputs["q"], append.inputs["k"], append.inputs["v"])
    q, k, v = chains = [chain_of(graph, makers, name, head_dim) for name in names]
    qkv = joint_of(graph, [makers.get(chain.start) for chain in chains])
    if qkv is None or append.attr("kv") != attention.attr("kv") or not q.is_like(k):
        return {}
    if v.nodes and not v.norms_plainly_like(q):
        return {}
    inputs = {role: name for role, name in attention.inputs.items() if role != "q"}
    inputs |= {"qkv": qkv, "slots": append.inputs["slots"]}
    attrs = dict(attention.attrs)
    if q.rope is not None:
        # Only queries have a factor of their position.
        if q.rope.inputs["positions"] != attention.inputs["positions"] or k.position_scale is not None:
            return {}
        inputs["table"], attrs["position_scale"] = q.rope.inputs["table"], q.position_scale
    if q.norm is not None and k.norm is not None:
        # One vector, because a kernel may bind no more than eight buffers.
        weights = [norm.inputs["weight"] for norm in (q.norm, k.norm)]
        inputs["qk_norm"] = stack_parameters(graph, parameters, weights, f"{module_of(q.norm)}.qk_norm.weight")
        attrs |= {"eps": q.norm.attrs["eps"], "norms_values": bool(v.nodes), "norm_after": q.norm_after}
    fused = Node("attention", inputs, attention.outputs, attrs)
    gone = [append, *(makers[chain.start] for chain in chains), *(node for chain in chains for node in chain.nodes)]
    return {**{id(node): None for node in gone}, id(attention): fused}


def joint_of(graph: Graph, slices: list[Node | None]) -> str | None:
    """The activation of which these are slices that no other node reads, consecutive from its first column to its
    last; None if they are not.
    """
    stop, joint = 0, None
    for node in slices:
        if node is None or node.op != "slice_columns" or graph.only_user(node.outputs["y"]) is None:
            return None
        joint = joint or node.inputs["x"]
        if (node.inputs["x"], node.attr("start"), node.attr("dtype")) != (joint, stop, "activation"):
            return None
        stop = node.attr("stop")
    assert joint is not None
    return joint if graph.shape_of(joint)[1] == stop and graph.kind_of(joint) == "activation" else None


def rotating_attention(graph: Graph, makers: Mapping[str, Node], attention: Node) -> dict[int, Node | None]:
    """Attention without new keys, such as that of layers which read the pages of other layers, rotates its queries."""
    head_dim = head_dim_of(graph.shape_of(attention.inputs["kv"]), {"kv": attention.attr("kv")})
    q = chain_of(graph, makers, attention.inputs["q"], head_dim)
    plain = q.norm_of_each and not q.norm_after and q.position_scale is None
    if q.rope is None or not plain or q.rope.inputs["positions"] != attention.inputs["positions"]:
        return {}
    if graph.kind_of(q.start) != "activation":
        return {}
    inputs, attrs = {**attention.inputs, "q": q.start, "table": q.rope.inputs["table"]}, dict(attention.attrs)
    if q.norm is not None:
        inputs["qk_norm"], attrs["eps"] = q.norm.inputs["weight"], q.norm.attrs["eps"]
    fused = Node("attention", inputs, attention.outputs, attrs)
    return {**{id(node): None for node in q.nodes}, id(attention): fused}


def norm_rotated(graph: Graph) -> Graph:
    """Queries and keys that no attention prepares are normalized as they are rotated."""
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for node in graph.nodes:
        if node.op != "rope" or not node.has_only(inputs=("x", "positions", "table"), attrs=("head_dim", "dtype")):
            continue
        norm = makers.get(node.inputs["x"])
        if norm is None or norm.op != "rms_norm" or graph.only_user(node.inputs["x"]) is not node:
            continue
        (width,) = graph.shape_of(norm.inputs["weight"])
        # A group of the norm has complete heads.
        if norm.has_only(**NORM) and isinstance(width, int) and width % node.attr("head_dim") == 0:
            inputs = {**node.inputs, "x": norm.inputs["x"], "norm": norm.inputs["weight"]}
            rope = Node("rope", inputs, node.outputs, {**node.attrs, "eps": norm.attrs["eps"]})
            replaced |= {id(norm): None, id(node): rope}
    return graph.replace(replaced)


def fuse_attention_output(graph: Graph) -> Graph:
    """ragged_attention, then the projection of its result  ->  one step.

    The projection's bias and what it stores stay. One that gates halves of its outputs, loads something, or is a part
    of another one is left alone.
    """
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    for linear in graph.nodes:
        if linear.op != "linear" or linear.attrs.keys() - {"dtype", "store"} or "into" in linear.inputs:
            continue
        if stores_halves(linear.attr("store")):
            continue
        attended = linear.inputs["x"]
        attention = makers.get(attended)
        if attention is None or attention.op != "ragged_attention" or "weight" in attention.inputs:
            continue
        if graph.only_user(attended) is not linear or linear.attr("dtype") != "float32":
            continue
        inputs = {**attention.inputs, **{role: name for role, name in linear.inputs.items() if role != "x"}}
        replaced[id(attention)] = None
        attrs = {**attention.attrs, "store": linear.attr("store")}
        replaced[id(linear)] = Node("ragged_attention", inputs, linear.outputs, attrs)
    return graph.replace(replaced)
