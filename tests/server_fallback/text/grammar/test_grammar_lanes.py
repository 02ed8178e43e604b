"""The lanes of the grammar compiler: costly grammars do not delay those of other clients."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from limit_of_time import limit_only
from picking import END, TOKENS, pick
from some_grammars import NULL, SLOW, VOCABULARY, one, run
from waiting import WAIT_SECONDS, until

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.text.grammar import grammar_compiler
from nearfar.server_fallback.text.grammar.grammar_compiler import CompileLimits, GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.grammar.messages import Job
from nearfar.server_fallback.text.grammar.source import JsonSource, RegexSource
from nearfar.server_fallback.text.vocabulary import Vocabulary

MANY = JsonSource(
    json.dumps({"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(60)}})
)


@pytest.fixture(autouse=True)
def only_large_schemas_have_limits_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_large(request: object) -> bool:
        source = request.source if isinstance(request, Job) else None
        return isinstance(source, JsonSource) and len(source.schema) >= len(MANY.schema)

    limit_only(is_large, monkeypatch)


def test_a_grammar_that_takes_too_long_for_the_quick_lane_has_more_time_in_the_slow_one() -> None:
    compiler = GrammarCompiler(CompileLimits(quick_seconds=0.2, slow_seconds=0.4, costly_seconds=math.inf))
    grammars, quick, slow = Grammars(compiler, lambda: VOCABULARY), *compiler.lanes
    assert one(grammars, NULL) == "null"
    first = quick.pid
    with pytest.raises(RequestError, match=r"cannot be compiled within 0\.4 seconds"):
        run(grammars.constraints(SLOW, 1, "response_format"))
    assert slow.pid is None, "the slow lane's process runs only while it is needed"
    # A compiled grammar is kept and needs no process; a new one starts another.
    assert one(grammars, NULL) == "null"
    assert quick.pid == first
    assert one(grammars, RegexSource("new")) == "new"
    assert quick.pid != first
    second = quick.pid
    quick.seconds, slow.seconds = 0.0, WAIT_SECONDS
    assert len(run(grammars.constraints(MANY, 1, "response_format"))) == 1
    assert one(grammars, RegexSource("newer")) == "newer"
    assert quick.pid != second, "it was ended in the quick lane"
    grammars.close()


def test_a_grammar_that_needs_more_memory_than_the_quick_lane_has_is_tried_in_the_slow_lane_and_refused() -> None:
    limits = CompileLimits(quick_seconds=WAIT_SECONDS, quick_bytes=128 * 2**20, slow_bytes=160 * 2**20)
    compiler = GrammarCompiler(limits)
    grammars = Grammars(compiler, lambda: VOCABULARY)
    assert len(run(grammars.constraints(MANY, 1, "response_format"))) == 1
    with pytest.raises(RequestError, match="within 20 seconds and 160 MB of memory"):
        run(grammars.constraints(SLOW, 1, "response_format"))
    assert one(grammars, NULL) == "null"
    grammars.close()


def test_a_new_client_waits_for_one_quick_grammar_only() -> None:
    """Another client's worst cases, which take the compiler minutes, come first."""

    async def ask() -> None:
        compiler = GrammarCompiler(CompileLimits(quick_seconds=0.3, slow_seconds=2 * WAIT_SECONDS))
        grammars = Grammars(compiler, lambda: VOCABULARY)
        await grammars.constraints(NULL, 1, "x", client="attacker")
        slow = [replace(SLOW, schema=SLOW.schema + " " * index) for index in range(12)]
        attacks = [asyncio.create_task(grammars.constraints(source, 1, "x", client="attacker")) for source in slow]
        # Then the second is in the quick one.
        await until(lambda: compiler.lanes[1].pid is not None)
        async with asyncio.timeout(WAIT_SECONDS):
            assert len(await grammars.constraints(RegexSource("honest"), 1, "x", client="honest")) == 1
        assert not any(attack.done() for attack in attacks)
        grammars.close()
        failures = await asyncio.gather(*attacks, return_exceptions=True)
        assert {type(failure) for failure in failures} == {Unavailable}

    run(ask())


def test_after_a_costly_grammar_its_client_leaves_the_quick_lane_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        limits = CompileLimits(quick_seconds=0.2, slow_seconds=0.2, costly_seconds=0.0, slow_lane_seconds=600)
        compiler = GrammarCompiler(limits)
        grammars, quick = Grammars(compiler, lambda: VOCABULARY), compiler.lanes[0]
        waiting = [
            asyncio.create_task(grammars.constraints(source, 1, "x", client="c"))
            for source in (SLOW, RegexSource("later"))
        ]
        with pytest.raises(RequestError, match="cannot be compiled"):
            await waiting[0]
        await waiting[1]
        ended = quick.pid
        assert compiler.lanes_of("c") == compiler.lanes[1:]
        await grammars.constraints(RegexSource("costly"), 1, "x", client="c")
        assert quick.pid == ended, "no process of the quick lane was needed"
        await grammars.constraints(RegexSource("other"), 1, "x", client="other")
        assert quick.pid != ended
        monkeypatch.setattr(grammar_compiler, "monotonic", lambda: time.monotonic() + limits.slow_lane_seconds)
        assert compiler.lanes_of("c") == compiler.lanes
        grammars.close()

    run(ask())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports another process's processor time")
def test_a_grammar_that_waits_for_the_processor_is_not_a_costly_one() -> None:
    async def ask() -> None:
        compiler = GrammarCompiler(CompileLimits(quick_seconds=WAIT_SECONDS, costly_seconds=0.2))
        grammars = Grammars(compiler, lambda: VOCABULARY)
        await grammars.constraints(NULL, 1, "x", client="other")
        pid = compiler.lanes[0].pid
        assert pid is not None
        # It gets no processor, as on a machine that is overloaded.
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.create_task(grammars.constraints(RegexSource("honest"), 1, "x", client="c"))
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert len(await asking) == 1
        assert compiler.lanes_of("c") == compiler.lanes
        # One that has used it is, also if its client leaves.
        before = processor_seconds(pid)
        asking = asyncio.create_task(grammars.constraints(SLOW, 1, "x", client="d"))
        await until(lambda: processor_seconds(pid) > before + 0.3)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: compiler.lanes_of("d") == compiler.lanes[1:])
        grammars.close()

    run(ask())


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_abandoned_grammars_are_not_compiled() -> None:
    async def ask() -> None:
        compiler = GrammarCompiler(CompileLimits())
        grammars = Grammars(compiler, lambda: VOCABULARY)
        async with compiler.lanes[0].turn("other"):
            waiting = asyncio.create_task(grammars.constraints(RegexSource("a"), 1, "x", client="c"))
            # The same source waits with the first request for it.
            same = asyncio.create_task(grammars.constraints(RegexSource("a"), 1, "x", client="c"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in (waiting, same):
                task.cancel()
            await asyncio.gather(waiting, same, return_exceptions=True)
            third = asyncio.create_task(grammars.constraints(RegexSource("b"), 1, "x", client="c"))
            await asyncio.sleep(0)
        assert len(await third) == 1
        assert list(grammars._cache) == [RegexSource("b")]
        grammars.close()

    run(ask())


def test_a_grammar_that_nobody_waits_for_any_more_is_ended() -> None:
    async def ask() -> None:
        compiler = GrammarCompiler(CompileLimits(quick_seconds=2 * WAIT_SECONDS))
        grammars = Grammars(compiler, lambda: VOCABULARY)
        await grammars.constraints(NULL, 1, "x")
        first = compiler.lanes[0].pid
        leaving = asyncio.create_task(grammars.constraints(SLOW, 1, "x"))
        await asyncio.sleep(0.1)
        leaving.cancel()
        async with asyncio.timeout(WAIT_SECONDS):
            assert len(await grammars.constraints(RegexSource("next"), 1, "x", client="next")) == 1
        assert compiler.lanes[0].pid != first
        grammars.close()

    run(ask())


def test_models_share_one_process_which_holds_few_vocabularies() -> None:
    async def ask() -> None:
        compiler = GrammarCompiler()
        models = []
        for index in range(6):
            tokens = (*TOKENS[:END], b"</s>", *[b"x"] * index)
            models.append(Grammars(compiler, lambda tokens=tokens: Vocabulary(tokens, frozenset([END]), (END,), None)))  # type: ignore[misc]
        pids: set[int | None] = set()
        for model in (*models, models[0]):
            source = RegexSource(f"model{len(pids)}{models.index(model)}")
            [constraint] = await model.constraints(source, 1, "x")
            assert pick(constraint, 0) == source.pattern
            pids.add(compiler.lanes[0].pid)
        assert len(pids) == 1
        for model in models[1:]:
            model.close()
        assert compiler.lanes[0].pid is not None
        models[0].close()
        assert compiler.lanes[0].pid is None

    run(ask())
