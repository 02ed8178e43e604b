"""Runner: the interface of what runs a bundle on a device, with its limits and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..bundle.manifest import AUDIO, CLASSIFY, CTC, EMBED, GENERATE, HEARING, VISION, Description
from .batch import Array, Batch, FloatArray, IntArray
from .errors import RequestError
from .page_groups import PageGroup

if TYPE_CHECKING:
    from .patches import PatchBatch


@dataclass(frozen=True, slots=True)
class Output:
    """``next_token_ids`` (R,) and their log-probabilities; ``top_token_ids`` (W, up to 20), best first, and their
    log-probabilities.

    ``token_logprobs`` (R,) are valid if the batch requests them. Otherwise a runner that samples on the host returns
    zeros.
    """

    next_token_ids: IntArray
    token_logprobs: FloatArray
    top_token_ids: IntArray
    top_logprobs: FloatArray
    read_logits: Callable[[], FloatArray]

    @property
    def logits(self) -> FloatArray:
        """(R, V), read from the device on access. Access them before its next forward."""
        return self.read_logits()


# What a bundle with a plan does, and what one without it does not do.
TASKS = {
    AUDIO: "transcribes sound",
    CTC: "transcribes sound",
    GENERATE: "generates text",
    EMBED: "makes embeddings",
    CLASSIFY: "scores the labels of texts",
}
NOT_TASKS = {
    HEARING: "does not hear; use the bundle of a model that does",
    AUDIO: "reads no sound; use the bundle of a model that transcribes sound",
    GENERATE: "generates no text; use the bundle of a model that generates",
    EMBED: "makes no embeddings; use the bundle of an embedding model",
    CLASSIFY: "scores no labels; use the bundle of a classifier or reranker",
    VISION: "sees no pictures; use the bundle of a model that does",
}


def require_plan(manifest: Description, plan: str) -> None:
    """Raise RequestError unless the bundle has a plan."""
    if plan in manifest.plan_names:
        return
    does = next((does for name, does in TASKS.items() if name in manifest.plan_names), "has no known plan")
    if plan in NOT_TASKS:
        raise RequestError(f"{manifest.model} {does} and {NOT_TASKS[plan]}")
    raise RequestError(f"{manifest.model} has no plan '{plan}'; it has {', '.join(manifest.plan_names)}")


Result = TypeVar("Result")


def done(result: Result) -> Future[Result]:
    """A future with a result, for runners that wait in `Runner.submit`."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest batch of a runner: new tokens, sequences (and their slots), sampled rows, pages of the pools, slots
    for LoRA adapters.

    If ``pages`` is None, the pool has the pages of one sequence of the bundle's context. ``window_pages`` are those of
    the second page group, if the bundle has one; None for as many as the sequences need. ``states`` are the slots of
    the states of recurrent layers; None for one for each sequence. ``draft_pages`` are those of the heads with which
    the model drafts tokens; 0 if they do not, and then nothing is kept for them. ``patches`` are those of pictures that
    become features at once, at least one tile; None for one, 0 if the model sees none. ``windows`` of sound have room
    for their keys and values at a time.
    """

    tokens: int = 64
    sequences: int = 1
    rows: int = 1
    pages: int | None = None
    adapters: int = 0
    window_pages: int | None = None
    states: int | None = None
    draft_pages: int = 0
    patches: int | None = None
    windows: int = 1


class Runner(Protocol):
    """Runs a bundle's plan on one device. Its pages of keys and values, and its states by sequence slot, persist
    between calls.

    Work runs in the order of the calls, whether or not they wait for it.
    """

    @property
    def manifest(self) -> Description: ...

    @property
    def limits(self) -> Limits:
        """The largest batch; ``pages`` is a number."""

    @property
    def groups(self) -> Sequence[PageGroup]:
        """The page groups, with the pages of their pools."""

    @property
    def device(self) -> str:
        """A description of the device."""

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError if the bundle embeds or the batch exceeds the
        limits.
        """

    def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
        """As `forward`, but without waiting if the device works asynchronously: further calls may precede the
        result. ``plan`` "draft": the model's heads guess the next tokens; see `ops/drafts.py`.
        """

    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings (R, E) of the sampled rows, or (B, E) of the texts if the bundle has no pages, not normalised;
        of a classifier, the scores (B, L) of the texts' labels, or (S, L) of those of their tokens; of an encoder
        of sound, the scores (S, V) of each row's tokens. Raises RequestError if the bundle generates text.
        """

    def features(self, batch: PatchBatch) -> FloatArray:
        """The features (F, E) of the blocks of patches of pictures. Raises RequestError if the model sees no pictures,
        or the batch exceeds the limits.
        """

    def listen(self, batch: Batch) -> FloatArray:
        """The rows (S, E) of sound: features of a model that hears, or those of windows, whose keys and values are then
        on the batch's pages of sources. Raises RequestError if the bundle reads no sound, or the batch exceeds the
        limits.
        """

    def write_state(self, name: str, slot: int, values: Array) -> None:
        """Set a slot's row of the state "token_counts" (V,), "logit_bias" (V,) or "token_mask" (ceil(V / 32),).

        For the states in the manifest's `LoraEntry.states`, ``slot`` is the slot of an adapter.
        """

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Copy the keys and values of whole pages of a group, from the first of each pair to the second."""

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        """The bytes of whole pages, in the order of `page_bytes`. ``units``: the pages of each group, and last the
        slots if the model keeps states. Raises RequestError for units that are not in the pools, and for a runner whose
        pages cannot be read.
        """

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        """Write what `read_pages` has read of as many units, of a runner of the same bundle with the same activations.
        Raises RequestError as `read_pages`, and for data of another size.
        """

    def close(self) -> None:
        """Free the device's memory."""
