"""gate and gate_halves -> activation(gate) * up, activate and soft_cap, in ONNX's own ops."""

from __future__ import annotations

from nearfar.compiler.ir.graph import Node
from nearfar.compiler.runtime.errors import UnsupportedModel

from .emitter import Emitter
from .experts import refuse_part


def add_gate(emitter: Emitter, node: Node) -> None:
    gate, up = emitter.inputs(node, "gate", "up")
    add_gated(emitter, node, gate, up)


def add_gate_halves(emitter: Emitter, node: Node) -> None:
    """The gate of experts is deferred: a mixture includes it. Raises UnsupportedModel for another gate with a limit, a
    slope or a shift.
    """
    if emitter.deferred_node(node.inputs["x"], "expert_linear") is not None:
        emitter.defer(node, refuse_part)
        return
    changed = [name for name in ("limit", "slope", "shift") if name in node.attrs]
    if changed:
        raise UnsupportedModel(
            f"the model has gate_halves with {changed[0]} {node.attrs[changed[0]]!r}, which has no form in --target "
            "onnx; use --target webgpu, cpu or cuda"
        )
    gate, up = (f"{node.outputs['y']}.{part}" for part in ("gate", "up"))
    emitter.builder.add("Split", emitter.inputs(node, "x"), gate, up, axis=1, num_outputs=2)
    add_gated(emitter, node, gate, up)


def add_activate(emitter: Emitter, node: Node) -> None:
    (x,), y = emitter.inputs(node, "x"), node.outputs["y"]
    emitter.names[y] = activated(emitter, node.attr("activation"), x, y)


def add_soft_cap(emitter: Emitter, node: Node) -> None:
    add, y = emitter.builder.add, node.outputs["y"]
    (x,) = emitter.inputs(node, "x")
    scale, cap = node.attr("scale"), node.attr("cap")
    if cap is None:
        emitter.names[y] = add("Mul", [x, emitter.factor(scale)], y)
        return
    ratio = add("Mul", [x, emitter.factor(scale / cap)], f"{y}.ratio")
    emitter.names[y] = add("Mul", [add("Tanh", [ratio], f"{y}.tanh"), emitter.factor(cap)], y)


def add_clip(emitter: Emitter, node: Node) -> None:
    limit, y = node.attrs["limit"], node.outputs["y"]
    bounds = [emitter.factor(-limit), emitter.factor(limit)]
    emitter.names[y] = emitter.builder.add("Clip", [*emitter.inputs(node, "x"), *bounds], y)


def add_gated(emitter: Emitter, node: Node, gate: str, up: str) -> None:
    y = node.outputs["y"]
    emitter.names[y] = emitter.builder.add("Mul", [activated(emitter, node.attr("activation"), gate, y), up], y)


def activated(emitter: Emitter, activation: str, x: str, y: str) -> str:
    """The activation of x, for the result y."""
    add = emitter.builder.add
    match activation:
        case "silu":
            # ONNX Runtime fuses these two if the device has a kernel for both.
            return add("Mul", [x, add("Sigmoid", [x], f"{y}.sigmoid")], f"{y}.silu")
        case "gelu":
            return add("Gelu", [x], f"{y}.gelu", approximate="none")
        case "gelu_tanh":
            return add("Gelu", [x], f"{y}.gelu", approximate="tanh")
        case "relu2":
            relu = add("Relu", [x], f"{y}.relu")
            return add("Mul", [relu, relu], f"{y}.relu2")
        case "relu":
            return add("Relu", [x], f"{y}.relu")
        case "tanh":
            return add("Tanh", [x], f"{y}.tanh")
        case "asinh":
            return add("Asinh", [x], f"{y}.asinh")
        case "sigmoid":
            return add("Sigmoid", [x], f"{y}.sigmoid")
        case "none":
            return x
    raise AssertionError(f"activation {activation} is not declared")
