"""Compute from a manifest alone how many pages a served model gets, and how much memory it needs in total."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.compiler.bundle.entries import ITEM_BYTES, BufferEntry
from nearfar.compiler.bundle.manifest import ExportManifest, Manifest
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.pages import DRAFT_PAGES, KEPT_PAGES, PAGE_DIMS, STATES
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.limits import largest_dims, page_groups
from nearfar.compiler.runtime.page_groups import group_windows, pages_of_sequence
from nearfar.compiler.runtime.runner import Limits

# The pages that the heads of a model need, if they draft tokens.
HEAD_DIMS = (DRAFT_PAGES, KEPT_PAGES)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``kv_bytes`` are those of keys and values, ``state_bytes`` those of recurrent layers' states. ``total_bytes``:
    both, weights, tables, and buffers for the largest batch.
    """

    limits: Limits
    kv_bytes: int
    state_bytes: int
    total_bytes: int


def weight_bytes(manifest: Manifest | ExportManifest) -> int:
    """The bytes of weights that must be in memory. A CPU maps those of experts from their files, and the system drops
    the pages that it needs for other purposes; those that a token reads count.
    """
    if isinstance(manifest, ExportManifest):
        return manifest.model_bytes()
    sizes = {name: sum(plane.size for plane in weight.planes) for name, weight in manifest.weights.items()}
    experts = manifest.spec.experts
    if manifest.target != "cpu" or experts is None:
        return sum(sizes.values())
    mapped = sum(sizes.pop(name) for name in manifest.expert_weights)
    return sum(sizes.values()) + mapped * experts.chosen // experts.number


def context_bytes(manifest: Manifest | ExportManifest, tokens: int, *, drafts: bool = False) -> int:
    """The bytes of the keys and values of one sequence with a full context, and ``tokens`` per step; with ``drafts``,
    also what the heads need that draft tokens.
    """
    sizes = page_bytes(manifest, drafts=drafts)
    return sum(count * size for count, size in zip(pages_of_one(manifest, tokens), sizes, strict=True))


def pages_of_one(manifest: Manifest | ExportManifest, tokens: int) -> list[int]:
    """The most pages of one sequence in each page group."""
    return [
        pages_of_sequence(window, manifest.context, manifest.page_size, tokens) for window in group_windows(manifest)
    ]


def page_bytes(manifest: Manifest | ExportManifest, *, drafts: bool = False) -> list[int]:
    """The bytes of a page of each page group. With ``drafts``, a page of the first group has one for the heads beside,
    and the rows that they read.
    """
    if isinstance(manifest, ExportManifest):
        return [manifest.page_size * manifest.kv_bytes_per_token()]
    states = ([manifest.states[name] for name in manifest.page_states(group)] for group in range(len(PAGE_DIMS)))
    sizes = [size_bytes(manifest, own, dict.fromkeys(PAGE_DIMS, 1)) for own in states]
    if drafts:
        own = [state for state in manifest.states.values() if state.shape[0] in HEAD_DIMS]
        sizes[0] += size_bytes(manifest, own, dict.fromkeys(HEAD_DIMS, 1))
    return sizes[: len(group_windows(manifest))]


def plan_memory(
    manifest: Manifest | ExportManifest,
    *,
    sequences: int,
    tokens: int,
    kv_bytes: int,
    extra_rows: int = 0,
    adapters: int = 0,
    states: int | None = None,
    drafts: bool = False,
) -> MemoryPlan:
    """The number of pages for ``sequences`` with a full context, or fewer if ``kv_bytes`` does not hold them beside
    ``states`` slots of the states of recurrent layers.

    ``tokens`` per step; ``extra_rows`` sampled rows per step beside one for each sequence; slots for ``adapters``;
    ``drafts``: the heads of the model draft tokens. Raises RequestError if one sequence does not fit.
    """
    rows = sequences + extra_rows
    least = context_bytes(manifest, tokens, drafts=drafts)
    states = states or sequences
    state_bytes = states * bytes_of_state(manifest)
    kv_bytes -= state_bytes
    if kv_bytes < least and state_bytes > 0:
        raise RequestError(
            f"{manifest.model}: {states} states of recurrent layers take {state_bytes:,} bytes and a sequence of "
            f"{manifest.context} tokens {least:,}, but {kv_bytes + state_bytes:,} are available; allow more with "
            "--kv-memory, or fewer --max-sequences or --state-snapshots",
            param="model",
        )
    if kv_bytes < least:
        raise RequestError(
            f"{manifest.model}: a sequence of {manifest.context} tokens needs {least:,} bytes of keys and values, "
            f"but {kv_bytes:,} are available; allow more with --kv-memory, or compile a shorter context with --context",
            param="model",
        )
    sizes = page_bytes(manifest, drafts=drafts)
    (one, *windowed), (page, *window_page) = pages_of_one(manifest, tokens), sizes
    pages = min(one * sequences, kv_bytes // page) if page else one * sequences
    window_pages = None
    for count, size in zip(windowed, window_page, strict=True):
        # They are few, so all sequences get theirs unless the other group would have too few.
        window_pages = min(sequences * count, (kv_bytes - one * page) // size)
        # No sequence holds more of them than of the others.
        fitting = max((kv_bytes - window_pages * size) // page, kv_bytes // (page + size))
        pages = min(one * sequences, fitting)
        window_pages = min(window_pages, pages)
    limits = Limits(
        tokens=tokens,
        sequences=sequences,
        rows=rows,
        pages=pages,
        adapters=adapters,
        window_pages=window_pages,
        states=states,
        draft_pages=pages if drafts else 0,
    )
    used = sum(group.pages * size for group, size in zip(page_groups(manifest, limits), sizes, strict=True))
    buffers = (
        export_buffer_bytes(manifest, limits)
        if isinstance(manifest, ExportManifest)
        else plan_buffer_bytes(manifest, limits)
    )
    return MemoryPlan(limits, used, state_bytes, weight_bytes(manifest) + used + state_bytes + buffers)


def bytes_of_state(manifest: Manifest | ExportManifest) -> int:
    """The bytes of a slot of the states of recurrent layers; 0 without such layers."""
    if isinstance(manifest, ExportManifest):
        return manifest.state_bytes()
    return size_bytes(manifest, manifest.sequence_states.values(), {STATES: 1})


def plan_buffer_bytes(manifest: Manifest, limits: Limits) -> int:
    """The bytes of tables, states of the sampler and of adapters, and buffers for the largest batch."""
    counted = (*PAGE_DIMS, *HEAD_DIMS, STATES)
    others = [state for state in manifest.states.values() if state.shape[0] not in counted]
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
