"""LoRA adapters in the places that a runner has for them: who is where, and who uses it. The matrices are in the runner's states."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from nearfar.compiler.errors import RequestError


@dataclass(eq=False, slots=True)
class Adapter:
    """``key`` is never given twice, as a name may be: what was computed with one adapter must not be taken for another's.

    ``users`` are unfinished answers. ``left`` is set when it is to be unloaded, and done when the last of them has ended.
    """

    name: str
    key: str
    place: int
    users: int = 0
    left: Future[None] | None = None


@dataclass(slots=True)
class Adapters:
    """Changed on the engine's thread only; `names` may be read from any."""

    places: int
    _loaded: dict[str, Adapter] = field(default_factory=dict)
    _free: list[int] = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self._free = list(reversed(range(self.places)))

    @property
    def names(self) -> list[str]:
        """Those that a request may ask for."""
        return [name for name, adapter in list(self._loaded.items()) if adapter.left is None]

    def take_place(self, name: str) -> Adapter:
        """A place for a new adapter, not known before `add`. Raises RequestError for a name that is taken, or where no place is free."""
        if name in self._loaded:
            raise RequestError(f"an adapter '{name}' is loaded already; unload it first, or give this one another name", param="name")
        if not self._free:
            what = f"all {self.places} places for adapters are taken" if self.places else "this model is served without places for adapters"
            raise RequestError(f"{what}; unload one, or serve the model with more (--max-adapters)", param="name")
        self._count += 1
        return Adapter(name, f"{name} {self._count}", self._free.pop())

    def add(self, adapter: Adapter) -> None:
        self._loaded[adapter.name] = adapter

    def give_back(self, adapter: Adapter) -> None:
        """Its place is free for another."""
        self._free.append(adapter.place)

    def use(self, name: str) -> Adapter:
        """For one more answer. Raises RequestError where it is not loaded, or being unloaded."""
        adapter = self._loaded.get(name)
        if adapter is None or adapter.left is not None:
            raise not_loaded(name)
        adapter.users += 1
        return adapter

    def release(self, adapter: Adapter) -> None:
        adapter.users -= 1
        self._leave(adapter)

    def remove(self, name: str) -> Future[None]:
        """Let no answer begin with it; done when those that use it have ended. Raises RequestError where it is not loaded."""
        adapter = self._loaded.get(name)
        if adapter is None:
            raise not_loaded(name)
        if adapter.left is None:
            adapter.left = Future()
        left = adapter.left
        self._leave(adapter)
        return left

    def _leave(self, adapter: Adapter) -> None:
        if adapter.left is not None and adapter.users == 0:
            del self._loaded[adapter.name]
            self.give_back(adapter)
            adapter.left.set_result(None)


def not_loaded(name: str) -> RequestError:
    return RequestError(f"adapter '{name}' is not loaded; load it, or leave it out", param="adapter")
