"""Slices of a joint q/k/v projection, q/k norm, rotation of q and k, append of k and v -> rope_append.

The step normalizes and rotates q and k in the same way, so the pass applies only if both have the same eps, the same
table and the same positions. Their norms are over each head, or over all heads of q and all of k; they come before the
rotation or after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.kv_pages import head_dim_of
from .stack import module_of, stack_parameters

# The nodes between a slice of the projection and attention, with what the step knows of them.
STEPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "rms_norm": {"inputs": ("x", "weight"), "attrs": ("eps", "dtype")},
    "rope": {"inputs": ("x", "positions", "table"), "attrs": ("head_dim", "dtype", "position_scale")},
}


@dataclass(frozen=True, slots=True)
class Chain:
    """How a part of the joint projection becomes q or k: its slice, then an optional norm and an optional rotation.
    ``norm_of_each``, ``norm_of_all``: the norm is over each head, or over all heads. Both are true for a single head,
    and without a norm. ``norm_after``: the norm follows the rotation.
    """

    slice: Node
    norm: Node | None
    rope: Node | None
    norm_of_each: bool
    norm_of_all: bool
    norm_after: bool

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in (self.slice, self.norm, self.rope) if node is not None)


def fuse_rope_append(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    parameters: dict[str, Parameter] = {}
    for index, append in enumerate(graph.nodes):
        if append.op != "append_kv" or not append.has_only(inputs=("k", "v", "kv", "slots"), attrs=("kv",)):
            continue
        # q is what the next attention over these pages reads.
        attention = next(
            (node for node in graph.nodes[index + 1 :] if append.inputs["kv"] in node.inputs.values()), None
        )
        if attention is None or attention.op != "attention":
            continue
        head_dim = head_dim_of(graph.shape_of(append.inputs["kv"]), {"kv": append.attr("kv")})
        q, k = (chain_of(graph, makers, name, head_dim) for name in (attention.inputs["q"], append.inputs["k"]))
        v = makers.get(append.inputs["v"])
        v_norm = v if v is not None and norms_plainly(graph, v, q, head_dim) else None
        if v_norm is not None:
            v = makers.get(v_norm.inputs["x"])
        if q is None or k is None or v is None or not are_alike(q, k) or not cover(graph, [q.slice, k.slice, v]):
            continue
        v_nodes = [v] if v_norm is None else [v, v_norm]
        if not used_once(
            graph, [*q.nodes, *k.nodes, *v_nodes], {attention.inputs["q"], append.inputs["k"], append.inputs["v"]}
        ):
            continue
        inputs = {
            "qkv": v.inputs["x"],
            "positions": attention.inputs["positions"],
            "slots": append.inputs["slots"],
            "kv": append.inputs["kv"],
        }
        attrs = dict(append.attrs)
        if q.rope is not None:
            if q.rope.inputs["positions"] != attention.inputs["positions"]:
                continue
            inputs["table"] = q.rope.inputs["table"]
            attrs["position_scale"] = q.rope.attr("position_scale")
        if q.norm is not None and k.norm is not None:
            # One vector, because a kernel may bind no more than eight buffers.
            names = [norm.inputs["weight"] for norm in (q.norm, k.norm)]
            inputs["qk_norm"] = stack_parameters(graph, parameters, names, f"{module_of(q.norm)}.qk_norm.weight")
            attrs |= {"eps": q.norm.attrs["eps"], "norms_values": v_norm is not None, "norm_after": q.norm_after}
        replaced |= {id(node): None for node in (*q.nodes, *k.nodes, *v_nodes)}
        replaced[id(append)] = Node("rope_append", inputs, {"q": attention.inputs["q"]}, attrs)
    return graph.replace(replaced, parameters.values())


def chain_of(graph: Graph, makers: Mapping[str, Node], name: str, head_dim: int) -> Chain | None:
    """The nodes that compute q or k, or None if they are not a slice_columns, followed by at most one rms_norm and at
    most one rope of each head.
    """
    node = makers.get(name)
    found: dict[str, Node] = {}
    while node is not None and node.op in STEPS and node.op not in found and node.has_only(**STEPS[node.op]):
        found[node.op], node = node, makers.get(node.inputs["x"])
    if node is None or node.op != "slice_columns" or any(each.attr("dtype") != "activation" for each in found.values()):
        return None
    norm, rope = found.get("rms_norm"), found.get("rope")
    if rope is not None and rope.attr("head_dim") != head_dim:
        return None
    norm_after = rope is not None and next(iter(found)) == "rms_norm"
    # A step computes the norm's factor from elements that are not rotated.
    if norm_after and rope is not None and not keeps_length(graph, rope):
        return None
    of_each, of_all = (
        norm is None or graph.shape_of(norm.inputs["weight"]) == width
        for width in ((head_dim,), graph.shape_of(name)[1:])
    )
    return Chain(node, norm, rope, of_each, of_all, norm_after)


def keeps_length(graph: Graph, rope: Node) -> bool:
    """Whether a rotation multiplies by no factor."""
    table = graph.constants.get(rope.inputs["table"])
    return table is not None and table.attrs["scale"] == 1 and rope.attr("position_scale") is None


def norms_plainly(graph: Graph, node: Node, q: Chain | None, head_dim: int) -> bool:
    """Whether a node normalizes each head as q is normalized, but without factors: they are all 1."""
    if node.op != "rms_norm" or not node.has_only(**STEPS["rms_norm"]):
        return False
    if q is None or q.norm is None or node.attrs["eps"] != q.norm.attrs["eps"] or node.attr("dtype") != "activation":
        return False
    if not q.norm_of_each:
        return False
    weight = graph.parameters[node.inputs["weight"]]
    ones = all((source.offset, source.factor) == (1, 0) for source in weight.sources)
    return ones and weight.shape == (head_dim,)


def are_alike(q: Chain, k: Chain) -> bool:
    """Whether one step can normalize and rotate both."""
    if (q.norm is None) != (k.norm is None) or (q.rope is None) != (k.rope is None):
        return False
    alike = (q.norm_of_each and k.norm_of_each) or (q.norm_of_all and k.norm_of_all)
    if not alike or q.norm_after != k.norm_after:
        return False
    if q.norm is not None and k.norm is not None and q.norm.attrs["eps"] != k.norm.attrs["eps"]:
        return False
    if q.rope is None or k.rope is None:
        return True
    same = all(q.rope.inputs[role] == k.rope.inputs[role] for role in ("positions", "table"))
    # Only queries have a factor of their position.
    return same and k.rope.attr("position_scale") is None


def cover(graph: Graph, slices: list[Node]) -> bool:
    """Whether these are slices of one activation, consecutive from its first column to its last."""
    stop = 0
    for node in slices:
        if node.op != "slice_columns" or not node.has_only(inputs=("x",), attrs=("start", "stop", "dtype")):
            return False
        if (
            node.inputs["x"] != slices[0].inputs["x"]
            or node.attr("start") != stop
            or node.attr("dtype") != "activation"
        ):
            return False
        stop = node.attrs["stop"]
    joint = slices[0].inputs["x"]
    return graph.shape_of(joint)[1] == stop and graph.kind_of(joint) == "activation"


def used_once(graph: Graph, nodes: list[Node], last: set[str]) -> bool:
    """Whether only the chains read the intermediate values that they compute for q, k and v."""
    distinct = len({id(node) for node in nodes}) == len(nodes)
    return distinct and all(graph.only_user(node.outputs["y"]) is not None for node in nodes) and len(last) == 3
