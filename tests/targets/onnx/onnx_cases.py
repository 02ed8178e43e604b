"""A checkpoint's logits by `ir/ops/`, and checks of decoder graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from run_plan import PAGE_SIZE, run_graph

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.formats import load
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.quant import Quantization
from nearfar.compiler.runtime.batch import Chunk, make_batch

CONTEXT = 64

Logits = npt.NDArray[np.float32]
Export = Callable[..., Path]


def reference_logits(checkpoint: Path, quantization: Quantization, token_ids: Sequence[int]) -> Logits:
    """The logits (n, V) of n tokens by `ir/ops/`, with the checkpoint's weights after quantization."""
    loaded = load(str(checkpoint))
    graph = by_model_type(loaded.spec.model_type).forward(loaded.spec, PAGE_SIZE, CONTEXT)
    tensors: dict[str, Array] = {}
    for name, parameter in graph.parameters.items():
        rows = loaded.tensors[name].rows(0, parameter.rows)
        tensors[name] = (
            rows if parameter.columns is None else quantization.unpack(quantization.pack(rows), parameter.columns)
        )
    pages = range(-(-len(token_ids) // PAGE_SIZE))
    batch = make_batch([Chunk(token_ids, 0, pages, range(len(token_ids)))], PAGE_SIZE)
    logits: Logits = run_graph(graph, tensors, [batch]).outputs[0]["logits"]
    return logits


def relative_rms(found: Array, expected: Array) -> float:
    """The root mean square of the difference, divided by that of the expected values."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    difference = found.astype(np.float64) - expected
    return float(np.sqrt((difference**2).mean() / (expected.astype(np.float64) ** 2).mean()))


def check_graph(path: Path) -> None:
    """Raise an error if a graph is not valid ONNX or its shapes contradict each other."""
    import onnx

    # ONNX Runtime declares its own op in the standard domain, so the checker does not know it.
    if not onnx.defs.has("SimplifiedLayerNormalization"):
        formal = onnx.defs.OpSchema.FormalParameter
        onnx.defs.register_schema(
            onnx.defs.OpSchema(
                "SimplifiedLayerNormalization",
                "",
                1,
                inputs=[formal("x", "T"), formal("gamma", "T")],
                outputs=[formal("y", "T")],
                type_constraints=[("T", ["tensor(float)", "tensor(float16)"], "floats")],
                attributes=[
                    onnx.defs.OpSchema.Attribute(name, getattr(onnx.defs.OpSchema.AttrType, kind))
                    for name, kind in NORM_ATTRS
                ],
            )
        )
    onnx.checker.check_model(str(path))
    onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)


NORM_ATTRS = (("axis", "INT"), ("epsilon", "FLOAT"))
