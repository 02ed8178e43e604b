"""One model's grammars, and the constraints on answers that they make.

xgrammar is loaded when the first grammar is needed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ...garbage import free_memory
from ..vocabulary import Vocabulary
from .bounded import Bound, BoundedConstraint
from .constraint import GrammarConstraint
from .grammar_compiler import GrammarCompiler
from .messages import Compiled, Setup
from .shortener import Shortener
from .source import GrammarSource, TagsSource
from .token_shapes import FreeText, TokenShapes

if TYPE_CHECKING:
    from .xgrammar_binding import CompiledGrammar, TokenizerInfo

MAX_CACHED = 128
# The size of the cached compiled grammars and their sources.
MAX_CACHED_BYTES = 64 * 2**20


class Grammars:
    """``read_vocabulary`` is called once, on a thread, when it is first needed. Used from one event loop."""

    def __init__(self, compiler: GrammarCompiler, read_vocabulary: Callable[[], Vocabulary]) -> None:
        self._compiler = compiler
        self._read_vocabulary = read_vocabulary
        self._tables: asyncio.Task[_Tables] | None = None
        self._cache: OrderedDict[GrammarSource, _Grammar] = OrderedDict()
        self._pending: dict[tuple[str, GrammarSource], _Pending] = {}
        self._closed = False
        compiler.join()

    async def constraints(
        self, source: GrammarSource, count: int, param: str, max_tokens: int | None = None, client: str = ""
    ) -> list[GrammarConstraint | BoundedConstraint]:
        """One constraint for each of ``count`` answers of at most ``max_tokens``.

        Answers are complete within ``max_tokens``; with None they may be cut off. Compiling is shared fairly between
        clients. Requests of one client for the same source wait together.

        Raises RequestError, which names ``param``, for a grammar that is wrong, that no answer can meet, or that takes
        too long to compile, and for one that needs more tokens; Unavailable if the compiler's process was ended; and
        ToolError if xgrammar is not installed.
        """
        try:
            grammar = await self._compiled(source, client)
            tables = await self._loaded()
            return [tables.constraint(grammar, max_tokens) for _ in range(count)]
        except RequestError as error:
            raise RequestError(error.message, **{"param": param, **error.details}) from error

    def close(self) -> None:
        """Cancel the grammars that are being compiled."""
        if not self._closed:
            self._closed = True
            for pending in list(self._pending.values()):
                pending.task.cancel()
            self._compiler.leave()

    async def _compiled(self, source: GrammarSource, client: str) -> _Grammar:
        cached = self._use_cached(source)
        if cached is not None:
            return cached
        if self._closed:
            raise Unavailable("this model is being unloaded; send the request again")
        key = (client, source)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(asyncio.create_task(self._compile(source, client)))
        pending.waiters += 1
        try:
            return await asyncio.shield(pending.task)
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable("this model is being unloaded; send the request again") from None
            raise
        finally:
            pending.waiters -= 1
            if pending.waiters == 0:
                # It is done, or no request needs it any more. Later requests wait for another task.
                pending.task.cancel()
                if self._pending.get(key) is pending:
                    del self._pending[key]

    async def _compile(self, source: GrammarSource, client: str) -> _Grammar:
        for lane in self._compiler.lanes_of(client):
            async with lane.turn(client):
                # It may have been compiled for another client meanwhile.
                cached = self._use_cached(source)
                if cached is not None:
                    return cached
                if lane not in self._compiler.lanes_of(client):
                    # While this grammar waited, another one of the client was costly.
                    continue
                tables = await self._loaded()
                reply = await lane.compile(tables.setup, source, client)
                if reply is not None:
                    grammar = await asyncio.to_thread(tables.grammar, source, reply)
                    self._store(source, grammar)
                    return grammar
        most = self._compiler.lanes[-1]
        raise RequestError(
            f"the grammar cannot be compiled within {most.seconds:g} seconds and {most.memory_bytes >> 20} MB of "
            "memory; make it smaller"
        )

    def _use_cached(self, source: GrammarSource) -> _Grammar | None:
        cached = self._cache.get(source)
        if cached is not None:
            self._cache.move_to_end(source)
        return cached

    def _store(self, source: GrammarSource, grammar: _Grammar) -> None:
        self._cache[source] = grammar
        size = sum(cached.size_bytes for cached in self._cache.values())
        while len(self._cache) > MAX_CACHED or (size > MAX_CACHED_BYTES and len(self._cache) > 1):
            _, oldest = self._cache.popitem(last=False)
            size -= oldest.size_bytes

    async def _loaded(self) -> _Tables:
        if self._tables is None:
            self._tables = asyncio.create_task(asyncio.to_thread(lambda: _Tables(self._read_vocabulary())))
        try:
            return await asyncio.shield(self._tables)
        except Exception:
            # The next request tries again.
            self._tables = None
            raise


@dataclass(slots=True)
class _Pending:
    """A grammar that is being compiled, and the number of requests that wait for it."""

    task: asyncio.Task[_Grammar]
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class _Grammar:
    """``needed`` is the number of tokens of the shortest answer found, None if none was found.

    For ``text`` see `Bound`.
    """

    compiled: CompiledGrammar
    reply: Compiled
    needed: int | None
    text: FreeText | None
    size_bytes: int


class _Tables:
    """The tables that all grammars of a vocabulary share."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_token_ids:
            raise RequestError(
                "this model has no token that ends an answer, which a grammar needs; compile it with its eos_token_id"
            )
        from .xgrammar_binding import TokenizerInfo

        self.setup = Setup.of(vocabulary.spoken(), vocabulary.eos_token_ids)
        self._tokenizer: TokenizerInfo = TokenizerInfo(self.setup.tokens, self.setup.eos_token_ids)
        self._shapes = TokenShapes(self.setup.tokens, self.setup.eos_token_ids)
        self._shortener = Shortener(self.setup.tokens)

    def grammar(self, source: GrammarSource, reply: Compiled) -> _Grammar:
        from .xgrammar_binding import CompiledGrammar

        shortest = None if reply.first is None else self._shortener.needed(reply.first)
        compiled = CompiledGrammar.deserialize_json(reply.text, self._tokenizer)
        free_memory()
        trigger = source.trigger if isinstance(source, TagsSource) else None
        text = None if trigger is None else self._shapes.around(trigger)
        needed = None if shortest is None else shortest.count
        return _Grammar(compiled, replace(reply, text=""), needed, text, compiled.memory_size_bytes + len(repr(source)))

    def constraint(self, grammar: _Grammar, max_tokens: int | None) -> GrammarConstraint | BoundedConstraint:
        """Raises RequestError if the shortest answer found has more than ``max_tokens`` tokens."""
        reply, needed = grammar.reply, grammar.needed
        inner = GrammarConstraint.of(grammar.compiled, self._shapes, open_ended=grammar.text is not None)
        if max_tokens is None:
            return inner
        if needed is not None and needed > max_tokens:
            raise RequestError(
                f"the shortest answer found that the grammar allows has {needed} tokens, and there is room for "
                f"{max_tokens}; raise max_tokens, or shorten the prompt",
                param="max_tokens",
                needed=needed,
                max_tokens=max_tokens,
            )
        if not reply.closes:
            return inner
        return BoundedConstraint(
            inner, Bound(max_tokens, reply.reserve, reply.endings, reply.first, grammar.text), self._shortener
        )
