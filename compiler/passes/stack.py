"""Stacking parameters by rows: several weights of projections that share an input become one."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Graph, Node, Parameter


def stack_projections(graph: Graph, linears: Sequence[Node], name: str) -> tuple[dict[str, str], list[Parameter]]:
    """The roles "weight" and, where all have one, "bias" of one projection that does the work of several, and its new parameters.

    ``name`` is the module's, as in "model.layers.0.self_attn.qkv_proj".
    """
    roles: dict[str, str] = {}
    parameters = []
    for role in ("weight", "bias"):
        if role in linears[0].inputs:
            roles[role] = f"{name}.{role}"
            parameters.append(stack_parameters(graph, [linear.inputs[role] for linear in linears], roles[role]))
    return roles, parameters


def stack_parameters(graph: Graph, names: Sequence[str], name: str) -> Parameter:
    """Parameters of equal width one above the other, as one parameter of a new name."""
    parts = [graph.parameters[part] for part in names]
    return Parameter(name, tuple(source for part in parts for source in part.sources), parts[0].columns)


def can_stack(linears: Sequence[Node]) -> bool:
    """Whether projections read the same input, are plain but for a bias that all or none have, and give the same dtype."""
    first = linears[0]
    return all(
        linear.op == "linear"
        and linear.inputs.keys() == first.inputs.keys() <= {"x", "weight", "bias"}
        and linear.inputs["x"] == first.inputs["x"]
        and linear.attrs == first.attrs
        for linear in linears
    )


def module_of(node: Node) -> str:
    """ "model.layers.0.mlp" of a node whose weight is "model.layers.0.mlp.gate_proj.weight"."""
    return node.inputs["weight"].rsplit(".", 2)[0]
