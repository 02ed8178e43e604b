"""An engine over the hash model that sees, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from engine_requests import run, settle
from hash_model import answer_of, next_token
from hash_runner import MODEL, HashRunner
from hash_tower import FEATURE_SIZE, IMAGE_TOKEN, HashTower, features_of, picture
from scheduler_traces import pools_of

from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine

LIMITS = Limits(tokens=8, sequences=4, rows=4, pages=24)
SEEING = replace(MODEL, image_token_id=IMAGE_TOKEN, feature_size=FEATURE_SIZE)
CAT, DOG = picture(1, 6), picture(2, 6)


def expected(request: TokenRequest, *, ends: bool = True) -> tuple[list[int], str]:
    """The answer of the hash model alone. Without ``ends``, its end token is one like others."""
    tokens = list(request.prompt_ids)
    for image in request.images:
        assert image.pixels is not None
        tokens[image.offset : image.end] = features_of(image.pixels)[:, 0].astype(int).tolist()
    assert request.max_tokens is not None
    if ends:
        return answer_of(tokens, request.max_tokens, SEEING.context)
    while len(tokens) < len(request.prompt_ids) + request.max_tokens:
        tokens.append(next_token(tokens))
    return tokens[len(request.prompt_ids) :], "length"


async def answer(engine: TokenEngine, request: TokenRequest) -> tuple[list[int], AnswerEnd]:
    tokens: list[int] = []
    async for item in engine.generate(request):
        if isinstance(item, AnswerEnd):
            return tokens, item
        assert isinstance(item, GeneratedToken)
        tokens.append(item.token_id)
    raise AssertionError("the answer has no end")


def answered(
    requests: Sequence[TokenRequest],
    tower: HashTower,
    *,
    limits: Limits = LIMITS,
    config: EngineConfig | None = None,
    threaded: bool = False,
) -> list[tuple[list[int], str]]:
    """All at once, in two waves."""

    async def work() -> list[tuple[list[int], str]]:
        runner = HashRunner(limits, threaded=threaded)
        engine = TokenEngine(runner, SEEING, config, tower=tower)
        tasks = []
        for index, request in enumerate(requests):
            tasks.append(asyncio.ensure_future(answer(engine, request)))
            await asyncio.sleep(0.001 * (index % 4 == 3))
        found = [(tokens, str(end.finish_reason)) for tokens, end in await asyncio.gather(*tasks)]
        await settle(engine)
        assert all(pool.free + len(pool.idle) == pool.size for pool in pools_of(engine._loop.scheduler))
        assert not engine._inbox._image_bytes
        await engine.close()
        return found

    return run(work())
