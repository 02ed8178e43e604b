"""The base of all runners: limits, checks of batches, and the order of calls. Each device implements the abstract
methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..bundle.entries import InputEntry
from ..bundle.manifest import AUDIO, CLASSIFY, CTC, EMBED, GENERATE, HEARING, VISION, Description
from ..ir.pages import SOURCE_PAGES
from .batch import Array, Batch, FloatArray
from .errors import RequestError
from .inputs import EXPORT_INPUTS, STATE_INPUTS, require_inputs
from .limits import complete_limits, largest_dims, page_groups, require_within
from .patches import PatchBatch
from .runner import Limits, Output, Result, done, require_plan

AnyManifest = TypeVar("AnyManifest", bound=Description)


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """The shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str


class BaseRunner(ABC, Generic[AnyManifest]):
    """Implements `Runner`."""

    def __init__(self, manifest: AnyManifest, limits: Limits) -> None:
        self.manifest = manifest
        self.limits = complete_limits(manifest, limits)
        self.groups = page_groups(manifest, self.limits)
        self.num_pages = self.groups[0].pages
        self.largest: Mapping[str, int] = largest_dims(manifest, self.limits)
        self._closed = False

    @property
    @abstractmethod
    def device(self) -> str:
        """A description of the device."""

    def forward(self, batch: Batch) -> Output:
        """The next tokens of the sampled rows. Raises RequestError as `submit`."""
        with self._waiting():
            return self.submit(batch).result()

    def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
        """Raises RequestError at once for a bundle that embeds, and for a batch that is too large or whose inputs
        differ from the plan's.
        """
        return self._generate(batch, plan, self._accept(batch, plan))

    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings of the sampled rows or of the texts, the scores of a classifier, or those of rows of
        sound. Raises RequestError as `submit`, for a bundle that generates text.
        """
        plan = next((name for name in (CLASSIFY, CTC) if name in self.manifest.plan_names), EMBED)
        with self._waiting():
            return self._encode(plan, batch, self._accept(batch, plan)).result()

    def features(self, batch: PatchBatch) -> FloatArray:  # noqa: ARG002
        """Raises RequestError: a bundle without plans sees no pictures."""
        require_plan(self.manifest, VISION)
        raise AssertionError(self.manifest.plan_names)

    def listen(self, batch: Batch) -> FloatArray:
        """The rows of sound. Raises RequestError as `submit`, for a bundle that reads no sound, and for a window of
        another length.
        """
        plan = HEARING if HEARING in self.manifest.plan_names else AUDIO
        with self._waiting():
            return self._encode(plan, batch, self._accept(batch, plan)).result()

    def write_state(self, name: str, slot: int, values: Array) -> None:
        """Raises RequestError for a state that is not stored by slot, a slot out of range, and values of another
        shape.
        """
        layouts = self._slot_states
        if name not in layouts:
            raise RequestError(
                f"{self.manifest.model} has no state '{name}' by slot; it has {', '.join(layouts) or 'none'}"
            )
        slots, *shape = layouts[name].shape
        if not 0 <= slot < slots:
            raise RequestError(f"slot {slot} of state '{name}' is out of range; it has slots 0 to {slots - 1}")
        if list(values.shape) != shape:
            raise RequestError(f"a slot of state '{name}' has shape {shape}, not {list(values.shape)}")
        # Copy, because the device may read the values after this call returns.
        self._in_order(self._write_row, name, slot, np.array(values, layouts[name].dtype))

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Copy whole pages of a group, pair after pair. Raises RequestError for a page that is not in the pool."""
        size = self.groups[group].pages
        for page in (page for pair in pairs for page in pair):
            if not 0 <= page < size:
                raise RequestError(f"page {page} is not in the pool, which has pages 0 to {size - 1}")
        self._in_order(self._copy_pages, tuple(pairs), group)

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:  # noqa: ARG002
        """See `Runner.read_pages`. A framework keeps its pages to itself."""
        raise self._unreadable_pages()

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None:  # noqa: ARG002
        """See `Runner.write_pages`."""
        raise self._unreadable_pages()

    def _unreadable_pages(self) -> RequestError:
        target = self.manifest.target
        return RequestError(
            f"{self.manifest.model}: runners of the target {target} neither read nor write pages of keys and values; "
            "use a bundle for cpu, cuda or webgpu"
        )

    def close(self) -> None:
        """Wait for all submitted work, then free the memory. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._release()

    def _accept(self, batch: Batch, plan: str) -> Mapping[str, int]:
        """The dims of a batch. Raises RequestError if the runner cannot run it with the plan."""
        self._require_open()
        require_plan(self.manifest, plan)
        limits = self.limits
        pools = (limits.window_pages or 0, limits.states or 0, limits.draft_pages, self.largest[SOURCE_PAGES])
        dims = batch.dims(self.num_pages, limits.sequences, limits.adapters, *pools)
        require_within(dims, self.largest)
        require_inputs(batch, self._inputs(plan), dims)
        return dims

    def _require_open(self) -> None:
        if self._closed:
            raise RequestError(f"{self.manifest.model}: the runner is closed; open another one")

    def _inputs(self, plan: str) -> Mapping[str, InputEntry]:  # noqa: ARG002
        """The inputs that a plan declares."""
        return EXPORT_INPUTS | STATE_INPUTS if self.manifest.keeps_states else EXPORT_INPUTS

    @property
    @abstractmethod
    def _slot_states(self) -> Mapping[str, ArrayLayout]:
        """The states that `write_state` writes, by name: their first dim counts slots."""

    def _in_order(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call a function after all earlier calls. This version calls it at once; a runner with a worker thread returns
        before the call.
        """
        return done(function(*arguments))

    def _waiting(self) -> AbstractContextManager[None]:
        """The calling thread waits for all that it submits meanwhile, so a runner may use that thread."""
        return nullcontext()

    @abstractmethod
    def _generate(self, batch: Batch, plan: str, dims: Mapping[str, int]) -> Future[Output]:
        """Run a batch that passed the checks."""

    def _encode(self, plan: str, batch: Batch, dims: Mapping[str, int]) -> Future[FloatArray]:  # noqa: ARG002
        """As `_generate`, for runners of bundles that embed or classify: the only output of a plan."""
        raise AssertionError(self.manifest.plan_names)

    @abstractmethod
    def _write_row(self, name: str, slot: int, values: Array) -> None: ...

    @abstractmethod
    def _copy_pages(self, pairs: Sequence[tuple[int, int]], group: int) -> None: ...

    @abstractmethod
    def _release(self) -> None:
        """Free the memory."""
