"""Cuts a graph to some of its layers: each of the others passes its input on.

The probe of a bundle is made of the result. No pass of a compile, because it changes what the model computes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ..bundle.entries import StepEntry
from ..ir.graph import Graph, Node

# The first number in the name of a parameter or a state is that of its layer.
NUMBER = re.compile(r"(?:^|\.)(\d+)\.")
# What follows the layers of a decoder reads it, and what follows those of an encoder has this op.
SAMPLE_ROWS = "sample_rows"
POOLS = "pool_rows"


def names_read(nodes: Iterable[Node] | Iterable[StepEntry]) -> Iterator[Collection[str]]:
    """The names that each node or step reads, for `layers_of`."""
    for node in nodes:
        yield {*node.inputs.values(), SAMPLE_ROWS} if node.op == POOLS else node.inputs.values()


def layers_of(read: Iterable[Collection[str]], stored: Collection[str]) -> list[int | None]:
    """The layer of each node or step. ``read``: the names that each reads, of which those of parameters and states are
    ``stored``. One that reads none of them belongs to the layer of the one before it; None before the first layer and
    behind the last one.
    """
    found: list[int | None] = []
    current: int | None = None
    for inputs in read:
        names = [name for name in inputs if name in stored or name == SAMPLE_ROWS]
        numbers = [match for name in names if (match := NUMBER.search(name)) is not None]
        if numbers:
            current = int(numbers[0][1])
        elif names:
            current = None
        found.append(current)
    return found


def keep_layers(graph: Graph, kept: Collection[int]) -> Graph | None:
    """The graph without the layers that are not ``kept``. None if a layer is no function of the row before it, as one
    that reads what another layer has stored.
    """
    layers = layers_of(names_read(graph.nodes), graph.parameters.keys() | graph.states.keys())
    # Each layer is one run of nodes; one that reads what another layer has stored has nodes of both numbers.
    runs = [layer for layer, before in zip(layers, [None, *layers], strict=False) if layer not in (None, before)]
    if len(set(runs)) < len(runs):
        return None
    passed: dict[str, str] = {}
    nodes: list[Node] = []
    index = 0
    while index < len(graph.nodes):
        layer, start = layers[index], index
        while index < len(graph.nodes) and layers[index] == layer:
            index += 1
        region = graph.nodes[start:index]
        if layer is None or layer in kept:
            renamed = ({role: passed.get(name, name) for role, name in node.inputs.items()} for node in region)
            nodes += [
                node if inputs == dict(node.inputs) else replace(node, inputs=inputs)
                for node, inputs in zip(region, renamed, strict=True)
            ]
            continue
        row = row_through(graph, region, graph.nodes[index:], nodes)
        if row is None:
            return None
        before, after = row
        passed[after] = passed.get(before, before)
    cut = graph.with_nodes(nodes)
    read = {name for node in nodes for name in node.inputs.values()}
    cut.states = {name: state for name, state in graph.states.items() if name in read}
    return cut


def row_through(
    graph: Graph, region: Sequence[Node], later: Sequence[Node], earlier: Sequence[Node]
) -> tuple[str, str] | None:
    """The value that a layer reads of the one before it and the one that later nodes read, if it is one of each and
    both have one shape.
    """
    made = {name for node in region for name in node.outputs.values()}
    after = {name for node in later for name in node.inputs.values()} & made
    after |= made & set(graph.outputs.values())
    if len(after) != 1:
        return None
    (name,) = after
    # Tables that all layers share have another shape, or are read by this layer's projections as the row is.
    last = {name: index for index, node in enumerate(earlier) for name in node.outputs.values()}
    before = {each for node in region for each in node.inputs.values() if each in graph.values and each not in made}
    alike = [each for each in before if graph.values[each] == replace(graph.values[name], name=each)]
    if not alike:
        return None
    return max(alike, key=lambda each: last.get(each, len(earlier))), name
