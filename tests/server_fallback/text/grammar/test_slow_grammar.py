"""A grammar that is fast for 40 tokens and slow soon after: the effect of its calls on other threads, and on other
answers of an engine.
"""

from __future__ import annotations

import asyncio
import json
import threading

import numpy as np
import numpy.typing as npt
import pytest
from engine_requests import OTHERS, engine_on, ids, run
from hash_model import answer_of
from hash_runner import HashRunner
from picking import Grammar

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine import mask_task
from nearfar.server_fallback.text.grammar.constraint import GrammarConstraint
from nearfar.server_fallback.text.grammar.source import EbnfSource, JsonSource

# Accepting the token of number n takes time that grows with the fourth power of n: 10 ms for the 50th.
SLOW = EbnfSource('root ::= "a" root root root | "a" root root | "a" root | "a"')


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar()


class OnlyA:
    """The slow grammar over the hash model, each of whose tokens writes an "a"."""

    finished = False

    def __init__(self, inner: GrammarConstraint) -> None:
        self._inner = inner

    def mask(self) -> npt.NDArray[np.int32]:
        self._inner.mask()
        return np.array([0b1111_1111_1111_1110], np.int32)

    def accept(self, token_id: int) -> None:  # noqa: ARG002
        self._inner.accept(ord("a"))


def accept(constraint: GrammarConstraint, text: bytes) -> None:
    for byte in text:
        constraint.accept(byte)


def test_xgrammar_lets_other_threads_run_while_it_computes(grammar: Grammar) -> None:
    stop, ticks, pace = threading.Event(), 0, 0.001

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(pace):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    most = 0
    # On a busy machine, the other thread may rest during a call. With the interpreter's lock it would during each.
    for _ in range(100):
        matcher = grammar.constraint(SLOW).matcher
        before = ticks
        # One call.
        assert matcher.accept_text("a" * 55)
        most = max(most, ticks - before)
        if most >= 5:
            break
    stop.set()
    thread.join()
    assert most >= 5


def test_an_ambiguous_grammar_ends_its_answer_before_the_parser_grows_large(grammar: Grammar) -> None:
    many = grammar.constraint(EbnfSource("root ::= x x x x x x x x\nx ::= [a-z ]* [a-z ]* [a-z ]*"))
    with pytest.raises(RequestError, match=r"after 1\d\d tokens its parser has kept 4\d,\d{3} states") as raised:
        accept(many, b"a" * 1000)
    assert raised.value.details["code"] == "grammar_too_ambiguous"
    # The largest schemas that people write: many optional properties, each of which may come next.
    names = [f"property_{index}" for index in range(200)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "additionalProperties": False,
    }
    wide = grammar.constraint(JsonSource(json.dumps(schema)))
    accept(wide, json.dumps(dict.fromkeys(names, "some text")).encode())
    assert wide.complete


def test_a_grammar_that_grows_slow_ends_its_answer_and_no_other(
    grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_task, "BUDGET_SECONDS", 0.3)
    monkeypatch.setattr(mask_task, "BUDGET_SECONDS_PER_TOKEN", 0.001)

    async def work() -> None:
        runner = HashRunner(Limits(tokens=8, sequences=4, rows=4, pages=400), threaded=True)
        async with engine_on(runner, context=400) as engine:
            slow = asyncio.ensure_future(ids(engine, constraint=OnlyA(grammar.constraint(SLOW)), max_tokens=300))
            while not slow.done():
                assert await ids(engine, OTHERS[0], max_tokens=20) == answer_of(OTHERS[0], 20, 400)[0]
            with pytest.raises(RequestError, match="the grammar is too slow") as raised:
                await slow
            # A check of the first 48 tokens does not detect it.
            tokens = raised.value.details["tokens"]
            assert isinstance(tokens, int)
            assert tokens > 48

    run(work())
