"""Embeddings of the token engine with the hash model."""

from __future__ import annotations

import asyncio

import pytest
from engine_requests import LIMITS, collect, engine_on, run
from hash_model import VOCAB
from hash_runner import HashRunner

from nearfar.compiler.errors import DeviceError, RequestError
from nearfar.compiler.runtime.batch import Limits


def test_embeddings_of_all_callers_share_batches_and_come_back_in_order() -> None:
    async def work() -> None:
        runner = HashRunner(Limits(tokens=8, sequences=3, rows=2, pages=8))
        async with engine_on(runner, embeds=True, context=24) as engine:
            texts = [[[index + 1] * length for length in (1, 20, 3, 8)] for index in range(3)]
            for own, vectors in zip(texts, await asyncio.gather(*(engine.embed(each) for each in texts)), strict=True):
                assert vectors.tolist() == [[sum(ids), len(ids), ids[-1]] for ids in own]
            assert any(len(batch.seq_starts) > 2 for batch in runner.batches)
            abandoned = asyncio.ensure_future(engine.embed([[1] * 20] * 40))
            await asyncio.sleep(0)
            abandoned.cancel()
            await asyncio.gather(abandoned, return_exceptions=True)
            assert (await engine.embed([[2, 3]])).tolist() == [[5, 2, 3]]
            inputs: list[list[list[int]]] = [[], [[]], [[VOCAB]], [[1] * 25]]
            for wrong in inputs:
                with pytest.raises(RequestError):
                    await engine.embed(wrong)
            with pytest.raises(RequestError, match="generates no text"):
                await collect(engine)

    run(work())


def test_a_failure_while_embedding_fails_the_texts_of_its_batch() -> None:
    async def work() -> None:
        runner = HashRunner(LIMITS, fail=lambda number: DeviceError("lost") if number == 1 else None)
        async with engine_on(runner, embeds=True) as engine:
            with pytest.raises(DeviceError, match="lost"):
                await engine.embed([[1] * 20])
            assert (await engine.embed([[1] * 20])).tolist() == [[20, 20, 1]]
        async with engine_on(HashRunner(LIMITS)) as engine:
            with pytest.raises(RequestError, match="makes no embeddings"):
                await engine.embed([[1]])

    run(work())
