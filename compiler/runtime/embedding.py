"""Compute the embedding of one sequence on any runner. The tokens run in chunks from position 0; the result is one
vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bundle.manifest import EMBED
from .batch import Chunk, FloatArray, Runner, make_batch, require_plan
from .generate import PREFILL_CHUNK, check_tokens


def embed(runner: Runner, token_ids: Sequence[int], *, chunk: int = PREFILL_CHUNK) -> FloatArray:
    """The vector (E,) of a text, of length 1 if the bundle normalizes; this overwrites the runner's first pages.

    Raises RequestError for a bundle that generates text, no tokens, ids outside the vocabulary, or more tokens than the
    bundle's context.
    """
    manifest = runner.manifest
    require_plan(manifest, EMBED)
    check_tokens(runner, token_ids)
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        length = start + len(part)
        last = [len(part) - 1] if length == len(token_ids) else []
        rows = runner.embed(
            make_batch([Chunk(part, start, range(manifest.pages_for(length)), last)], manifest.page_size)
        )
    vector = rows[0]
    assert manifest.embedding is not None
    return normalized(vector) if manifest.embedding.normalize else vector


def normalized(vector: FloatArray) -> FloatArray:
    """The vector scaled to length 1; zeros stay zeros."""
    scaled: FloatArray = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return scaled
