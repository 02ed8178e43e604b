"""Reasoning budgets over the hash model: forced tokens, and the model's log-probabilities of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from engine_requests import LIMITS, engine_on, ids, run
from hash_model import STOP, VOCAB, next_token
from hash_runner import HashRunner

from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.text.reasoning_constraint import ReasoningConstraint

OPEN, CLOSE, BREAK = 1, 2, 3
ENDING = [BREAK, CLOSE, BREAK]


def test_a_budget_holds_for_forked_and_preempted_answers_beside_others_that_speculate() -> None:
    # Prompts whose answers are long.
    first, second, third = (
        [13, 11, 3, 9, 13, 6, 9, 14, 3],
        [11, 6, 15, 10, 10, 11, 6, 8, 6],
        [15, 7, 6, 7, 4, 15, 12, 5, 8],
    )
    budgets, prompts = (2, 3, 5, 0, 2), (first, first, first, second, third)
    most = 24

    async def work() -> None:
        runner = HashRunner(replace(LIMITS, rows=20, tokens=40, pages=17), threaded=True)
        async with engine_on(runner, EngineConfig(speculation=Speculation("ngram"))) as engine:
            bounded = [
                ids(engine, prompt, max_tokens=most, constraint=constraint(budget))
                for prompt, budget in zip(prompts, budgets, strict=True)
            ]
            answers = await asyncio.gather(*bounded, ids(engine, first, max_tokens=most))
            for prompt, budget, answer in zip(prompts, budgets, answers, strict=False):
                assert answer == expected(prompt, budget, most)
            assert answers[-1] == expected(first, None, most)
            assert engine.stats().preemptions > 0

    run(work())


def constraint(budget: int) -> ReasoningConstraint:
    reasoning: Any = SimpleNamespace(
        open_id=OPEN, close_id=CLOSE, ending_ids=ENDING, is_blank=lambda token: token == BREAK
    )
    return ReasoningConstraint(
        reasoning, "reasoning", budget=budget, form=None, max_tokens=64, vocab_size=VOCAB, end_token_ids=[STOP]
    )


def expected(prompt: Sequence[int], budget: int | None, most: int) -> list[int]:
    answer: list[int] = []
    while len(answer) < most:
        if budget is not None and len(answer) == budget and CLOSE not in answer:
            answer += ENDING
            continue
        token = next_token([*prompt, *answer])
        if token == STOP:
            break
        answer.append(token)
    return answer
