"""Packing blocks is the inverse of reading them."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.compiler.formats.gguf.block_types import BLOCK_TYPES
from nearfar.compiler.formats.gguf.pack_blocks import PACKS, pack_blocks
from nearfar.compiler.formats.gguf.writer import NUMBER_OF
from nearfar.compiler.quant import Products


@pytest.mark.parametrize("kind", PACKS)
def test_blocks_keep_their_bytes(kind: str) -> None:
    block = BLOCK_TYPES[NUMBER_OF[kind]]
    assert block.unpack is not None
    data = np.random.default_rng(3).integers(0, 256, (5, 3, block.bytes), np.uint8)
    # The float16 factors must be numbers.
    data[..., :4] &= 0x3B
    codes, scales, biases = block.unpack(data)
    assert isinstance(scales, np.ndarray)
    assert not isinstance(biases, Products)
    flat = [None if each is None else each.reshape(5, 3) for each in (scales, biases)]
    assert flat[0] is not None
    np.testing.assert_array_equal(pack_blocks(kind, codes.reshape(5, -1), flat[0], flat[1]), data.reshape(5, -1))
