"""Check the inputs of a batch against those that a plan declares. All mismatches are rejected here."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..arch.decoder import BATCH_INPUTS
from ..bundle.entries import InputEntry, PlanEntry
from ..bundle.manifest import HEARING, VISION, Description, Manifest
from ..ir.expr import evaluate
from ..ir.pages import KEPT_PAGES, KEPT_ROWS, SOURCE_PAGES, STATE_SLOTS
from ..ir.speech import FRAMES, ROW_FRAMES
from .batch import (
    DERIVED_INPUTS,
    FEATURE_ROWS,
    FEATURES,
    KNOWN_INPUTS,
    ROPE_POSITIONS,
    SOURCES,
    Array,
    Batch,
    SourceTables,
)
from .errors import BundleError, RequestError
from .patches import PATCH_INPUTS

# The inputs of the frameworks' bundles, which have no plan that could declare them; and those of models with states.
EXPORT_INPUTS = {
    name: InputEntry.model_validate({"shape": shape, "dtype": dtype}) for name, (shape, dtype) in BATCH_INPUTS.items()
}
STATE_INPUTS = {STATE_SLOTS: InputEntry.model_validate({"shape": ("B", 2), "dtype": "int32"})}


def require_inputs(batch: Batch, declared: Mapping[str, InputEntry], dims: Mapping[str, int]) -> None:
    """Raise RequestError unless a batch has the inputs that a plan declares, in their shapes and dtypes, and no
    others.
    """
    for name in batch.extra:
        if name in KNOWN_INPUTS or name in DERIVED_INPUTS or name not in declared:
            raise RequestError(
                f"the batch has input '{name}', which the plan does not declare; leave it out", input=name
            )
    if batch.kept_rows is not None and KEPT_ROWS not in declared:
        raise RequestError(f"the batch has input '{KEPT_ROWS}', which the plan does not declare; leave it out")
    if batch.features is not None and FEATURES not in declared:
        raise RequestError("the batch has features of pictures, which the model does not see; leave them out")
    arrays = batch.arrays(declared)
    for name, entry in declared.items():
        shape = tuple(evaluate(size, dims) for size in entry.shape)
        array = arrays.get(name)
        if array is None and name == STATE_SLOTS:
            raise RequestError("a chunk of the batch names no slots of states; set Chunk.state", input=name)
        if array is None and name in SOURCES:
            raise RequestError("a chunk of the batch names no sound; set Chunk.source", input=name)
        if array is None:
            raise RequestError(
                f"the batch lacks input '{name}', {list(shape)} of {entry.dtype}; pass it in Batch.extra", input=name
            )
        # Without elements, all shapes are equal.
        if (array.shape != shape and (array.size or math.prod(shape))) or array.dtype != entry.dtype:
            is_, must_be = f"{list(array.shape)} of {array.dtype}", f"{list(shape)} of {entry.dtype}"
            raise RequestError(f"input '{name}' of the batch is {is_}; the plan needs {must_be}", input=name)
    if STATE_SLOTS in declared:
        require_states(arrays[STATE_SLOTS], dims["Z"])
    if FEATURE_ROWS in declared:
        require_places(arrays[FEATURE_ROWS], dims["S"])
    if ROPE_POSITIONS in declared:
        require_turns(arrays[ROPE_POSITIONS], dims["T"])


def require_places(rows: Array, count: int) -> None:
    """Raise RequestError unless features replace different rows of the batch, which exist."""
    if len(rows) and (not 0 <= rows.min() <= rows.max() < count or len(np.unique(rows)) < len(rows)):
        raise RequestError(
            f"the batch has features for rows {rows.min()} to {rows.max()} of {count}; each must replace a row of its "
            "own"
        )


def require_turns(positions: Array, count: int) -> None:
    """Raise RequestError unless tokens rotate by positions that the batch has, because tables have rows for these."""
    if positions.size and not 0 <= positions.min() <= positions.max() < count:
        raise RequestError(
            f"the batch has tokens that rotate by positions {positions.min()} to {positions.max()}; they must be 0 to "
            f"{count - 1}"
        )


def require_states(slots: Array, count: int) -> None:
    """Raise RequestError unless the slots of states (B, 2) exist, and none is written that another sequence uses."""
    if len(slots) and not 0 <= slots.min() <= slots.max() < count:
        raise RequestError(f"the batch names slots {slots.min()} to {slots.max()} of states; the runner has {count}")
    reads, writes = slots[:, 0].tolist(), slots[:, 1].tolist()
    for index, slot in enumerate(writes):
        if slot in writes[:index] or slot in (*reads[:index], *reads[index + 1 :]):
            raise RequestError(f"sequence {index} of the batch writes slot {slot} of states, which another one uses")


def require_kept(rows: Array, dims: Mapping[str, int], page_size: int) -> None:
    """Raise RequestError unless the rows that the model's heads read are in pages or slots that exist."""
    tokens, slots = dims[KEPT_PAGES] * page_size, dims["N"]
    if not tokens:
        raise RequestError("the runner keeps no rows for heads that draft tokens; open it with Limits.draft_pages")
    if len(rows) and not -slots <= rows.min() <= rows.max() < tokens:
        raise RequestError(
            f"the batch reads kept rows {rows.min()} to {rows.max()}; the runner has {-slots} to {tokens - 1}"
        )


def require_sources(tables: SourceTables, dims: Mapping[str, int], page_size: int) -> None:
    """Raise RequestError unless all pages of sources exist, and hold the rows that tokens attend to."""
    pages = dims[SOURCE_PAGES]
    ids, slots = tables.page_ids, tables.slots
    if len(ids) and not 0 <= ids.min() <= ids.max() < pages:
        raise RequestError(f"the batch names pages {ids.min()} to {ids.max()} of sound; the runner has {pages}")
    if len(slots) and not 0 <= slots.min() <= slots.max() < pages * page_size:
        raise RequestError(f"the batch writes rows {slots.min()} to {slots.max()} of sound beyond {pages} pages")
    least = int(np.diff(tables.page_indptr).min(initial=pages)) * page_size
    positions = tables.positions
    if len(positions) and not 0 <= positions.min() <= positions.max() < least:
        raise RequestError(f"the batch attends to {positions.max() + 1} rows of sound, on pages of {least}")


def require_windows(manifest: Manifest, batch: Batch) -> None:
    """Raise RequestError unless a batch for a plan "audio" holds windows of sound, and finite numbers."""
    assert manifest.spec.audio is not None
    audio = manifest.spec.audio
    # With rows behind it, a window is two sequences.
    starts = batch.seq_starts[:: 2 if audio.rows_behind else 1]
    lengths, most = np.diff(starts), audio.positions
    fits = (lengths > audio.rows_behind) & (lengths <= most)
    positions = np.arange(len(batch.positions)) - np.repeat(starts[:-1], lengths) if starts[-1] > 0 else None
    if positions is None or not fits.all() or not np.array_equal(batch.positions, positions):
        size, found = f"{audio.rows_behind + 1} to {most}", sorted(set(lengths.tolist()))
        raise RequestError(f"{manifest.model}: reads windows of {size} rows, not of {found}")
    if not np.isfinite(batch.extra[FRAMES]).all():
        raise RequestError(f"{manifest.model}: the batch has frames of sound that are not finite numbers")


def require_sounds(manifest: Manifest, batch: Batch) -> None:
    """Raise RequestError unless a batch for a plan "hearing" holds sounds from their beginning, or parts that the tower
    reads alone, of finite numbers.
    """
    hearing = manifest.spec.hearing
    assert hearing is not None
    lengths = np.diff(batch.seq_starts)
    if lengths.max() > hearing.sound_rows:
        raise RequestError(
            f"{manifest.model}: a sound has {lengths.max()} rows; the model hears at most {hearing.sound_rows}"
        )
    if not np.array_equal(batch.positions, np.arange(lengths.sum()) - np.repeat(batch.seq_starts[:-1], lengths)):
        raise RequestError(f"{manifest.model}: a batch must hold sounds, each from position 0 on")
    if not np.isfinite(batch.extra[FRAMES]).all():
        raise RequestError(f"{manifest.model}: the batch has frames of sound that are not finite numbers")


def require_texts(manifest: Description, batch: Batch) -> None:
    """Raise RequestError unless a batch for a plan without pages holds complete texts, with known types of tokens."""
    lengths = np.diff(batch.seq_starts)
    starts = np.repeat(batch.seq_starts[:-1], lengths) if len(lengths) and lengths.min() > 0 else None
    if starts is None or not np.array_equal(batch.positions, np.arange(len(batch.token_ids)) - starts):
        raise RequestError(f"{manifest.model}: a batch must hold complete texts, each from position 0 on")
    known = max(1, manifest.spec.num_token_types)
    if batch.token_types is not None and not ((batch.token_types >= 0) & (batch.token_types < known)).all():
        raise RequestError(f"{manifest.model}: the batch has token types beyond 0 to {known - 1}")


def batch_inputs(plan: PlanEntry) -> Mapping[str, InputEntry]:
    """The inputs of a plan that a batch brings, which are those that the runner does not gather."""
    return {name: entry for name, entry in plan.inputs.items() if name not in plan.gathered}


def require_known_inputs(manifest: Description) -> None:
    """Raise BundleError for a plan with an input that the batches of an engine do not have, and that the runner does
    not gather.
    """
    for plan, entry in manifest.plans.items() if isinstance(manifest, Manifest) else ():
        known = PATCH_INPUTS if plan == VISION else (*KNOWN_INPUTS, *sorted(DERIVED_INPUTS))
        known += (FRAMES, ROW_FRAMES) if plan == HEARING else ()
        name = next((each for each in batch_inputs(entry) if each not in known), None)
        if name is not None:
            raise BundleError(
                f"{manifest.model}: has input '{name}', which this engine does not provide; use a newer nearfar",
                input=name,
                known=known,
            )
