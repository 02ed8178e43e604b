"""Slots, as llama.cpp's server has them: each stands for the last answer that used it, whose keys and values can be
saved to a file, and restored into the prefix cache of a later server with the same bundle.

Our engine has no memory by slot: a slot is the tokens by which the prefix cache finds what they left there.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..engine.encoded_prefix import PrefixKey, decode, encode
from ..engine.images import prompt_keys
from ..engine.request import AnswerEnd, GeneratedToken, PromptLogprobs, TokenHandler, TokenRequest, items_of
from ..engine.retained_pages import RetainedPages
from .slot_files import SlotFiles

Batches = AsyncGenerator[list[PromptLogprobs | GeneratedToken | AnswerEnd], None]
# A prompt continues the slot with which it shares more than this part of itself, as in llama.cpp.
SIMILAR = 0.1


class PrefixEngine(Protocol):
    """The part of `engine.token_engine.TokenEngine` that is needed here."""

    @property
    def prefix_key(self) -> PrefixKey: ...

    def batches(self, request: TokenRequest, handle: TokenHandler | None = None) -> Batches: ...

    async def read_prefix(self, token_ids: Sequence[int], adapter: str | None = None) -> RetainedPages: ...

    async def write_prefix(self, pages: RetainedPages) -> int: ...


@dataclass(slots=True)
class Slot:
    """``keys`` are the tokens of its last answer, with the prompt, as the prefix cache compares them; ``adapter`` the
    LoRA adapter that read them. ``running`` answers use it; ``used`` orders slots by their last use.
    """

    number: int
    keys: list[int] = field(default_factory=list)
    adapter: str | None = None
    running: int = 0
    used: int = -1


@dataclass(frozen=True, slots=True)
class Moved:
    """What was saved or restored: ``tokens``, and the ``size_bytes`` of the file."""

    tokens: int
    size_bytes: int


class Slots:
    """The slots of one model. ``most_bytes``: no file of it can be larger. All methods run on one event loop."""

    def __init__(self, engine: PrefixEngine, files: SlotFiles, count: int, most_bytes: int) -> None:
        self._engine, self._files, self._most_bytes = engine, files, most_bytes
        self._slots = [Slot(number) for number in range(count)]
        self._uses = itertools.count()

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def source(self, number: int | None) -> SlotSource:
        """The engine's tokens, in the slot of this number; None or -1: in a slot that the prompt fits. Raises
        RequestError.
        """
        return SlotSource(self, self._engine, None if number is None or number == -1 else self._at(number))

    async def save(self, number: int, name: str) -> Moved:
        """Raises RequestError for a slot that has nothing in the cache, and for a name that cannot be a file's;
        Unavailable if the file cannot be written; and the engine's errors.
        """
        slot, path = self._at(number), self._files.path(name)
        pages = await self._engine.read_prefix(slot.keys, slot.adapter)
        if not pages.token_ids:
            raise RequestError(
                f"slot {number} has nothing to save: no page of its tokens is in the prefix cache; send a longer "
                "prompt with this id_slot first",
                param="id_slot",
                code="slot_empty",
            )
        data = await asyncio.to_thread(encode, pages, self._engine.prefix_key)
        await asyncio.to_thread(self._files.write, path, data)
        return Moved(len(pages.token_ids), len(data))

    async def restore(self, number: int, name: str, adapter: str | None) -> Moved:
        """Raises RequestError for a file that is missing, damaged, too large or made for another model; Unavailable if
        running answers leave no room; and the engine's errors. The slot is then as before.
        """
        slot, path = self._at(number), self._files.path(name)
        data = await asyncio.to_thread(self._files.read, path, self._most_bytes)
        try:
            pages = await asyncio.to_thread(decode, data, self._engine.prefix_key)
        except RequestError as error:
            cause = str(error.details.get("cause", "damaged")).replace(" ", "_")
            raise RequestError(f"{name}: {error.message}", param="filename", code=f"slot_file_{cause}") from error
        tokens = await self._engine.write_prefix(pages)
        if tokens < len(pages.token_ids):
            raise Unavailable(
                f"{name}: running answers leave no room for its {len(pages.token_ids)} tokens; try again later",
                code="no_room_for_slot",
            )
        slot.keys, slot.adapter, slot.used = list(pages.token_ids), adapter, next(self._uses)
        return Moved(tokens, len(data))

    def erase(self, number: int) -> int:
        """Forget the tokens of a slot; returns their number. What they left in the prefix cache is evicted by use."""
        slot = self._at(number)
        count, slot.keys, slot.used = len(slot.keys), [], -1
        return count

    def choose(self, keys: Sequence[int]) -> Slot:
        """The slot whose tokens a prompt continues, else the one that was used longest ago; idle ones first."""
        idle = [slot for slot in self._slots if not slot.running] or self._slots
        best = max(idle, key=lambda slot: shared(slot.keys, keys))
        if shared(best.keys, keys) > SIMILAR * len(keys):
            return best
        return min(idle, key=lambda slot: slot.used)

    @contextmanager
    def using(self, slot: Slot, keys: list[int], adapter: str | None) -> Iterator[None]:
        """Let an answer, whose prompt has these keys, use a slot."""
        slot.keys, slot.adapter, slot.used = keys, adapter, next(self._uses)
        slot.running += 1
        try:
            yield
        finally:
            slot.running -= 1

    def _at(self, number: int) -> Slot:
        if not 0 <= number < len(self._slots):
            raise RequestError(
                f"id_slot is {number}; this model has slots 0 to {len(self._slots) - 1}",
                param="id_slot",
                code="invalid_slot",
            )
        return self._slots[number]


class SlotSource:
    """A `TokenSource` whose answers use slots: the first one the ``slot`` if it is given, all others one that fits."""

    def __init__(self, slots: Slots, engine: PrefixEngine, slot: Slot | None) -> None:
        self._slots, self._engine, self._slot = slots, engine, slot

    def generate(self, request: TokenRequest) -> AsyncGenerator[PromptLogprobs | GeneratedToken | AnswerEnd, None]:
        return items_of(self.batches(request))

    async def batches(self, request: TokenRequest, handle: TokenHandler | None = None) -> Batches:
        keys = prompt_keys(request.prompt_ids, request.images)
        slot, self._slot = self._slot or self._slots.choose(keys), None

        def handled(token: GeneratedToken) -> bool:
            if handle is None or not handle(token):
                return False
            keys.append(token.token_id)
            return True

        with self._slots.using(slot, keys, request.adapter):
            async with aclosing(self._engine.batches(request, None if handle is None else handled)) as batches:
                async for batch in batches:
                    keys += [item.token_id for item in batch if isinstance(item, GeneratedToken)]
                    yield batch


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    return next((index for index in range(most) if one[index] != other[index]), most)
