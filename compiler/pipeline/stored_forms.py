"""Fits a graph to a checkpoint whose weights are quantized: each matrix keeps the checkpoint's integers, and
activations are rounded as the checkpoint prescribes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from .. import quant
from ..formats.checkpoint import ActivationScales, Checkpoint, StoredMatrix
from ..ir.graph import Graph, Node, Parameter, Source, Value
from ..passes.fit_forms import Runs, fit_forms, scale_results
from ..passes.split_rows import row_ends
from ..quant import Quantization
from ..runtime.errors import CheckpointError, RequestError, UnsupportedModel
from .rounding import rounding_notes

# The format of the matrices that a quantized checkpoint stores as floats.
UNQUANTIZED = "f16"
HEAD = "lm_head"
# Tensors that a message names.
MOST_NAMES = 4


def choose_quantization(
    requested: str | None,
    checkpoint: Checkpoint,
    note: Callable[[str], None],
    *,
    requantize: bool = False,
    group: int | None = None,
) -> tuple[Quantization, bool]:
    """The bundle's quantization, and whether the matrices that the checkpoint stores quantized stay as they are.

    They do unless the user wants to ``requantize`` them; the checkpoint's float matrices are then UNQUANTIZED.
    ``group`` weights share a scale, None for the format's default. ``note`` receives what rounding costs.

    Raises QuantizationError for an unknown name or weights that the format cannot represent, and RequestError for a
    quantization of weights that stay as they are.
    """
    forms = checkpoint.stored_forms
    # The tokens of an encoder see those after them.
    default = quant.DEFAULT if checkpoint.spec.causal else quant.ENCODER_DEFAULT
    if not forms:
        return quant.by_name(requested or default, group), False
    kinds = ", ".join(sorted(forms))
    if not requantize and (requested is not None or group is not None):
        flag = f"--group-size {group}" if requested is None else f"--quantization {requested}"
        raise RequestError(
            f"{flag}: the checkpoint's weights are already quantized ({kinds}), and to round them again costs "
            "accuracy; remove the option to use them as they are, or add --requantize"
        )
    quantization = quant.by_name((requested or default) if requantize else UNQUANTIZED, group)
    for text in rounding_notes(checkpoint, quantization, keeps_forms=not requantize):
        note(text)
    return quantization, not requantize


def require_fittable(checkpoint: Checkpoint, *, requantize: bool) -> None:
    """Raises UnsupportedModel for a checkpoint that --quality best does not fit: its weights are quantized already, and
    the user does not want to ``requantize`` them, or it makes scores.
    """
    forms = checkpoint.stored_forms
    if forms and not requantize:
        raise UnsupportedModel(
            f"{checkpoint.path}: its weights are already quantized ({', '.join(sorted(forms))}), and --quality best "
            "would round rounded weights; give the original checkpoint, remove --quality, or add --requantize"
        )
    if checkpoint.classifier is not None:
        raise UnsupportedModel(
            f"{checkpoint.path}: makes scores, and --quality best compares next tokens or vectors; remove --quality"
        )


def keep_stored_forms(graph: Graph, checkpoint: Checkpoint) -> Graph:
    """The graph with the form of every matrix that the checkpoint stores quantized.

    Raises UnsupportedModel for a matrix that has other values than the checkpoint's, or for experts in several forms.
    """
    return fit_forms(scale_results(graph), partial(stored_runs, checkpoint))


def stored_runs(checkpoint: Checkpoint, parameter: Parameter, stacked: int) -> Runs:
    """The rows from which on the tensors of a parameter are stored in another form, the same for all ``stacked``."""
    forms = [stored_form(checkpoint, source) for source in parameter.sources]
    if any((source.offset, source.factor) != (0, 1) for source in parameter.sources) and {*forms} != {None}:
        raise requantized(checkpoint, parameter, forms, "one matrix with other values")
    if len({*forms}) == 1:
        return [(0, forms[0])]
    rows, ends = parameter.rows // stacked, row_ends(parameter.sources)
    runs, *others = [runs_between(ends, forms, first, first + rows) for first in range(0, parameter.rows, rows)]
    if any(other != runs for other in others):
        raise requantized(checkpoint, parameter, forms, "all experts in the same formats")
    return runs


def runs_between(ends: Sequence[int], forms: Sequence[str | None], first: int, last: int) -> Runs:
    """Those of rows [first, last), if the sources that end at ``ends`` have these forms."""
    starts = [first, *(end for end in ends if first < end < last)]
    runs = [(start - first, forms[bisect_right(ends, start)]) for start in starts]
    return [run for before, run in zip([None, *runs], runs, strict=False) if before is None or before[1] != run[1]]


def stored_form(checkpoint: Checkpoint, source: Source) -> str | None:
    tensor = checkpoint.tensors[source.tensor]
    return tensor.form.name if isinstance(tensor, StoredMatrix) else None


def requantized(
    checkpoint: Checkpoint, parameter: Parameter, forms: Collection[str | None], needed: str
) -> UnsupportedModel:
    names = ", ".join(source.tensor for source in parameter.sources[:MOST_NAMES])
    more = len(parameter.sources) - MOST_NAMES
    return UnsupportedModel(
        f"{checkpoint.path}: {names}{f' and {more} more' if more > 0 else ''}: are stored as "
        f"{', '.join(sorted({form or 'floats' for form in forms}))}, but the {checkpoint.spec.model_type} model needs "
        f"{needed}; add --requantize to convert the weights"
    )


def round_activations(graph: Graph, checkpoint: Checkpoint) -> Graph:
    """The graph with a `fake_quantize` before and after the projections whose activations the checkpoint rounds.

    Modules whose weights the graph does not read, such as those of an image encoder, do not count. Raises
    CheckpointError for a module that the graph does not compute as one projection.
    """
    read = {source.tensor for parameter in graph.parameters.values() for source in parameter.sources}
    scales = {
        module: each
        for module, each in checkpoint.activation_scales.items()
        if f"{module}.weight" in read or module == HEAD
    }
    if not scales:
        return graph
    nodes: list[Node] = []
    # Projections that round one input with the same scale share the result.
    rounded: dict[tuple[str, float], str] = {}
    for node in graph.nodes:
        own = scales.pop(module_of(graph, node), None)
        nodes += [node] if own is None else with_rounding(graph, node, own, rounded)
    if scales:
        module = next(iter(scales))
        raise CheckpointError(
            f"{checkpoint.path}: {module} has scales of activations, but the {checkpoint.spec.model_type} model does "
            "not compute it as one projection",
            module=module,
        )
    return graph.with_nodes(nodes)


def module_of(graph: Graph, node: Node) -> str:
    """The checkpoint's module of a projection; "" for other nodes."""
    if node.op != "linear":
        return ""
    if node.outputs["y"] == graph.outputs.get("logits"):
        return HEAD
    (source, *others) = graph.parameters[node.inputs["weight"]].sources
    return source.tensor.removesuffix(".weight") if not others else ""


def with_rounding(
    graph: Graph, node: Node, scales: ActivationScales, rounded: dict[tuple[str, float], str]
) -> list[Node]:
    nodes: list[Node] = []
    inputs, outputs = dict(node.inputs), dict(node.outputs)
    if scales.input is not None:
        x = inputs["x"]
        key = x, scales.input
        if key not in rounded:
            rounded[key] = f"{x}.rounded{len(rounded)}"
            attrs = {"scale": scales.input, "dtype": dtype_of(graph, x)}
            nodes.append(Node("fake_quantize", {"x": x}, {"y": rounded[key]}, attrs))
        inputs["x"] = rounded[key]
    y = outputs["y"]
    if scales.output is not None:
        outputs["y"] = f"{y}.unrounded"
    nodes.append(replace(node, inputs=inputs, outputs=outputs))
    if scales.output is not None:
        attrs = {"scale": scales.output, "dtype": dtype_of(graph, y)}
        nodes.append(Node("fake_quantize", {"x": outputs["y"]}, {"y": y}, attrs))
    return nodes


def dtype_of(graph: Graph, name: str) -> str:
    value = graph.lookup(name)
    assert isinstance(value, Value)
    return value.dtype
