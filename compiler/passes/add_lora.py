"""linear(x) -> linear(x), then add_lora of the same x: every projection of a layer supports LoRA adapters, one for each
row of the batch.

The projection may store a sum with the residual stream, to which the adapter adds its change, but nothing else. The
low-rank matrices are states: adapters are loaded and unloaded while the model runs.
"""

from __future__ import annotations

from ..bundle.entries import LoraEntry, LoraModule
from ..ir.graph import Graph, Node, Value
from ..ir.ops.norms import LOAD
from ..ir.plan import Plan
from ..runtime.errors import UnsupportedModel

LAYERS = "model.layers."
# The only part that a projection with an adapter stores.
STORED = ("add",)


def add_lora(graph: Graph, rank: int) -> Graph:
    """Raises ValueError for a projection of a layer that cannot be split into its ops, because its adapters would have
    no effect; UnsupportedModel for one that computes only sampled rows.
    """
    adapted = Graph(
        inputs=dict(graph.inputs),
        states=dict(graph.states),
        constants=graph.constants,
        outputs=graph.outputs,
        gathered=graph.gathered,
    )
    adapted.inputs["adapters"] = Value("adapters", ("S",), "int32")
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = node.inputs.get("weight", "")
        if node.op != "linear" or not weight.startswith(LAYERS):
            nodes.append(node)
            continue
        if any(part["op"] not in STORED for part in node.attr("store")) or "columns" in node.attrs:
            raise ValueError(
                f"{node.op} of {weight}: does not support LoRA adapters with {', '.join((*node.inputs, *node.attrs))}"
            )
        if graph.shape_of(node.inputs["x"])[0] != "S":
            raise UnsupportedModel(
                f"{weight}: LoRA adapters are not supported for layers that compute only sampled rows; "
                "compile the model without adapters"
            )
        parameter = graph.parameters[weight]
        assert parameter.columns is not None
        widths = [source.stop - source.start for source in parameter.sources]
        a, b = (f"{weight.removesuffix('.weight')}.lora_{letter}" for letter in "ab")
        adapted.states[a] = Value(a, ("M", rank * len(widths), parameter.columns), "float32")
        adapted.states[b] = Value(b, ("M", parameter.rows, rank), "float32")
        y = node.outputs["y"]
        plain = f"{y}.plain"
        nodes.append(Node("linear", node.inputs, {"y": plain}, node.attrs))
        reads = {role: node.inputs[role] for role in ("x", *LOAD.roles(node.attrs)) if role in node.inputs}
        inputs = {**reads, "adapters": "adapters", "a": a, "b": b, "into": plain}
        attrs = {"widths": widths, "dtype": node.attr("dtype"), "load": node.attr("load")}
        nodes.append(Node("add_lora", inputs, {"y": y}, attrs))
    return adapted.with_nodes(nodes, graph.parameters.values())


def lora_entry(plan: Plan, rank: int) -> LoraEntry:
    """The states that hold the matrices of each module, for a plan with adapters.

    A module of the checkpoint may be split among several projections, or several parts of one. Each holds its rows of
    the module's B.
    """
    modules: dict[str, list[LoraModule]] = {}
    for step in plan.steps:
        if step.op != "add_lora":
            continue
        start = 0
        sources = plan.weights[f"{step.inputs['a'].removesuffix('.lora_a')}.weight"].sources
        for part, (source, width) in enumerate(zip(sources, step.attrs["widths"], strict=True)):
            a, b = step.inputs["a"], step.inputs["b"]
            entry = LoraModule(
                a=a,
                b=b,
                part=part,
                start=start,
                stop=start + width,
                first_row=source.start,
                factor=source.factor,
                pairs=source.pairs,
            )
            modules.setdefault(source.tensor.removesuffix(".weight"), []).append(entry)
            start += width
    return LoraEntry(rank=rank, modules=modules)
