"""Compute from a manifest alone how many pages a served model gets, and how much memory it needs in total."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.compiler.bundle.manifest import ITEM_BYTES, BufferEntry, ExportManifest, Manifest
from nearfar.compiler.errors import RequestError
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.batch import Limits
from nearfar.compiler.runtime.limits import largest_dims


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``total_bytes``: weights, keys and values, tables, and buffers for the largest batch."""

    limits: Limits
    kv_bytes: int
    total_bytes: int


def weight_bytes(manifest: Manifest | ExportManifest) -> int:
    if isinstance(manifest, ExportManifest):
        return manifest.model_bytes()
    return sum(plane.size for weight in manifest.weights.values() for plane in weight.planes)


def context_bytes(manifest: Manifest | ExportManifest) -> int:
    """The bytes of the keys and values of one sequence with a full context."""
    return manifest.pages_for(manifest.context) * page_bytes(manifest)


def page_bytes(manifest: Manifest | ExportManifest) -> int:
    if isinstance(manifest, ExportManifest):
        return manifest.page_size * manifest.kv_bytes_per_token()
    return size_bytes(manifest, [manifest.states[name] for name in manifest.page_states()], {"P": 1})


def plan_memory(
    manifest: Manifest | ExportManifest,
    *,
    sequences: int,
    tokens: int,
    kv_bytes: int,
    extra_rows: int = 0,
    adapters: int = 0,
) -> MemoryPlan:
    """The number of pages for ``sequences`` with a full context, or fewer if ``kv_bytes`` does not hold them.

    ``tokens`` per step; ``extra_rows`` sampled rows per step beside one for each sequence; slots for ``adapters``.
    Raises RequestError if one sequence does not fit.
    """
    rows = sequences + extra_rows
    page, one = page_bytes(manifest), manifest.pages_for(manifest.context)
    if kv_bytes < one * page:
        raise RequestError(
            f"{manifest.model}: a sequence of {manifest.context} tokens needs {one * page:,} bytes of keys and values, "
            f"but {kv_bytes:,} are available; allow more with --kv-memory, or compile a shorter context with --context",
            param="model",
        )
    pages = min(one * sequences, kv_bytes // page) if page else one * sequences
    limits = Limits(tokens=tokens, sequences=sequences, rows=rows, pages=pages, adapters=adapters)
    buffers = (
        export_buffer_bytes(manifest, limits)
        if isinstance(manifest, ExportManifest)
        else plan_buffer_bytes(manifest, limits)
    )
    return MemoryPlan(limits, pages * page, weight_bytes(manifest) + pages * page + buffers)


def plan_buffer_bytes(manifest: Manifest, limits: Limits) -> int:
    """The bytes of tables, slot states, and buffers for the largest batch."""
    states = manifest.page_states()
    others = [state for name, state in manifest.states.items() if name not in states]
    entries = (*manifest.buffers.values(), *manifest.inputs.values(), *manifest.scratch.values(), *others)
    passing = size_bytes(manifest, entries, largest_dims(manifest, limits))
    tables = sum(math.prod(constant.shape) * ITEM_BYTES["float32"] for constant in manifest.constants.values())
    return passing + tables


def export_buffer_bytes(manifest: ExportManifest, limits: Limits) -> int:
    """The bytes of the sampler's states, the logits, and a layer's activations for the largest batch. The framework's
    further memory is unknown.
    """
    spec = manifest.spec
    states = limits.sequences * (2 * spec.vocab_size * ITEM_BYTES["int32"] + spec.vocab_size // 8)
    widest = max(spec.intermediate_size, spec.num_heads * spec.head_dim)
    return states + ITEM_BYTES["float32"] * (limits.rows * spec.vocab_size + 4 * limits.tokens * widest)


def size_bytes(manifest: Manifest, buffers: Iterable[BufferEntry], dims: dict[str, int]) -> int:
    """Uses the activation dtype that the bundle prefers."""
    activation = manifest.activations[0].dtype
    return sum(
        math.prod(evaluate(extent, dims) for extent in buffer.shape)
        * ITEM_BYTES[activation if buffer.dtype == "activation" else buffer.dtype]
        for buffer in buffers
    )
