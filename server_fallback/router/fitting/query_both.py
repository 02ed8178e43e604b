"""Sends prompts to both sides and yields pairs of answers in the same order, each as soon as it and those before it are
complete.

All sampling is greedy, so the same models give the same pairs. The near side also reports log-probabilities, of the
prompt too, from which the signals are computed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial

from ...executors.executor import Call, Executor
from ...schema.chat import ChatCompletionRequest
from ...schema.common import TokenLogprob
from ...schema.fold import ChatFold
from ...text.output import folded
from ..answer.signals import near_signals
from .pairs import FarAnswer, NearAnswer, Pair
from .prompts import Prompt

TOP_LOGPROBS = 20


async def query_both(
    prompts: Sequence[Prompt], near: Executor, far: Executor, *, far_model: str, max_tokens: int, concurrency: int
) -> AsyncGenerator[Pair, None]:
    """``concurrency`` prompts run at once. Raises what the sides raise; the pairs yielded before are valid."""
    turns = asyncio.Semaphore(concurrency)

    async def ask(index: int, prompt: Prompt) -> Pair:
        async with turns:
            call = Call(f"router-log-{index}")
            near_request = request("near", prompt, max_tokens, logprobs=True)
            prompt_logprobs: list[float] = []
            near_call = replace(call, observe_prompt_logprobs=prompt_logprobs.extend)
            (text, tokens, seconds), (far_text, _, far_seconds) = await asyncio.gather(
                answer(near, near_request, near_call), answer(far, request(far_model, prompt, max_tokens), call)
            )
        return Pair(
            prompt=prompt.prompt,
            task=prompt.task,
            group=prompt.group,
            near=NearAnswer(
                answer=text, right=prompt.is_right(text), seconds=seconds, signals=near_signals(tokens, prompt_logprobs)
            ),
            far=FarAnswer(answer=far_text, right=prompt.is_right(far_text), seconds=far_seconds),
        )

    tasks = [asyncio.create_task(ask(index, prompt)) for index, prompt in enumerate(prompts)]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def request(model: str, prompt: Prompt, max_tokens: int, *, logprobs: bool = False) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt.prompt}],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            **({"logprobs": True, "top_logprobs": TOP_LOGPROBS} if logprobs else {}),
        }
    )


async def answer(side: Executor, body: ChatCompletionRequest, call: Call) -> tuple[str, list[TokenLogprob], float]:
    """The text, its tokens if their log-probabilities were requested, and the seconds that it took."""
    started = time.perf_counter()
    [choice] = (await folded(partial(side.answer, body, call), ChatFold())).choices
    tokens = [] if choice.logprobs is None else choice.logprobs.content or []
    return choice.message.content or "", tokens, time.perf_counter() - started
