"""Nodes become parts of a projection or a norm: an op on elements behind it is stored, a rounding or a norm in front of
a projection is loaded.

A projection normalizes its input as it reads it: y = W (x * g / rms(x)) is (W (x * g)) / rms(x), so a kernel sums
squares along with its dot products and divides once at the end. A target splits off parts that a kernel cannot fold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.norms import BEHIND_NORMS, LOAD, STORE
from ..ir.ops.parts import Part, operand_kinds
from .stack import module_of, stack_parameters

PROJECTIONS = ("linear", "expert_linear")


def fuse(graph: Graph, stored: Collection[str] = tuple(STORE.ops), *, centered: bool = True) -> Graph:
    """``stored``: the ops that projections store; ``centered``: they load a LayerNorm."""
    while replaced := dict(moves(graph, stored, centered)):
        graph = graph.replace(replaced)
    return graph


def moves(graph: Graph, stored: Collection[str], centered: bool) -> Iterator[tuple[int, Node | None]]:
    """Nodes and their replacements. A node takes part in one move at a time."""
    makers, moved = graph.makers(), set[int]()
    for node in graph.nodes:
        changes = into_users(graph, node, centered) or into_maker(graph, makers, node, stored)
        if not moved & {id(each) for each, _ in changes}:
            moved |= {id(each) for each, _ in changes}
            yield from ((id(each), new) for each, new in changes)


# --- what a projection or a norm stores ---


def into_maker(
    graph: Graph, makers: Mapping[str, Node], node: Node, stored: Collection[str]
) -> list[tuple[Node, Node | None]]:
    """The changes that make a node the last part of what the maker of its first input stores."""
    if node.op not in STORE.ops:
        return []
    first, *others = node.inputs.items()
    for role, y in [first, *(others if node.op == "add" else [])]:
        maker = makers.get(y)
        if maker is None or not stores(maker, node, stored) or graph.only_user(y) is not node:
            continue
        operands = [name for each, name in node.inputs.items() if each != role]
        # In x + x, one user reads the value twice.
        if y in operands:
            continue
        part, removed = {"op": node.op, **without_dtype(node)}, [maker]
        columns = makers.get(operands[0]) if node.op == "gate" else None
        if columns is not None and is_plain_slice(graph, columns):
            operands, removed = [columns.inputs["x"]], [maker, columns]
            part |= {"start": columns.attr("start")} if columns.attr("start") else {}
        roles = [STORE.role(len(maker.attr("store")), each) for each in operand_kinds(STORE.ops[node.op])]
        inputs = {**maker.inputs, **dict(zip(roles, operands, strict=True))}
        attrs = {**maker.attrs, "store": [*maker.attr("store"), part]}
        return [*((each, None) for each in removed), (node, Node(maker.op, inputs, node.outputs, attrs))]
    return []


def stores(maker: Node, node: Node, stored: Collection[str]) -> bool:
    allowed = dict.fromkeys(PROJECTIONS, stored) | dict.fromkeys(("rms_norm", "combine"), BEHIND_NORMS.ops)
    if node.op not in allowed.get(maker.op, ()):
        return False
    if maker.attrs.get("dtype", "float32") != node.attrs.get("dtype", "float32"):
        return False
    if node.op == "gate_halves" and maker.attr("store"):
        return False
    if maker.op == "rms_norm":
        return not maker.attr("centered") and "bias" not in maker.inputs
    return maker.op == "combine" or is_whole(maker)


def is_whole(projection: Node) -> bool:
    """Whether a projection is not a part of one that is split by rows, and has no further results."""
    return projection.attr("columns") is None and len(projection.outputs) == 1


def is_plain_slice(graph: Graph, node: Node) -> bool:
    """Whether columns are read only once, and not rounded."""
    if node.op != "slice_columns" or graph.only_user(node.outputs["y"]) is None:
        return False
    return graph.kind_of(node.inputs["x"]) == "float32" and node.attrs["dtype"] == "float32"


# --- what a projection loads ---


def into_users(graph: Graph, node: Node, centered: bool) -> list[tuple[Node, Node | None]]:
    """The changes that make a node the first part of what all projections that read it load."""
    users = graph.users(node.outputs["y"]) if "y" in node.outputs else []
    if not users or node.outputs["y"] in graph.outputs.values() or not is_loaded(graph, node, centered):
        return []
    if not all(reads_only_as_input(user, node) and is_whole(user) and not user.attr("load") for user in users):
        return []
    return [(node, None), *((user, with_load(user, node)) for user in users)]


def is_loaded(graph: Graph, node: Node, centered: bool) -> bool:
    """Whether a node may be a part without others behind it. A rounded norm must stay rounded."""
    if node.op != "rms_norm":
        return node.op == "fake_quantize"
    return is_row_norm(graph, node) and not node.attr("store") and (centered or not node.attr("centered"))


def is_row_norm(graph: Graph, node: Node) -> bool:
    """Whether a node is a norm of whole rows in float32. Only a LayerNorm may have a bias."""
    if (
        node.op != "rms_norm"
        or node.attr("dtype") != "float32"
        or node.attr("groups") != 1
        or ("bias" in node.inputs and not node.attr("centered"))
    ):
        return False
    return graph.shape_of(node.inputs["x"])[1:] == graph.shape_of(node.inputs["weight"])


def reads_only_as_input(node: Node, read: Node) -> bool:
    roles = [role for role, name in node.inputs.items() if name == read.outputs["y"]]
    return node.op in PROJECTIONS and roles == ["x"]


def with_load(user: Node, node: Node, *, keep: bool = False) -> Node:
    """A projection that computes a node and what the node stores before the parts that it loads now."""
    own = {role: name for role, name in node.inputs.items() if not role.startswith("store")}
    parts: list[Part] = [{"op": node.op, **without_dtype(node)}, *node.attrs.get("store", ())]
    kept = {f"load{len(parts) - 1}": node.outputs["y"]} if keep else {}
    parts[-1] = {**parts[-1], **({"keep": True} if keep else {})}
    inputs = {"x": own.pop("x")}
    inputs |= {LOAD.role(0, role): name for role, name in own.items()}
    for index in range(1, len(parts)):
        inputs |= renamed(node.inputs, f"store{index - 1}_", f"load{index}_")
    for index in range(len(user.attr("load"))):
        inputs |= renamed(user.inputs, f"load{index}_", f"load{index + len(parts)}_")
    others = {role: name for role, name in user.inputs.items() if role != "x" and not role.startswith("load")}
    attrs = {**user.attrs, "load": [*parts, *user.attr("load")]}
    return Node(user.op, {**inputs, **others}, {**user.outputs, **kept}, attrs)


def renamed(inputs: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {f"{new}{role.removeprefix(old)}": name for role, name in inputs.items() if role.startswith(old)}


def without_dtype(node: Node) -> dict[str, object]:
    return {name: value for name, value in node.attrs.items() if name not in ("dtype", "store")}


# --- results that others read too ---


def keep(graph: Graph, *, centered: bool = True) -> Graph:
    """A norm that several nodes read becomes a part of the first one, a projection, which stores it for the others:
    one whose sum with the residual stream they read, and a LayerNorm (if ``centered``).

    Models with norms behind their sub-layers need it. No node may be moved behind this pass.
    """
    replaced: dict[int, Node | None] = {}
    parameters: dict[str, Parameter] = {}
    for node in graph.nodes:
        if not is_row_norm(graph, node) or not (node.attr("store") or (centered and node.attr("centered"))):
            continue
        first = next(iter(graph.users(node.outputs["y"])), None)
        if first is None or first.op != "linear" or not reads_only_as_input(first, node):
            continue
        own, user = node, first
        if node.attr("store") and any(part["op"] == "add" for part in first.attr("store")):
            continue
        if node.attr("store") and loads_rms_norm(first):
            own, user = with_joint_weights(graph, parameters, node, first)
        elif first.attr("load"):
            continue
        replaced |= {id(node): None, id(first): with_load(user, own, keep=True)}
    return graph.replace(replaced, parameters.values())


def loads_rms_norm(linear: Node) -> bool:
    load = linear.attr("load")
    return [part["op"] for part in load] == ["rms_norm"] and not load[0].get("centered")


def with_joint_weights(graph: Graph, parameters: dict[str, Parameter], node: Node, user: Node) -> tuple[Node, Node]:
    """A norm, and a projection that loads another one behind it, with the weights of both in one array, because kernels
    bind few arrays.
    """
    names = [node.inputs["weight"], user.inputs["load0_weight"]]
    weight = stack_parameters(graph, parameters, names, f"{module_of(node)}.norms")
    load = [{**user.attr("load")[0], "row": 1}]
    own = replace(node, inputs={**node.inputs, "weight": weight}, attrs={**node.attrs, "row": 0})
    return own, replace(user, inputs={**user.inputs, "load0_weight": weight}, attrs={**user.attrs, "load": load})
