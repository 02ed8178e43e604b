"""A model's own heads in the engine draft the answers to pictures as well as those to texts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from draft_heads import SeeingHeads
from plain_target import compile_plain
from test_vision import pictures_of

from nearfar.compiler.bundle.manifest import DRAFT, Manifest
from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import heads_of
from nearfar.server_fallback.engine.images import PromptImage
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.stats import EngineStats
from nearfar.server_fallback.engine.token_engine import TokenEngine

ANSWER = 12


def requests_of(heads: SeeingHeads) -> list[TokenRequest]:
    """The prompt with two pictures, greedy and sampled, and with the pictures in another order of colours."""
    expected = heads.expected
    shapes = [(first, length, columns) for first, length, columns in pictures_of(expected)]
    found = []
    for seed in range(4):
        images = [
            PromptImage(
                first,
                length,
                f"{seed}{index}" * 32,
                features=np.roll(features, seed, axis=1),
                columns=columns,
            )
            for index, ((first, length, columns), features) in enumerate(zip(shapes, expected.features, strict=True))
        ]
        sampling = Sampling(temperature=0.7, seed=seed) if seed % 2 else Sampling()
        found.append(TokenRequest(expected.token_ids, ANSWER, sampling, images=images, ignore_eos=True))
    return found


def answered(
    runner: ReferenceRunner, requests: Sequence[TokenRequest], *, drafts: bool, sees: bool = True
) -> tuple[list[list[int]], EngineStats]:
    async def work() -> tuple[list[list[int]], EngineStats]:
        manifest = runner.manifest
        assert isinstance(manifest, Manifest)
        drafter = heads_of(runner, manifest) if drafts else None
        if drafter is not None and not sees:
            # As heads of an engine that does not give them the pictures.
            chunk_of = drafter._chunk_of
            drafter._chunk_of = lambda *given: replace(chunk_of(*given), features=None, rope_positions=None)  # type: ignore[method-assign]
        config = EngineConfig(speculation=Speculation("heads", tokens=3) if drafts else None)
        engine = TokenEngine(runner, TokenModel.of(manifest), config, draft=drafter)

        async def answer(request: TokenRequest) -> list[int]:
            return [item.token_id async for item in engine.generate(request) if isinstance(item, GeneratedToken)]

        found = await asyncio.gather(*(answer(request) for request in requests))
        stats = engine.stats()
        await engine.close()
        return list(found), stats

    return asyncio.run(work())


def test_heads_that_see_the_pictures_guess_more_than_those_that_do_not(tmp_path: Path) -> None:
    heads = SeeingHeads(tmp_path / "checkpoint", same=True)
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 128)
    requests = requests_of(heads)
    # Prompts are read in chunks that end inside pictures.
    limits = Limits(tokens=19, sequences=4, rows=20, pages=40, states=12, draft_pages=40)

    def opened() -> ReferenceRunner:
        return ReferenceRunner(bundle, limits=limits, activation="float32")

    expected, plain = answered(opened(), requests, drafts=False)
    assert plain.drafted_tokens == 0
    rates = []
    for sees in (True, False):
        found, stats = answered(opened(), requests, drafts=True, sees=sees)
        assert found == expected
        rates.append(stats.accepted_tokens / stats.drafted_tokens)
    # 0.62 and 0.
    assert rates[0] > rates[1] + 0.3, rates
    # Those of an earlier compiler read text only.
    inputs = bundle.manifest.plan(DRAFT).inputs
    assert heads_of(opened(), bundle.manifest).reads_images
    del inputs["features"]
    assert not heads_of(opened(), bundle.manifest).reads_images
