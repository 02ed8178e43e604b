"""route, expert_linear, gate_halves, expert_linear and combine -> MoE, or QMoE for experts that are codes.

ONNX Runtime computes a mixture by one op, which reads the weights of the chosen experts. It chooses by the largest
logits, and its weights are the softmax of all logits or of the chosen ones. For any other router, the graph chooses
itself and passes the logarithms of the weights as logits: their softmax is the weights, up to a factor.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.graph import Node, Parameter
from nearfar.compiler.ir.rotary_pairs import RotaryPairs
from nearfar.compiler.runtime.errors import QuantizationError, UnsupportedModel

from .builder import MICROSOFT
from .emitter import Emitter
from .matmul_nbits import ACCURACY_LEVEL

ELSEWHERE = "use --target webgpu, cpu or cuda"


def defer_part(emitter: Emitter, node: Node) -> None:
    """A part of a mixture is deferred: `add_mixture` claims it."""
    if not emitter.device.mixtures:
        raise UnsupportedModel(
            f"the model has {node.op}, for which ONNX Runtime's MoE was not tried on this device; use --device cpu, "
            "or --target webgpu, cpu or cuda"
        )
    emitter.defer(node, refuse_part)


def refuse_part(emitter: Emitter, node: Node) -> None:  # noqa: ARG001
    raise UnsupportedModel(
        f"the model has {node.op} outside a mixture of gated experts, which ONNX Runtime's MoE does not compute; "
        f"{ELSEWHERE}"
    )


def add_mixture(emitter: Emitter, node: Node) -> None:
    """Raises UnsupportedModel for experts that MoE does not compute, and QuantizationError for codes that QMoE does not
    read.
    """
    add, y = emitter.builder.add, node.outputs["y"]
    route, both, gated, down = parts = mixture_of(emitter, node)
    emitter.claim(*parts)
    (x,), gate = emitter.inputs(both, "x"), gate_attrs(gated)
    logits, normalized, factor = routed(emitter, route, y)
    first, second = (emitter.graph.parameters[each.inputs["weight"]] for each in (both, down))
    inputs = [x, logits, *expert_weights(emitter, both, interleaved=True), *expert_weights(emitter, down)]
    while not inputs[-1]:
        inputs.pop()
    attrs = {
        "k": route.attrs["chosen"],
        "normalize_routing_weights": int(normalized),
        **gate,
        **(code_attrs(emitter, first, second) if emitter.packed(first) else {}),
    }
    op = "QMoE" if emitter.packed(first) else "MoE"
    result = add(op, inputs, f"{y}.mixture" if factor else y, domain=MICROSOFT, **attrs)
    emitter.names[y] = add("Mul", [result, factor], y) if factor else result


def mixture_of(emitter: Emitter, node: Node) -> tuple[Node, Node, Node, Node]:
    """The router, the projections of gates and what they gate, the gate, and the projections behind it."""
    makers = emitter.graph.makers()
    down = makers[node.inputs["x"]]
    gated = makers[down.inputs["x"]]
    both = makers[gated.inputs["x"]] if gated.op == "gate_halves" else gated
    route = makers[node.inputs["weights"]]
    chosen = route.outputs["chosen"]
    fits = [each.op for each in (down, both)] == ["expert_linear"] * 2 and gated.op == "gate_halves"
    if not fits or any(each.inputs["chosen"] != chosen for each in (down, both)):
        refuse_part(emitter, node)
    return route, both, gated, down


def gate_attrs(gated: Node) -> dict[str, int | float | str]:
    """swiglu: silu(alpha * gate) / alpha * (up + beta), of gates and ups that alternate."""
    if gated.attr("activation") != "silu":
        raise UnsupportedModel(
            f"the model has expert_linear with experts gated by {gated.attr('activation')}, and ONNX Runtime's MoE "
            f"gates by silu only on CPUs; {ELSEWHERE}"
        )
    limit = {} if gated.attr("limit") is None else {"swiglu_limit": gated.attr("limit")}
    slope, shift = gated.attr("slope"), gated.attr("shift")
    return {
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": float(slope),
        "activation_beta": float(shift),
        **limit,
    }


def code_attrs(emitter: Emitter, first: Parameter, second: Parameter) -> dict[str, int]:
    """Raises QuantizationError for matrices whose columns are not a multiple of a block, which QMoE needs."""
    block = emitter.block(first)
    for parameter in (first, second):
        if emitter.block(parameter) != block or parameter.shape[1] % block:
            raise QuantizationError(
                f"{parameter.name}: experts have {parameter.shape[1]} columns, and ONNX Runtime's QMoE needs blocks of "
                f"{block} without a rest; use --quantization f16",
                tensor=parameter.name,
            )
    return {
        "expert_weight_bits": emitter.bits(first),
        "fc2_expert_weight_bits": emitter.bits(second),
        "block_size": block,
        "accuracy_level": ACCURACY_LEVEL,
    }


def expert_weights(emitter: Emitter, node: Node, *, interleaved: bool = False) -> list[str]:
    """The weights (experts, rows, columns), the scales if they are codes, and the biases, "" for none."""
    parameter, experts = emitter.graph.parameters[node.inputs["weight"]], node.attrs["experts"]
    rows = parameter.rows // experts
    pairs = RotaryPairs(rows, rows) if interleaved else None
    found = emitter.stack(parameter, experts, pairs)
    if "bias" not in node.inputs:
        return [*found, ""]
    bias = emitter.graph.parameters[node.inputs["bias"]]
    return [*found, emitter.store(bias, "w", emitter.activation, (experts, rows), pairs=pairs)]


def routed(emitter: Emitter, route: Node, y: str) -> tuple[str, bool, str]:
    """The logits by which the op chooses, whether it normalizes the weights, and a factor of its result, "" for
    none.
    """
    if "scales" in route.inputs:
        raise UnsupportedModel(
            f"the model has route with scales of experts, which have no form in --target onnx; {ELSEWHERE}"
        )
    (logits,), router, scale = emitter.inputs(route, "logits"), route.attr("router"), route.attr("scale")
    constant = "" if scale == 1 else emitter.factor(scale)
    if "bias" not in route.inputs and router != "sigmoid":
        return logits, router == "softmax_chosen" or route.attr("normalized"), constant
    builder, add = emitter.builder, emitter.builder.add
    if router == "softmax_chosen":
        scores = logits
    else:
        scores = add("Softmax" if router == "softmax" else "Sigmoid", [logits], f"{y}.scores")
    ranks = scores
    if "bias" in route.inputs:
        ranks = add("Add", [scores, emitter.vector(route.inputs["bias"])], f"{y}.ranks")
    chosen = f"{y}.chosen"
    add("TopK", [ranks, builder.integers(route.attrs["chosen"])], f"{y}.chosen_ranks", chosen, axis=1)
    weights = add("GatherElements", [scores, chosen], f"{y}.chosen_scores", axis=1)
    # Softmax of the logarithms of weights.
    logarithms = weights if router == "softmax_chosen" else add("Log", [weights], f"{y}.logarithms")
    never = builder.constant("never_chosen", np.array([np.finfo(np.float32).min], emitter.activation))
    shape = add("Shape", [logits], f"{y}.logits_shape")
    empty = add("Expand", [never, shape], f"{y}.never")
    own = add("ScatterElements", [empty, chosen, logarithms], f"{y}.own_logits", axis=1)
    if router == "softmax_chosen" or route.attr("normalized"):
        return own, True, constant
    total = add("ReduceSum", [weights, builder.integers(1)], f"{y}.weights", keepdims=1)
    return own, True, add("Mul", [total, constant], f"{y}.factor") if constant else total
