"""The encoder engine on bundles of encoders: results are those of each text alone, whatever shares its batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from plain_target import compile_plain
from tiny_encoders import CONTEXT, make_encoder, texts_of

from nearfar.compiler.runtime.encoding import Text, encode
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.engine.encoder_engine import EncoderEngine
from nearfar.server_fallback.engine.encoder_model import EncoderModel

TEXTS = texts_of([1, CONTEXT, 17, 3, 40, 2, 9])
TYPES = [[], [], [0] * 7 + [1] * 10, [], [], [], [1] * 9]


@pytest.mark.parametrize("head", ["mean_tokens", "ForSequenceClassification", "ForTokenClassification"])
def test_results_are_those_of_each_text_alone(head: str, tmp_path: Path) -> None:
    make_encoder("bert", head, tmp_path / "checkpoint")
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", CONTEXT)
    pairs = [Text(text, types) for text, types in zip(TEXTS, TYPES, strict=True)]
    expected = np.concatenate([np.atleast_2d(each) for each in encode(ReferenceRunner(bundle), pairs)])

    async def answers() -> None:
        runner = ReferenceRunner(bundle, limits=Limits(sequences=3, rows=3, tokens=100))
        engine = EncoderEngine(runner, EncoderModel.of(bundle.manifest))
        try:
            both = await asyncio.gather(
                engine.encode(EncodeRequest(TEXTS, TYPES)), engine.encode(EncodeRequest(TEXTS[:2]))
            )
            np.testing.assert_allclose(both[0], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(both[1], expected[: len(both[1])], rtol=1e-4, atol=1e-5)
        finally:
            await engine.close()

    asyncio.run(answers())
