"""Stack the projections of one input: their weights become one weight, by rows.

stack_gates     gate = linear(x), up = linear(x), gate(gate, up)  ->  gate_halves(linear(x)), the gate's rows first
stack_siblings  q = linear(x), k = linear(x), v = linear(x)       ->  qkv = linear(x), and q, k and v as slices of it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.norms import LOAD
from ..ir.ops.projections import stores_halves


def stack_gates(graph: Graph) -> Graph:
    makers = graph.makers()
    replaced: dict[int, Node | None] = {}
    parameters: dict[str, Parameter] = {}
    for node in graph.nodes:
        if node.op != "gate" or "start" in node.attrs:
            continue
        pair = [makers[node.inputs[role]] for role in ("gate", "up") if node.inputs[role] in makers]
        # A projection that is both gate and up is not stacked, nor is one whose result is rounded.
        if len(pair) < 2 or pair[0] is pair[1] or not can_stack(graph, pair) or pair[0].attr("dtype") != "float32":
            continue
        if any(graph.only_user(linear.outputs["y"]) is not node for linear in pair):
            continue
        joint = stacked(graph, parameters, pair, "gate_up")
        replaced |= {id(pair[0]): joint, id(pair[1]): None}
        replaced[id(node)] = Node("gate_halves", {"x": joint.outputs["y"]}, node.outputs, node.attrs)
    return graph.replace(replaced, parameters.values())


# The layer that a weight belongs to.
_LAYER = re.compile(r".*?\blayers?\.\d+\.")


def stack_siblings(graph: Graph, dtype: str | None = None) -> Graph:
    """Stack those of one layer: the result of all layers that read an encoder's rows would be too large. ``dtype``:
    only projections whose results have it.
    """
    nodes: list[Node] = []
    parameters: dict[str, Parameter] = {}
    done: set[int] = set()
    for node in graph.nodes:
        if id(node) in done:
            continue
        stacks = node.op == "linear" and dtype in (None, node.attr("dtype"))
        users = graph.users(node.inputs["x"]) if stacks else []
        siblings = [user for user in users if layer_of(user) == layer_of(node) and can_stack(graph, [node, user])]
        if len(siblings) < 2:
            nodes.append(node)
            continue
        done |= {id(sibling) for sibling in siblings}
        joint = stacked(graph, parameters, siblings, "".join(short_name(sibling) for sibling in siblings))
        bounds = accumulate((graph.parameters[each.inputs["weight"]].rows for each in siblings), initial=0)
        nodes.append(joint)
        for sibling, (start, stop) in zip(siblings, pairwise(bounds), strict=True):
            attrs = {"start": start, "stop": stop, "dtype": node.attr("dtype")}
            nodes.append(Node("slice_columns", {"x": joint.outputs["y"]}, sibling.outputs, attrs))
    return graph.with_nodes(nodes, parameters.values())


def stacked(graph: Graph, new: dict[str, Parameter], linears: Sequence[Node], name: str) -> Node:
    """One projection that computes several, of which `can_stack` holds; its parameters are added to ``new``.

    ``name`` is that of its module, such as "qkv" for "model.layers.0.self_attn.qkv_proj".
    """
    first, module = linears[0], f"{module_of(linears[0])}.{name}_proj"
    own = {
        role: stack_parameters(graph, new, [linear.inputs[role] for linear in linears], f"{module}.{role}")
        for role in ("weight", "bias")
        if role in first.inputs
    }
    y = unused_name(graph, (), f"{own['weight'].removesuffix('.weight')}.out")
    return Node("linear", {**first.inputs, **own}, {"y": y}, first.attrs)


def stack_parameters(graph: Graph, new: dict[str, Parameter], names: Sequence[str], name: str) -> str:
    """Stack parameters of equal width, add the stack to ``new``, and return its name, which neither ``new`` nor the
    graph has yet.
    """
    parts = [graph.parameters[part] for part in names]
    name = unused_name(graph, new, name)
    sources = tuple(source for part in parts for source in part.sources)
    new[name] = Parameter(name, sources, parts[0].columns, parts[0].form)
    return name


def unused_name(graph: Graph, new: Collection[str], name: str) -> str:
    candidate, number = name, 1
    while graph.find(candidate) is not None or candidate in new:
        number += 1
        candidate = f"{name}.{number}"
    return candidate


def can_stack(graph: Graph, linears: Sequence[Node]) -> bool:
    """Whether projections load the same, store the same without further inputs, all or none have a bias, and have
    weights of one format.
    """
    first = linears[0]
    return all(
        linear.op == "linear"
        and linear.has_only(inputs=("x", "weight", "bias", *LOAD.roles(linear.attrs)), attrs=("dtype", "load", "store"))
        and {**linear.inputs, "weight": "", "bias": ""} == {**first.inputs, "weight": "", "bias": ""}
        and ("bias" in linear.inputs) == ("bias" in first.inputs)
        and linear.attrs == first.attrs
        and not stores_halves(linear.attr("store"))
        and linear.inputs["weight"] in graph.parameters
        and graph.parameters[linear.inputs["weight"]].form == graph.parameters[first.inputs["weight"]].form
        for linear in linears
    )


def layer_of(node: Node) -> str:
    match = _LAYER.match(node.inputs.get("weight", ""))
    return match[0] if match else ""


def module_of(node: Node) -> str:
    """ "model.layers.0.mlp" of a node whose weight is "model.layers.0.mlp.gate_proj.weight"."""
    return node.inputs["weight"].rsplit(".", 2)[0]


def short_name(linear: Node) -> str:
    """ "q" of a projection whose weight is "model.layers.0.self_attn.q_proj.weight"."""
    return linear.inputs["weight"].removesuffix(".weight").rsplit(".", 1)[-1].removesuffix("_proj")
