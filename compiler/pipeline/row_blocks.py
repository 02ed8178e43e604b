"""A step in parts that each hold a block of rows of its matrix. A bundle's step flows in, steps with their weights flow out.

Run one after the other, the parts compute what the step does, and no more than one block of a matrix is in memory: the same parts as those
of `passes/split_large.py`, but of a bundle that is already packed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from ..bundle.folder import Bundle
from ..bundle.manifest import StepEntry
from ..quant.base import FloatArray

# Elements of a block, as float32 and in the few copies that unpacking makes.
BLOCK_ELEMENTS = 2 << 20
MATRIX_ROLES = {"embed": "table", "linear": "weight", "gated_linear": "weight"}


def row_blocks(bundle: Bundle, step: StepEntry, token_ids: Collection[int]) -> Iterator[tuple[StepEntry, Mapping[str, FloatArray]]]:
    """Parts of a step, each with its weights by name. Blocks of an embedding that hold none of ``token_ids`` are left out."""
    names = [name for name in step.inputs.values() if name in bundle.manifest.weights]
    role = MATRIX_ROLES.get(step.op)
    if role is None:
        yield step, {name: bundle.weight(name) for name in names}
        return
    matrix = step.inputs[role]
    rows, columns = bundle.manifest.weights[matrix].shape
    # A gated weight is its gate's rows and then as many of the other half; a part holds the same rows of both, and of both biases.
    halves = 2 if step.op == "gated_linear" else 1
    cut = [matrix, *(step.inputs["bias"] for _ in range(halves - 1) if "bias" in step.inputs)]
    whole = {name: bundle.weight(name) for name in names if name not in cut}
    rows //= halves
    size = max(1, BLOCK_ELEMENTS // (columns * halves))
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        attrs, inputs = dict(step.attrs), dict(step.inputs)
        if start:
            inputs["into"] = next(iter(step.outputs.values()))
        if step.op == "embed":
            attrs["first_row"] = step.attrs.get("first_row", 0) + start
            if start and not any(0 <= token - attrs["first_row"] < stop - start for token in token_ids):
                continue
        else:
            attrs |= {"offset": step.attrs.get("offset", 0) + start, "columns": step.attrs.get("columns", rows)}
        parts = {name: [bundle.weight(name, half * rows + start, half * rows + stop) for half in range(halves)] for name in cut}
        weights = {name: np.concatenate(part) if len(part) > 1 else part[0] for name, part in parts.items()}
        yield step.model_copy(update={"attrs": attrs, "inputs": inputs}), {**whole, **weights}
