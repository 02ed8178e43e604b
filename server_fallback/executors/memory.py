"""How many pages a served model gets, and how much memory that takes in all, from its manifest alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.compiler.batch import Limits
from nearfar.compiler.errors import RequestError
from nearfar.compiler.expr import evaluate
from nearfar.compiler.manifest import BufferEntry, Manifest
from nearfar.compiler.report import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``total_bytes``: weights, keys and values, tables, and buffers for the largest batch."""

    limits: Limits
    kv_bytes: int
    total_bytes: int


def weight_bytes(manifest: Manifest) -> int:
    return sum(plane.size for weight in manifest.weights.values() for plane in weight.planes)


def plan_memory(manifest: Manifest, *, sequences: int, tokens: int, kv_bytes: int, extra_rows: int = 0, adapters: int = 0) -> MemoryPlan:
    """As many pages as ``sequences`` of the whole context take, or as fit into ``kv_bytes``.

    ``tokens`` a step; ``extra_rows`` sampled rows a step beside one for each sequence; places for ``adapters``.
    Raises RequestError where one sequence does not fit.
    """
    dims = {
        "S": tokens,
        "B": sequences,
        "R": sequences + extra_rows,
        "N": sequences,
        "A": sequences + extra_rows,
        "W": sequences + extra_rows,
    }
    dims |= {"T": manifest.context, "M": adapters, "G": tokens}
    states = manifest.page_states()
    paged = [manifest.plan.states[name] for name in states]
    page_bytes = size_bytes(manifest, paged, dims | {"P": 1, "L": 1})
    one = manifest.pages_for(manifest.context)
    if kv_bytes < one * page_bytes:
        raise RequestError(
            f"{manifest.model}: a sequence of {manifest.context} tokens takes {one * page_bytes:,} bytes of keys and values, "
            f"there are {kv_bytes:,}; give more with --kv-memory, or compile for a shorter context with --context",
            param="model",
        )
    pages = min(one * sequences, kv_bytes // page_bytes) if page_bytes else one * sequences
    dims |= {"P": pages, "L": pages * sequences}
    plan = manifest.plan
    others = [state for name, state in plan.states.items() if name not in states]
    passing = size_bytes(manifest, (*plan.buffers.values(), *plan.inputs.values(), *manifest.scratch.values(), *others), dims)
    tables = sum(math.prod(constant.shape) * ITEM_BYTES["float32"] for constant in plan.constants.values())
    limits = Limits(tokens=tokens, sequences=sequences, rows=sequences + extra_rows, pages=pages, adapters=adapters)
    return MemoryPlan(limits, pages * page_bytes, weight_bytes(manifest) + pages * page_bytes + passing + tables)


def size_bytes(manifest: Manifest, buffers: Iterable[BufferEntry], dims: dict[str, int]) -> int:
    """With the activation dtype that the bundle prefers."""
    activation = manifest.activations[0].dtype
    return sum(
        math.prod(evaluate(extent, dims) for extent in buffer.shape)
        * ITEM_BYTES[activation if buffer.dtype == "activation" else buffer.dtype]
        for buffer in buffers
    )
