"""linear(x)  ->  linear(x), then add_lora of the same x: every projection of a layer takes LoRA adapters, one for each row of the batch.

A gated projection is taken apart, for an adapter changes gate and up before their activation. The low-rank matrices are states: places are
filled and emptied while the model runs.
"""

from __future__ import annotations

from ..bundle.manifest import LoraEntry, LoraModule
from ..ir.graph import Graph, Node, Value
from ..ir.plan import Plan

LAYERS = "model.layers."


def add_lora(graph: Graph, rank: int) -> Graph:
    adapted = Graph(inputs=dict(graph.inputs), states=dict(graph.states), constants=graph.constants, outputs=graph.outputs)
    adapted.inputs["adapters"] = Value("adapters", ("S",), "int32")
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = node.inputs.get("weight", "")
        if node.op not in ("linear", "gated_linear") or not weight.startswith(LAYERS):
            nodes.append(node)
            continue
        parameter = graph.parameters[weight]
        assert parameter.columns is not None
        widths = [source.stop - source.start for source in parameter.sources]
        a, b = (f"{weight.removesuffix('.weight')}.lora_{letter}" for letter in "ab")
        adapted.states[a] = Value(a, ("M", rank * len(widths), parameter.columns), "float32")
        adapted.states[b] = Value(b, ("M", parameter.rows, rank), "float32")
        y = node.outputs["y"]
        gated = node.op == "gated_linear"
        dtype = "float32" if gated else node.attrs["dtype"]
        plain, changed = f"{y}.plain", f"{y}.changed" if gated else y
        nodes.append(Node("linear", node.inputs, {"y": plain}, {**node.attrs, "dtype": dtype}))
        reads = {role: node.inputs[role] for role in ("x", "norm") if role in node.inputs}
        eps = {"eps": node.attrs["eps"]} if "norm" in node.inputs else {}
        inputs = {**reads, "adapters": "adapters", "a": a, "b": b, "into": plain}
        nodes.append(Node("add_lora", inputs, {"y": changed}, {"widths": widths, "dtype": dtype, **eps}))
        if gated:
            nodes.append(Node("gate_halves", {"x": changed}, {"y": y}))
    return adapted.with_nodes(nodes, graph.parameters.values())


def lora_entry(plan: Plan, rank: int) -> LoraEntry:
    """Where the matrices of each module go in a plan that has adapters."""
    modules = {}
    for step in plan.steps:
        if step.op != "add_lora":
            continue
        start = 0
        sources = plan.weights[f"{step.inputs['a'].removesuffix('.lora_a')}.weight"].sources
        for part, (source, width) in enumerate(zip(sources, step.attrs["widths"], strict=True)):
            place = LoraModule(a=step.inputs["a"], b=step.inputs["b"], part=part, start=start, stop=start + width)
            modules[source.tensor.removesuffix(".weight")] = place
            start += width
    return LoraEntry(rank=rank, modules=modules)
