"""Heads that draft the tokens of a model that sees pictures read what the model reads: the features of pictures in the
place of embeddings, and positions by row and column.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draft_heads import SeeingHeads
from test_runners import emulation_for, open_on
from test_vision import compiled, features_of, pictures_of
from tolerances import F32, relative_error

from nearfar.compiler.bundle.manifest import DRAFT
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.placed_features import features_between, rope_positions_between
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits

LIMITS = Limits(tokens=64, sequences=1, rows=64, pages=8, patches=512, draft_pages=8)


@pytest.mark.parametrize(
    "target",
    ["cpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("numpy", "webgpu", "cuda"))],
)
def test_heads_see_the_pictures_as_transformers_layer_does(
    target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Chunks begin and end inside pictures."""
    emulated = emulation_for(target, request)
    heads = SeeingHeads(tmp_path / "checkpoint")
    expected, tokens = heads.expected, heads.expected.token_ids
    bundle = compiled(tmp_path / "checkpoint", tmp_path / "bundle", target)
    runner = open_on(target, bundle, LIMITS, "float32", emulated)
    assert isinstance(runner, PlanRunner)
    try:
        placed = list(zip(expected.places, features_of(runner, expected), strict=True))
        pictures, pages = pictures_of(expected), range(5)
        turns = rope_positions_between(pictures, 0, len(tokens))
        features = features_between(placed, 0, len(tokens))
        rows = range(len(tokens))
        whole = Chunk(tokens, 0, pages, rows, state=(0, 0), features=features, rope_positions=turns)
        assert relative_error(runner.forward(make_batch([whole], 16)).logits, expected.logits) < F32
        found = []
        for start in range(0, len(tokens) - 1, 7):
            stop = min(start + 7, len(tokens) - 1)
            chunk = Chunk(
                tokens[start + 1 : stop + 1],
                start,
                pages,
                range(stop - start),
                # The model's pages are the first ones.
                kept_rows=range(start, stop),
                features=features_between(placed, start + 1, stop + 1),
                rope_positions=rope_positions_between(pictures, start, stop),
            )
            found.append(runner.submit(make_batch([chunk], 16), DRAFT).result().logits.copy())
        wanted = heads.guessed(tokens)
        assert relative_error(np.concatenate(found), wanted) < F32
        own = features_between(placed, 1, len(tokens))
        for less in ({"features": None}, {"rope_positions": None}):
            seen = {"features": own, "rope_positions": turns[:-1], **less}
            chunk = Chunk(tokens[1:], 0, pages, rows[:-1], kept_rows=rows[:-1], **seen)  # type: ignore[arg-type]
            output = runner.submit(make_batch([chunk], 16), DRAFT).result()
            assert relative_error(output.logits, wanted) > 10 * F32, less
    finally:
        runner.close()
