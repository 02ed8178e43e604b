"""Batch: what a runner's forward takes, as arrays; and the interface of runners.

All arrays are int32, the settings float32. S new tokens of B sequences lie one after the other; see `ir/ops` for what each array means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..bundle.manifest import EMBED, GENERATE, Description
from ..errors import RequestError
from ..ir.sampling import GREEDY, Settings

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Array = IntArray | FloatArray


@dataclass(frozen=True, slots=True)
class Batch:
    """Every sequence has at least one new token, so S == B says that each has one.

    ``extra`` are a plan's inputs beside the arrays here, by name.
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
    # (S,): the place of each token's LoRA adapter, -1 for none.
    adapters: IntArray
    # Whether the likeliest tokens of the sampled rows are wanted, and whether the log-probabilities of the chosen ones are.
    alternatives: bool = False
    logprobs: bool = False
    extra: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """All inputs by name."""
        return {**self.extra, **{name: getattr(self, name) for name in KNOWN_INPUTS}}

    def dims(self, num_pages: int, num_slots: int = 1, num_adapters: int = 0) -> dict[str, int]:
        """The values of all dims for this batch, on a pool of ``num_pages`` and for ``num_slots`` sequence slots."""
        rows = len(self.sample_rows)
        return {
            "S": len(self.token_ids),
            "B": len(self.seq_starts) - 1,
            "R": rows,
            "T": int(self.positions.max(initial=-1)) + 1,
            "L": len(self.page_ids),
            "P": num_pages,
            "N": num_slots,
            "M": num_adapters,
            "G": len(self.token_ids) if (self.adapters >= 0).any() else 0,
            "A": rows if self.sample_slots[:, 1].any() else 0,
            "W": rows if self.alternatives else 0,
        }


# The inputs that every batch has.
KNOWN_INPUTS = tuple(each.name for each in fields(Batch) if each.name not in ("alternatives", "logprobs", "extra"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence.

    ``token_ids`` follow ``start`` cached ones, ``pages`` hold the sequence, ``sample`` lists the rows of the chunk whose logits are wanted.
    ``adapter`` is the place of the sequence's LoRA adapter, -1 for the model as it is.
    The next token of such a row is chosen by ``settings`` and left in ``slot`` unless that is -1; ``flags`` are those of `sampling.py`.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    sample: Sequence[int] = ()
    settings: Settings = GREEDY
    slot: int = -1
    flags: int = 0
    adapter: int = -1


def make_batch(chunks: Sequence[Chunk], page_size: int, *, alternatives: bool = False, logprobs: bool = False) -> Batch:
    """Lay chunks of several sequences one after the other. Raises RequestError for a chunk without a token."""
    lengths = [len(chunk.token_ids) for chunk in chunks]
    if 0 in lengths:
        raise RequestError(
            f"chunk {lengths.index(0)} of the batch has no new token; leave its sequence out of the batch"
        )
    starts = np.cumsum([0, *lengths])
    positions = [np.arange(chunk.start, chunk.start + length) for chunk, length in zip(chunks, lengths, strict=True)]
    slots = [
        np.asarray(chunk.pages)[position // page_size] * page_size + position % page_size
        for chunk, position in zip(chunks, positions, strict=True)
    ]
    rows = [[start + row for row in chunk.sample] for chunk, start in zip(chunks, starts, strict=False)]
    return Batch(
        token_ids=join([chunk.token_ids for chunk in chunks]),
        positions=join(positions),
        slots=join(slots),
        seq_starts=starts.astype(np.int32),
        page_indptr=np.cumsum([0, *(len(chunk.pages) for chunk in chunks)]).astype(np.int32),
        page_ids=join([chunk.pages for chunk in chunks]),
        sample_rows=join(rows),
        sample_slots=np.array([(chunk.slot, chunk.flags) for chunk in chunks for _ in chunk.sample], np.int32).reshape(
            -1, 2
        ),
        sample_settings=np.array([chunk.settings for chunk in chunks for _ in chunk.sample], np.float32).reshape(
            -1, len(Settings._fields)
        ),
        adapters=np.repeat(np.array([chunk.adapter for chunk in chunks], np.int32), lengths),
        alternatives=alternatives,
        logprobs=logprobs,
    )


def join(parts: Sequence[Sequence[int] | npt.NDArray[np.int_]]) -> IntArray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


@dataclass(frozen=True, slots=True)
class Output:
    """``next_token_ids`` (R,) and the log-probability of each; ``top_token_ids`` (W, up to 20), best first, and theirs.

    ``token_logprobs`` (R,) count where the batch asks for them; elsewhere a runner that chooses on the host leaves zeros.
    """

    next_token_ids: IntArray
    token_logprobs: FloatArray
    top_token_ids: IntArray
    top_logprobs: FloatArray
    read_logits: Callable[[], FloatArray]

    @property
    def logits(self) -> FloatArray:
        """(R, V), read from the device when they are asked for: before its next forward."""
        return self.read_logits()


def require_plan(manifest: Description, plan: str) -> None:
    """Raise RequestError unless the bundle has a plan."""
    if plan in manifest.plan_names:
        return
    if plan == EMBED:
        raise RequestError(
            f"{manifest.model} generates text and makes no embeddings; use the bundle of an embedding model"
        )
    if plan == GENERATE:
        raise RequestError(
            f"{manifest.model} makes embeddings and generates no text; use the bundle of a model that generates"
        )
    raise RequestError(f"{manifest.model} has no plan '{plan}'; it has {', '.join(manifest.plan_names)}")


Result = TypeVar("Result")


def done(result: Result) -> Future[Result]:
    """A result that is there already, for runners that wait in `Runner.submit`."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch of a runner: new tokens, sequences (and slots for them), sampled rows, pages of the pool, places for LoRA adapters.

    ``pages`` None means as many as one sequence of the bundle's context takes.
    """

    tokens: int = 64
    sequences: int = 1
    rows: int = 1
    pages: int | None = None
    adapters: int = 0


class Runner(Protocol):
    """Runs a bundle's plan on one device. Keys and values stay in its pages between calls, and so does what is kept by sequence slot.

    What is asked for happens in the order of the calls, whether or not they wait for it.
    """

    @property
    def manifest(self) -> Description: ...

    @property
    def limits(self) -> Limits:
        """The largest batch; ``pages`` is a number."""

    @property
    def num_pages(self) -> int: ...

    @property
    def device(self) -> str:
        """What it runs on, in words."""

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError where the bundle embeds, or for a batch beyond the limits."""

    def submit(self, batch: Batch) -> Future[Output]:
        """As `forward`, without waiting where the device works by itself: further calls may follow before the result is there."""

    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings (R, E) of the sampled rows, not normalised. Raises RequestError where the bundle generates text."""

    def write_state(self, name: str, slot: int, values: Array) -> None:
        """Set a slot's row of the state "token_counts" (V,), "logit_bias" (V,) or "token_mask" (ceil(V / 32),).

        Of the manifest's `LoraEntry.states` it is the row of an adapter's place.
        """

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the keys and values of whole pages, from the first of each pair to the second."""

    def close(self) -> None:
        """Give back the device's memory."""
