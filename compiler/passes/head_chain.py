"""How a value becomes queries, keys or values: the norm and the rotation that a step can do as it reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Graph, Node

# The norms and rotations that steps can do, with what they know of each.
NORM = {"inputs": ("x", "weight"), "attrs": ("eps", "dtype")}
ROPE = {"inputs": ("x", "positions", "table"), "attrs": ("head_dim", "dtype", "position_scale")}


@dataclass(frozen=True, slots=True)
class HeadChain:
    """The value ``start``, then an optional norm and an optional rotation; ``nodes``, last first. No other node reads
    what they compute.

    ``norm_of_each``, ``norm_of_all``: the norm is over each head, or over all heads. Both are true for a single head,
    and without a norm. ``norm_after``: the norm follows the rotation. ``norms_plainly``: its weights are all 1.
    """

    start: str
    nodes: tuple[Node, ...]
    norm: Node | None
    rope: Node | None
    norm_of_each: bool
    norm_of_all: bool
    norms_plainly: bool

    @property
    def norm_after(self) -> bool:
        return len(self.nodes) > 1 and self.nodes[0] is self.norm

    @property
    def eps(self) -> float | None:
        return None if self.norm is None else self.norm.attrs["eps"]

    @property
    def position_scale(self) -> Any:
        return None if self.rope is None else self.rope.attr("position_scale")

    def is_like(self, other: HeadChain) -> bool:
        """Whether one step can normalize and rotate both, if only one has a factor by position."""

        def facts(chain: HeadChain) -> object:
            rotation = None if chain.rope is None else [chain.rope.inputs[role] for role in ("positions", "table")]
            return chain.eps, chain.norm_after, rotation

        over_each, over_all = (self.norm_of_each and other.norm_of_each), (self.norm_of_all and other.norm_of_all)
        return facts(self) == facts(other) and (over_each or over_all)

    def norms_plainly_like(self, q: HeadChain) -> bool:
        """Whether each head is normalized as those of q are, but without factors, and not rotated."""
        alone = self.norms_plainly and self.norm_of_each and self.rope is None
        return alone and self.eps == q.eps and q.norm_of_each


def chain_of(graph: Graph, makers: Mapping[str, Node], name: str, head_dim: int) -> HeadChain:
    """The norm and the rotation that compute a value, in either order; none if a step cannot do them."""
    found: dict[str, Node] = {}
    start = name
    while (node := makers.get(start)) is not None and node.op not in found:
        if not is_step(node, head_dim) or graph.only_user(start) is None:
            break
        found[node.op], start = node, node.inputs["x"]
    norm, rope = found.get("rms_norm"), found.get("rope")
    # A step computes the norm's factor from elements that are not rotated.
    if norm is not None and rope is not None and next(iter(found)) == "rms_norm" and not keeps_length(graph, rope):
        norm, rope, start, found = None, None, name, {}
    shape = None if norm is None else graph.shape_of(norm.inputs["weight"])
    sources = () if norm is None else graph.parameters[norm.inputs["weight"]].sources
    return HeadChain(
        start,
        tuple(found.values()),
        norm,
        rope,
        norm_of_each=shape in (None, (head_dim,)),
        norm_of_all=shape in (None, graph.shape_of(name)[1:]),
        norms_plainly=norm is not None and all((each.offset, each.factor) == (1, 0) for each in sources),
    )


def is_step(node: Node, head_dim: int) -> bool:
    """Whether a node is a norm, or a rotation of heads of this size, that steps can do."""
    if node.op == "rms_norm":
        return node.has_only(**NORM) and node.attr("dtype") == "activation"
    rotates = node.op == "rope" and node.has_only(**ROPE) and node.attr("head_dim") == head_dim
    return rotates and node.attr("dtype") == "activation"


def keeps_length(graph: Graph, rope: Node) -> bool:
    """Whether a rotation multiplies by no factor."""
    table = graph.constants.get(rope.inputs["table"])
    return table is not None and table.attrs["scale"] == 1 and rope.attr("position_scale") is None
