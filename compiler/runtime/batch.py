"""Batch: the arrays that a runner's forward reads.

All arrays are int32, except the float32 settings. The S new tokens of B sequences are concatenated; `ir/ops` defines
each array.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.pages import (
    DRAFT_PAGES,
    KEPT,
    KEPT_PAGES,
    KEPT_ROWS,
    SOURCE,
    SOURCE_INPUTS,
    SOURCE_PAGES,
    STATE_SLOTS,
    WINDOW,
)
from ..ir.sampling import GREEDY, Settings
from .errors import RequestError

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Array = IntArray | FloatArray


@dataclass(frozen=True, slots=True)
class PageTables:
    """The pages of a batch's sequences in one page group; see `Batch`."""

    slots: IntArray
    page_indptr: IntArray
    page_ids: IntArray


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The sources of a batch's sequences: the position of the last row that each token attends to (S,), the slot of
    each row that a plan "audio" computes (S,), and the pages of each sequence's source.
    """

    positions: IntArray
    slots: IntArray
    page_indptr: IntArray
    page_ids: IntArray


@dataclass(frozen=True, slots=True)
class Batch:
    """Every sequence has at least one new token, so S == B means that each has exactly one.

    ``window`` are the page tables of the second page group, if a plan has one; None if they are those of the first one.
    The entry of a page behind the window is not read. ``token_types`` (S,) are the types of an encoder's tokens; None
    if all are of type 0. ``state_slots`` (B, 2) are the slots from which the sequences' states are read and into which
    they are written; None if a chunk names none. ``kept_rows`` (S,) are the kept rows that a model's heads read
    beside its tokens; None for other plans. ``features`` (F, E) are those of pictures and sound, and ``feature_rows``
    (F,) the rows of the batch whose embeddings they replace, ``seen_rows`` those of pictures among them, which may be
    seen both ways; None if no chunk has any. ``rope_positions`` (S, 3) are the positions in time, rows and columns by
    which tokens rotate; None if all three are ``positions``. ``source``: None if a chunk names none.
    ``extra`` holds further inputs of a plan, by name.
    """

    token_ids: IntArray
    positions: IntArray
    slots: IntArray
    seq_starts: IntArray
    page_indptr: IntArray
    page_ids: IntArray
    sample_rows: IntArray
    sample_slots: IntArray
    sample_settings: FloatArray
    # (S,): the slot of each token's LoRA adapter, -1 for none.
    adapters: IntArray
    # Whether to return the most likely tokens of the sampled rows, and the log-probabilities of the chosen tokens.
    alternatives: bool = False
    logprobs: bool = False
    window: PageTables | None = None
    token_types: IntArray | None = None
    state_slots: IntArray | None = None
    kept_rows: IntArray | None = None
    features: FloatArray | None = None
    feature_rows: IntArray | None = None
    seen_rows: IntArray | None = None
    rope_positions: IntArray | None = None
    source: SourceTables | None = None
    extra: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self, declared: Collection[str] = ()) -> dict[str, Array]:
        """All inputs by name, and those of DERIVED_INPUTS if a plan's inputs, ``declared``, contain them."""
        arrays = {**self.extra, **{name: getattr(self, name) for name in KNOWN_INPUTS}}
        if not WINDOW_INPUTS.isdisjoint(declared):
            tables = self.window or self
            arrays |= {f"{WINDOW}{name}": getattr(tables, name) for name in TABLES}
        if TOKEN_TYPES in declared:
            arrays[TOKEN_TYPES] = np.zeros_like(self.token_ids) if self.token_types is None else self.token_types
        if STATE_SLOTS in declared and self.state_slots is not None:
            arrays[STATE_SLOTS] = self.state_slots
        if KEPT_ROWS in declared and self.kept_rows is not None:
            arrays[KEPT_ROWS] = self.kept_rows
        if FEATURES in declared:
            none = np.zeros((0, 0), np.float32)
            arrays[FEATURES] = none if self.features is None else self.features
            arrays[FEATURE_ROWS] = np.zeros(0, np.int32) if self.feature_rows is None else self.feature_rows
        if REACH in declared:
            arrays[REACH] = self.reach()
        if ROPE_POSITIONS in declared:
            own = self.rope_positions
            arrays[ROPE_POSITIONS] = on_all_axes(self.positions) if own is None else own
        if self.source is not None:
            arrays |= {f"{SOURCE}{name}": getattr(self.source, name) for name in SOURCE_INPUTS}
        return arrays | self.sampled_rows() if not SAMPLED_INPUTS.isdisjoint(declared) else arrays

    def reach(self) -> IntArray:
        """The last position that each row sees (S,): its own, or that of the last of adjacent features of a picture."""
        reach = self.positions.copy()
        if self.seen_rows is None:
            return reach
        placed = np.zeros(len(reach) + 1, bool)
        placed[self.seen_rows] = True
        # A row reaches as far as the next one if both have features and belong to one sequence.
        placed[1:] &= placed[:-1]
        placed[self.seq_starts] = False
        ends = np.flatnonzero(~placed[1:])
        last = ends[np.searchsorted(ends, np.arange(len(reach)))]
        return reach[last]

    def sampled_rows(self) -> dict[str, Array]:
        """The sampled rows as sequences of one row each: SAMPLED_INPUTS."""
        rows = self.sample_rows
        sequences = np.searchsorted(self.seq_starts[1:], rows, side="right")

        def first_pages(indptr: IntArray) -> IntArray:
            return np.append(indptr[sequences], indptr[-1]).astype(np.int32)

        return {
            "sample_positions": self.positions[rows],
            "sample_starts": np.arange(len(rows) + 1, dtype=np.int32),
            "sample_page_indptr": first_pages(self.page_indptr),
            "window_sample_page_indptr": first_pages((self.window or self).page_indptr),
        }

    def dims(
        self,
        num_pages: int,
        num_slots: int = 1,
        num_adapters: int = 0,
        num_window_pages: int = 0,
        num_states: int = 0,
        num_draft_pages: int = 0,
        num_source_pages: int = 0,
    ) -> dict[str, int]:
        """The values of all dims for this batch, on pools of ``num_pages`` and ``num_window_pages``, for
        ``num_slots`` sequence slots and ``num_states`` slots of states, ``num_draft_pages`` of the model's heads, and
        ``num_source_pages``.
        """
        rows = len(self.sample_rows)
        last = int(self.positions.max(initial=-1))
        if self.source is not None:
            last = max(last, int(self.source.positions.max(initial=-1)))
        return {
            "S": len(self.token_ids),
            "B": len(self.seq_starts) - 1,
            "R": rows,
            "T": last + 1,
            "L": len(self.page_ids),
            "P": num_pages,
            "LW": len((self.window or self).page_ids),
            "PW": num_window_pages,
            "N": num_slots,
            "M": num_adapters,
            "Z": num_states,
            "LS": 0 if self.source is None else len(self.source.page_ids),
            SOURCE_PAGES: num_source_pages,
            DRAFT_PAGES: num_draft_pages,
            KEPT_PAGES: num_pages if num_draft_pages else 0,
            KEPT: len(self.token_ids) if num_draft_pages else 0,
            **NO_PATCHES,
            "F": 0 if self.feature_rows is None else len(self.feature_rows),
            "G": len(self.token_ids) if (self.adapters >= 0).any() else 0,
            "A": rows if self.sample_slots[:, 1].any() else 0,
            "W": rows if self.alternatives else 0,
            "DR": rows if (self.sample_settings[:, 0] > 0).any() else 0,
        }


# The dims of a plan that makes features.
NO_PATCHES = {"V": 0, "I": 0, "F": 0, "C": 0}
# The positions of the sampled rows (R,), where each starts as a sequence of one row (R + 1,), and the first page of its
# sequence in each page group (R + 1,): for layers that compute only sampled rows. They follow from the other inputs.
SAMPLED_INPUTS = frozenset(("sample_positions", "sample_starts", "sample_page_indptr", f"{WINDOW}sample_page_indptr"))
# The page tables of the second page group.
TABLES = tuple(each.name for each in fields(PageTables))
WINDOW_INPUTS = frozenset(f"{WINDOW}{name}" for name in TABLES)
# The inputs that a batch has only if the plan declares them.
TOKEN_TYPES = "token_types"
FEATURES, FEATURE_ROWS = "features", "feature_rows"
REACH, ROPE_POSITIONS = "reach", "rope_positions"
SOURCES = frozenset(f"{SOURCE}{name}" for name in SOURCE_INPUTS)
DERIVED_INPUTS = (
    SAMPLED_INPUTS
    | WINDOW_INPUTS
    | SOURCES
    | {TOKEN_TYPES, STATE_SLOTS, KEPT_ROWS, FEATURES, FEATURE_ROWS, REACH, ROPE_POSITIONS}
)
# The inputs of every batch.
KNOWN_INPUTS = tuple(
    each.name
    for each in fields(Batch)
    if each.name not in (*DERIVED_INPUTS, "alternatives", "logprobs", "window", "seen_rows", "source", "extra")
)


@dataclass(frozen=True, slots=True)
class Source:
    """What a sequence attends to besides its own tokens: the first ``rows`` on these pages of sources."""

    rows: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence.

    ``token_ids`` follow ``start`` cached tokens. ``pages`` hold the sequence, and ``window_pages`` hold it in the
    second page group; None if these are the same. ``sample`` lists the rows of the chunk to sample. ``adapter`` is the
    slot of the sequence's LoRA adapter, -1 for the unmodified model. ``settings`` determine the next token of a sampled
    row, which is stored in ``slot`` unless that is -1; ``flags`` are those of `sampling.py`. ``state`` are the
    slots from which the sequence's states are read and into which they are written; models without states need none.
    ``kept_rows`` and ``rope_positions``: see `Batch`. ``features`` are those of pictures, each with the offset in the
    chunk of the first token whose embedding they replace; see `features_between`. ``heard`` are those of sound.
    ``source`` is None for models that transcribe no sound.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sample: Sequence[int] = ()
    settings: Settings = GREEDY
    slot: int = -1
    flags: int = 0
    adapter: int = -1
    window_pages: Sequence[int] | None = None
    state: tuple[int, int] | None = None
    kept_rows: Sequence[int] | None = None
    features: Sequence[tuple[int, FloatArray]] | None = None
    heard: Sequence[tuple[int, FloatArray]] | None = None
    rope_positions: IntArray | None = None
    source: Source | None = None


def make_batch(chunks: Sequence[Chunk], page_size: int, *, alternatives: bool = False, logprobs: bool = False) -> Batch:
    """Concatenate chunks of several sequences. Raises RequestError without any, for a chunk without a token, and for
    features beyond its tokens.
    """
    lengths = [len(chunk.token_ids) for chunk in chunks]
    require_tokens(lengths)
    starts = [0, *accumulate(lengths)]
    positions = ranges([chunk.start for chunk in chunks], lengths)

    def tables(pages: Sequence[Sequence[int]]) -> PageTables:
        for chunk, length, own in zip(chunks, lengths, pages, strict=True):
            if chunk.start + length > len(own) * page_size:
                raise RequestError("a chunk of the batch has more tokens than its pages hold; give it more pages")
        return page_tables(*page_lists(pages), positions, lengths, page_size)

    first = tables([chunk.pages for chunk in chunks])
    second = [chunk.pages if chunk.window_pages is None else chunk.window_pages for chunk in chunks]
    num_sampled = [len(chunk.sample) for chunk in chunks]
    states = [chunk.state for chunk in chunks if chunk.state is not None]
    kept_rows = [chunk.kept_rows for chunk in chunks if chunk.kept_rows is not None]
    sources = [chunk.source for chunk in chunks if chunk.source is not None]
    source = None
    if len(sources) == len(chunks):
        last = spread([each.rows - 1 for each in sources], lengths)
        source = SourceTables(last, np.zeros(len(last), np.int32), *page_lists([each.pages for each in sources]))
    return Batch(
        token_ids=join([chunk.token_ids for chunk in chunks]),
        positions=positions,
        slots=first.slots,
        seq_starts=np.array(starts, np.int32),
        page_indptr=first.page_indptr,
        page_ids=first.page_ids,
        sample_rows=join([start + row for row in chunk.sample] for chunk, start in zip(chunks, starts, strict=False)),
        sample_slots=spread([(chunk.slot, chunk.flags) for chunk in chunks], num_sampled),
        sample_settings=spread([chunk.settings for chunk in chunks], num_sampled, np.float32),
        adapters=spread([chunk.adapter for chunk in chunks], lengths),
        alternatives=alternatives,
        logprobs=logprobs,
        window=tables(second) if any(chunk.window_pages is not None for chunk in chunks) else None,
        state_slots=np.array(states, np.int32) if len(states) == len(chunks) else None,
        kept_rows=join(kept_rows) if len(kept_rows) == len(chunks) else None,
        rope_positions=joined_rope_positions(chunks, positions),
        source=source,
        **joined_features(chunks, starts),
    )


def page_tables(
    page_indptr: IntArray, page_ids: IntArray, positions: IntArray, lengths: Sequence[int], page_size: int
) -> PageTables:
    """The `page_lists` of sequences, and where their new rows are: a row's page times ``page_size``, plus its place on
    the page. ``positions`` are those of all sequences, of which each has ``lengths`` rows.
    """
    pages = page_ids[spread(page_indptr[:-1], lengths) + positions // page_size]
    return PageTables(pages * page_size + positions % page_size, page_indptr, page_ids)


def page_lists(pages: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Where the pages of each sequence begin in the list of all, and that list."""
    return np.array([0, *accumulate(map(len, pages))], np.int32), join(pages)


def joined_features(chunks: Sequence[Chunk], starts: Sequence[int]) -> dict[str, Any]:
    """The features of all chunks, and the rows of the batch that they replace; empty if there are none."""
    if not any(chunk.features or chunk.heard for chunk in chunks):
        return {}
    features, rows, seen = list[FloatArray](), list[npt.NDArray[np.int_]](), list[npt.NDArray[np.int_]]()
    for chunk, start in zip(chunks, starts, strict=False):
        pictures = chunk.features or ()
        for index, (offset, own) in enumerate((*pictures, *(chunk.heard or ()))):
            if not 0 <= offset <= len(chunk.token_ids) - len(own):
                raise RequestError(
                    f"a chunk of {len(chunk.token_ids)} tokens has {len(own)} features from token {offset} on; give it "
                    "those of its own tokens (features_between)"
                )
            features.append(own)
            rows.append(np.arange(start + offset, start + offset + len(own)))
            seen += rows[-1:] if index < len(pictures) else []
    own_rows = {"seen_rows": np.concatenate(seen, dtype=np.int32)} if seen else {}
    return {
        FEATURES: np.concatenate(features, dtype=np.float32),
        FEATURE_ROWS: np.concatenate(rows, dtype=np.int32),
        **own_rows,
    }


def joined_rope_positions(chunks: Sequence[Chunk], positions: npt.NDArray[np.integer[Any]]) -> IntArray | None:
    """The positions (S, 3) of all chunks, which have these of text; None if none of them has its own."""
    if all(chunk.rope_positions is None for chunk in chunks):
        return None
    found, start = on_all_axes(positions), 0
    for chunk in chunks:
        stop = start + len(chunk.token_ids)
        if chunk.rope_positions is not None:
            found[start:stop] = chunk.rope_positions
        start = stop
    return found


def on_all_axes(positions: npt.NDArray[np.integer[Any]]) -> IntArray:
    """Positions (S,) of text, which are the same on each axis: (S, 3)."""
    return np.repeat(positions[:, None].astype(np.int32), 3, axis=1)


def require_tokens(lengths: Sequence[int]) -> None:
    if not lengths:
        raise RequestError("the batch has no sequence; give it at least one")
    if 0 in lengths:
        raise RequestError(
            f"chunk {lengths.index(0)} of the batch has no new token; leave its sequence out of the batch"
        )


def spread(values: Sequence[Any] | IntArray, counts: Sequence[int], dtype: npt.DTypeLike = np.int32) -> Any:
    """Each of ``values`` as often as ``counts`` says."""
    found = np.asarray(values, dtype)
    return found if is_ones(counts) else np.repeat(found, counts, axis=0)


def ranges(starts: Sequence[int] | IntArray, counts: Sequence[int]) -> IntArray:
    """From each of ``starts`` on, as many consecutive numbers as ``counts`` says."""
    if is_ones(counts):
        return np.asarray(starts, np.int32)
    lengths = np.array(counts, np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    return np.arange(ends[-1], dtype=np.int32) + np.repeat(np.asarray(starts, np.int32) + lengths - ends, lengths)


def is_ones(counts: Sequence[int]) -> bool:
    """True of a batch in which every sequence decodes: nearly all are."""
    return min(counts) == max(counts) == 1


def join(parts: Iterable[Iterable[int]]) -> IntArray:
    # Much faster than an array of numpy for each of many short lists.
    return np.frombuffer(bytearray().join([array("i", part) for part in parts]), np.int32)
