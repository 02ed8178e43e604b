"""One page table for all layers -> a second one for layers with a window, if other layers see the whole context.

Pages behind a window can be given back only if no other layer reads them. Therefore the window layers of a model that
has both get states of PW pages, and inputs of their own that describe them.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.expr import Expr
from ..ir.graph import Graph, Node, Value
from ..ir.pages import PAGE_INPUTS, PAGES, WINDOW, WINDOW_PAGES


def split_page_groups(graph: Graph) -> Graph:
    windows: dict[str, list[int | None]] = {name: [] for name, state in graph.states.items() if state.shape[0] == PAGES}
    for node in graph.nodes:
        # The keys and values of heads that draft tokens have pages of their own.
        if "page_ids" in node.inputs and node.inputs["kv"] in windows:
            windows[node.inputs["kv"]].append(node.attr("window"))
    windowed = {name for name, found in windows.items() if found and None not in found}
    if len(windowed) in (0, len(windows)):
        return graph
    renamed = {name: WINDOW + name for name in PAGE_INPUTS if name in graph.inputs}
    states = {
        name: replace(state, shape=(WINDOW_PAGES, *state.shape[1:])) if name in windowed else state
        for name, state in graph.states.items()
    }
    inputs = graph.inputs | {
        own: Value(own, tuple(map(_of_windows, graph.inputs[name].shape)), "int32") for name, own in renamed.items()
    }
    nodes = [
        Node(
            node.op,
            {role: renamed.get(name, name) for role, name in node.inputs.items()},
            node.outputs,
            node.attrs,
        )
        if node.inputs.get("kv") in windowed
        else node
        for node in graph.nodes
    ]
    split = replace(graph, states=states, inputs=inputs, values={}).with_nodes(nodes)
    used = {name for node in split.nodes for name in node.inputs.values()}
    split.inputs = {name: value for name, value in inputs.items() if name not in renamed.values() or name in used}
    return split


def _of_windows(extent: Expr) -> Expr:
    return "LW" if extent == "L" else extent
