"""The masks of `min_tokens`, bit by bit."""

from __future__ import annotations

import numpy as np

from nearfar.server_fallback.engine.min_tokens import both_masks, mask_without


def test_a_mask_without_tokens_lacks_their_bits_alone() -> None:
    mask = mask_without([0, 33, 39], 40)
    # The least significant bit comes first, and ids beyond the vocabulary do not matter.
    assert mask.view(np.uint32).tolist() == [0xFFFF_FFFE, 0xFFFF_FF7D]


def test_the_ends_are_left_out_unless_nothing_else_is_allowed() -> None:
    no_end = mask_without([1, 3], 32)
    end_or_text = np.array([0b1010_0010], np.int32)
    assert both_masks(end_or_text, no_end).tolist() == [0b1010_0000]
    only_end = np.array([0b1010], np.int32)
    assert both_masks(only_end, no_end).tolist() == [0b1010]
