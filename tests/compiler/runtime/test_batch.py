"""Batches: what may be in one."""

from __future__ import annotations

import pytest

from nearfar.compiler.errors import RequestError
from nearfar.compiler.runtime.batch import Chunk, make_batch


def test_a_sequence_without_a_new_token_is_refused() -> None:
    with pytest.raises(RequestError, match="chunk 1 of the batch has no new token"):
        make_batch([Chunk([5, 6], 0, [0]), Chunk([], 20, [1, 2])], 16)
