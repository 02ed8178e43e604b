"""One model's grammars: what an answer may be flows in, constraints flow out. Nothing of xgrammar loads before the first is asked for.

Grammars are compiled in a process of their own, which is ended when one takes too long; what it makes is kept, the last used ones.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nearfar.compiler.errors import RequestError, ToolError

from ..vocabulary import Vocabulary
from .bounded import Bound, BoundedConstraint
from .constraint import GrammarConstraint
from .frames import READY, Compiled, Refused, Setup, read_frame, write_frame
from .shortener import Shortener
from .source import GrammarSource, TagsSource
from .token_shapes import FreeText, TokenShapes

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, TokenizerInfo

COMPILE_SECONDS = 30.0
# Loading xgrammar takes two seconds, and much longer where the machine is busy.
START_SECONDS = 120.0
MAX_KEPT = 128
MAX_KEPT_BYTES = 256 * 2**20


class Grammars:
    """``read_vocabulary`` is called once, on a thread, when it is first needed. Used from one event loop."""

    def __init__(self, read_vocabulary: Callable[[], Vocabulary], compile_seconds: float = COMPILE_SECONDS) -> None:
        self._read_vocabulary = read_vocabulary
        self._compile_seconds = compile_seconds
        # One thread, so that one grammar is compiled at a time.
        self._thread = ThreadPoolExecutor(1, "nearfar-grammar")
        self._kept: OrderedDict[GrammarSource, _Grammar] = OrderedDict()
        self._pending: dict[GrammarSource, asyncio.Future[_Grammar]] = {}
        self._compiler: _Compiler | None = None
        self._closed = False

    async def constraints(
        self, source: GrammarSource, count: int, param: str, max_tokens: int | None = None
    ) -> list[GrammarConstraint | BoundedConstraint]:
        """One for each of ``count`` answers of at most ``max_tokens``, which are then whole when they end there; with None they may be cut
        off. Raises RequestError, which names ``param``, for a grammar that is wrong, that no answer can meet, or that takes too long to
        compile, and one that says how many tokens are needed where that is more; ToolError where xgrammar is not installed.
        """
        try:
            grammar = await self._compiled(source)
            assert self._compiler is not None
            return [self._compiler.constraint(grammar, max_tokens) for _ in range(count)]
        except RequestError as error:
            raise RequestError(error.message, **{"param": param, **error.details}) from error

    def close(self) -> None:
        """End the compiler's process; what it compiles fails."""
        self._closed = True
        if self._compiler is not None:
            self._compiler.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compiled(self, source: GrammarSource) -> _Grammar:
        kept = self._kept.get(source)
        if kept is not None:
            self._kept.move_to_end(source)
            return kept
        pending = self._pending.get(source)
        if pending is None:
            pending = asyncio.get_running_loop().run_in_executor(self._thread, self._compile, source)
            self._pending[source] = pending
            pending.add_done_callback(lambda done: self._keep(source, done))
        # Others may wait for the same one, so that who leaves must not end it.
        return await asyncio.shield(pending)

    def _keep(self, source: GrammarSource, done: asyncio.Future[_Grammar]) -> None:
        del self._pending[source]
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[source] = done.result()
        size = sum(grammar.compiled.memory_size_bytes for grammar in self._kept.values())
        while len(self._kept) > MAX_KEPT or (size > MAX_KEPT_BYTES and len(self._kept) > 1):
            _, oldest = self._kept.popitem(last=False)
            size -= oldest.compiled.memory_size_bytes

    def _compile(self, source: GrammarSource) -> _Grammar:
        if self._compiler is None:
            self._compiler = _Compiler(self._read_vocabulary(), self._compile_seconds)
        if self._closed:
            raise RequestError("this model is being unloaded; ask again")
        return self._compiler.compile(source)


@dataclass(frozen=True, slots=True)
class _Grammar:
    """``needed`` is how many tokens the shortest answer found has, None where none was; ``text``: see `Bound`."""

    compiled: CompiledGrammar
    reply: Compiled
    needed: int | None
    text: FreeText | None


class _Compiler:
    """The process that compiles, started when it is needed. Used from one thread, but for `stop`."""

    def __init__(self, vocabulary: Vocabulary, compile_seconds: float) -> None:
        if not vocabulary.eos_token_ids:
            raise RequestError("this model has no token that ends an answer, which a grammar needs; compile it with its eos_token_id")
        self._setup = Setup(vocabulary.spoken(), list(vocabulary.eos_token_ids))
        self._compile_seconds = compile_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._tokenizer: TokenizerInfo | None = None
        self._shapes: TokenShapes | None = None
        self._shortener: Shortener | None = None

    def compile(self, source: GrammarSource) -> _Grammar:
        if self._process is None or self._process.poll() is not None:
            self._start()
        reply = self._ask(source, self._compile_seconds)
        if reply is None:
            raise RequestError(
                f"the grammar cannot be compiled within {self._compile_seconds:g} seconds and the memory for it; make it smaller"
            )
        if isinstance(reply, Refused):
            raise RequestError(reply.message)
        assert isinstance(reply, Compiled)
        import xgrammar

        assert self._tokenizer is not None
        assert self._shapes is not None
        assert self._shortener is not None
        shortest = None if reply.first is None else self._shortener.needed(reply.first)
        compiled = xgrammar.CompiledGrammar.deserialize_json(reply.text, self._tokenizer)
        trigger = source.trigger if isinstance(source, TagsSource) else None
        text = None if trigger is None else self._shapes.around(trigger)
        return _Grammar(compiled, replace(reply, text=""), None if shortest is None else shortest.count, text)

    def constraint(self, grammar: _Grammar, max_tokens: int | None) -> GrammarConstraint | BoundedConstraint:
        """Raises RequestError where no answer found is so short."""
        assert self._shapes is not None
        assert self._shortener is not None
        reply, needed = grammar.reply, grammar.needed
        inner = GrammarConstraint.of(grammar.compiled, self._shapes, open_ended=grammar.text is not None)
        if max_tokens is None:
            return inner
        if needed is not None and needed > max_tokens:
            raise RequestError(
                f"the shortest answer found that the grammar allows has {needed} tokens, and there is room for {max_tokens}; raise "
                "max_tokens, or shorten the prompt",
                param="max_tokens",
                needed=needed,
                max_tokens=max_tokens,
            )
        if not reply.closes:
            return inner
        return BoundedConstraint(inner, Bound(max_tokens, reply.reserve, reply.endings, reply.first, grammar.text), self._shortener)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    def _start(self) -> None:
        self.stop()
        self._process = subprocess.Popen(
            # What it prints are warnings of xgrammar about what the grammar's author sent.
            [sys.executable, "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # While the process loads xgrammar, so does this one.
        if self._tokenizer is None:
            self._tokenizer = self._load()
            self._shapes = TokenShapes(self._setup.tokens, self._setup.eos_token_ids)
            self._shortener = Shortener(self._setup.tokens)
        if self._ask(self._setup, START_SECONDS) != READY:
            raise ToolError("the grammar compiler's process does not start; 'pip install nearfar[serve]' installs what it needs")

    def _load(self) -> TokenizerInfo:
        try:
            import xgrammar
        except ImportError as error:
            raise ToolError(f"structured output needs xgrammar: {error}; 'pip install nearfar[serve]' installs it") from error
        setup = self._setup
        return xgrammar.TokenizerInfo(
            setup.tokens, xgrammar.VocabType.RAW, vocab_size=len(setup.tokens), stop_token_ids=setup.eos_token_ids
        )

    def _ask(self, value: object, seconds: float) -> Any:
        """The process's reply; None where it has ended, which it does when the time is over."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            write_frame(process.stdin, value)
            return read_frame(process.stdout)
        except (EOFError, OSError, ValueError):
            process.wait()
            return None
        finally:
            timer.cancel()
