"""LoRA adapters in a runner's slots: the slot of each adapter, and the number of answers that use it. The runner holds
the matrices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import NearfarError, RequestError

from .sequence import Sequence
from .step_runner import WriteState


@dataclass(eq=False, slots=True)
class Adapter:
    """Unlike a name, ``key`` is never used twice, so that cached results of one adapter are never used for another.
    ``digest`` is that of its matrices, which is the same in every process.

    ``users`` are unfinished answers. ``unloaded`` is set when unloading is requested, and is done when the last of them
    has ended.
    """

    name: str
    key: str
    slot: int
    digest: str = ""
    users: int = 0
    unloaded: Future[None] | None = None


@dataclass(slots=True)
class Adapters:
    """Only the engine's thread changes this; `names` may be read from any thread."""

    num_slots: int
    _loaded: dict[str, Adapter] = field(default_factory=dict)
    _free: list[int] = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._free = list(reversed(range(self.num_slots)))

    @property
    def names(self) -> list[str]:
        """The adapters that requests can name."""
        return [name for name, adapter in list(self._loaded.items()) if adapter.unloaded is None]

    def of(self, sequences: Collection[Sequence]) -> tuple[str, ...]:
        """The names of the adapters of sequences. Callable from any thread."""
        keys = {sequence.params.adapter for sequence in sequences} if self.num_slots else ()
        return tuple(sorted(key.rpartition(" ")[0] for key in keys if key is not None))

    def load(self, name: str, states: Mapping[str, FloatArray], write_state: WriteState, loaded: Future[None]) -> None:
        """Write an adapter's matrices to a free slot, after which requests can name it. Errors go to the future."""
        adapter: Adapter | None = None
        try:
            adapter = self.allocate(name)
            adapter.digest = content_digest(states)
            for state, values in states.items():
                write_state(state, adapter.slot, values)
        except NearfarError as error:
            if adapter is not None:
                self.free(adapter)
            loaded.set_exception(error)
        else:
            self.add(adapter)
            loaded.set_result(None)

    def unload(self, name: str, unloaded: Future[None]) -> None:
        """``unloaded`` is done when no answer uses the adapter any more. Errors go to it."""
        try:
            self.remove(name).add_done_callback(lambda _: unloaded.set_result(None))
        except NearfarError as error:
            unloaded.set_exception(error)

    def allocate(self, name: str) -> Adapter:
        """A slot for a new adapter, which requests can name after `add`. Raises RequestError if the name or every slot
        is taken.
        """
        if name in self._loaded:
            raise RequestError(
                f"an adapter '{name}' is loaded already; unload it first, or give this one another name", param="name"
            )
        if not self._free:
            what = (
                f"all {self.num_slots} slots for adapters are in use"
                if self.num_slots
                else "this model is served without slots for adapters"
            )
            raise RequestError(f"{what}; unload one, or serve the model with more (--max-adapters)", param="name")
        self._count += 1
        return Adapter(name, f"{name} {self._count}", self._free.pop())

    def add(self, adapter: Adapter) -> None:
        self._loaded[adapter.name] = adapter

    def free(self, adapter: Adapter) -> None:
        """From now on, its slot can be allocated again."""
        self._free.append(adapter.slot)

    def named(self, name: str) -> Adapter:
        """Raises RequestError if it is not loaded, or is being unloaded."""
        adapter = self._loaded.get(name)
        if adapter is None or adapter.unloaded is not None:
            raise not_loaded(name)
        return adapter

    def with_digest(self, digest: str) -> Adapter:
        """Raises RequestError if no loaded adapter has these matrices."""
        adapter = next(
            (each for each in self._loaded.values() if each.digest == digest and each.unloaded is None), None
        )
        if adapter is None:
            raise RequestError(
                f"the adapter {digest[:12]}..., which computed these pages, is not loaded; load it first",
                param="adapter",
            )
        return adapter

    def use(self, name: str) -> Adapter:
        """Count one more answer that uses it. Raises RequestError if it is not loaded, or is being unloaded."""
        adapter = self.named(name)
        adapter.users += 1
        return adapter

    def release(self, adapter: Adapter) -> None:
        adapter.users -= 1
        self._unload_if_unused(adapter)

    def remove(self, name: str) -> Future[None]:
        """From now on, no new answer can use it. The result is done when all answers that use it have ended. Raises
        RequestError if it is not loaded.
        """
        adapter = self._loaded.get(name)
        if adapter is None:
            raise not_loaded(name)
        if adapter.unloaded is None:
            adapter.unloaded = Future()
        unloaded = adapter.unloaded
        self._unload_if_unused(adapter)
        return unloaded

    def _unload_if_unused(self, adapter: Adapter) -> None:
        if adapter.unloaded is not None and adapter.users == 0:
            del self._loaded[adapter.name]
            self.free(adapter)
            adapter.unloaded.set_result(None)


def content_digest(states: Mapping[str, FloatArray]) -> str:
    """The SHA-256 of an adapter's matrices, in hexadecimal digits."""
    digest = sha256()
    for name, values in sorted(states.items()):
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def not_loaded(name: str) -> RequestError:
    return RequestError(f"adapter '{name}' is not loaded; load it, or leave it out", param="adapter")
