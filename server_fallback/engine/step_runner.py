"""The engine's interface to a device: `Runner` of `compiler/runtime/runner.py` without its bundle. `TokenModel`
describes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol

from nearfar.compiler.runtime.batch import Array, Batch, FloatArray
from nearfar.compiler.runtime.errors import DeviceError, NearfarError
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits, Output

# `StepRunner.write_state`, or something that calls it.
WriteState = Callable[[str, int, Array], None]


class DeviceRunner(Protocol):
    """All calls come from the engine's thread."""

    @property
    def limits(self) -> Limits: ...

    @property
    def groups(self) -> Sequence[PageGroup]: ...

    @property
    def device(self) -> str: ...

    def close(self) -> None: ...


class StepRunner(DeviceRunner, Protocol):
    def submit(self, batch: Batch) -> Future[Output]: ...

    def write_state(self, name: str, slot: int, values: Array) -> None: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None: ...

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]: ...

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None: ...


class EncoderRunner(DeviceRunner, Protocol):
    def embed(self, batch: Batch) -> FloatArray:
        """The embeddings or scores."""


@contextmanager
def device_errors(device: str) -> Iterator[None]:
    """Let exceptions of a runner leave as NearfarErrors, usually DeviceError."""
    try:
        yield
    except NearfarError:
        raise
    except Exception as error:
        raise DeviceError(f"{device} failed: {error!r}") from error
