"""Stack parameters by rows: the weights of several projections that share an input become one weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..ir.graph import Graph, Node, Parameter
from ..ir.ops.norms import LOAD
from ..ir.ops.projections import stores_halves


def stack_projections(graph: Graph, new: dict[str, Parameter], linears: Sequence[Node], module: str) -> dict[str, str]:
    """The inputs of one projection that computes several, of which `can_stack` holds; its parameters are added to
    ``new``.

    ``module`` names it, as in "model.layers.0.self_attn.qkv_proj".
    """
    first = linears[0]
    stacked = {
        role: stack_parameters(graph, new, [linear.inputs[role] for linear in linears], f"{module}.{role}")
        for role in ("weight", "bias")
        if role in first.inputs
    }
    return {**first.inputs, **stacked}


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


def module_of(node: Node) -> str:
    """ "model.layers.0.mlp" of a node whose weight is "model.layers.0.mlp.gate_proj.weight"."""
    return node.inputs["weight"].rsplit(".", 2)[0]
