"""The sliding windows of config.json: which layers have one, and keys that change nothing."""

from __future__ import annotations

import pytest
from published_configs import LLAMA_3_2_1B, MISTRAL_7B, QWEN2_5_0_5B, read, without

from nearfar.compiler.runtime.errors import CheckpointError


def test_mistral_has_a_window_on_every_layer_unless_it_is_null() -> None:
    assert read(MISTRAL_7B).windows == (4096,) * 32
    assert read(without(MISTRAL_7B, "sliding_window")).windows == (4096,) * 32
    assert read(MISTRAL_7B, sliding_window=None).windows == ()


def test_a_sliding_window_beyond_the_last_layer_or_disabled_is_full_attention() -> None:
    plain = read(QWEN2_5_0_5B)
    assert read(QWEN2_5_0_5B, use_sliding_window=True, max_window_layers=24) == plain
    assert read(QWEN2_5_0_5B, use_sliding_window=True, max_window_layers=0, sliding_window=None) == plain
    assert read(QWEN2_5_0_5B, layer_types=["full_attention"] * 24) == plain
    assert read(QWEN2_5_0_5B, sliding_window=0) == plain
    with pytest.raises(CheckpointError, match="'layer_types' has 3 entries for 24 layers"):
        read(QWEN2_5_0_5B, layer_types=["full_attention"] * 3)


def test_some_layers_of_a_qwen_may_have_a_sliding_window() -> None:
    windows = (None,) * 21 + (128,) * 3
    assert read(QWEN2_5_0_5B, use_sliding_window=True, max_window_layers=21, sliding_window=128).windows == windows
    layer_types = ["full_attention"] * 21 + ["sliding_attention"] * 3
    assert read(QWEN2_5_0_5B, use_sliding_window=True, layer_types=layer_types, sliding_window=128).windows == windows
    assert (
        read(without(QWEN2_5_0_5B, "sliding_window"), use_sliding_window=True, layer_types=layer_types).windows[-1]
        == 4096
    )
    with pytest.raises(CheckpointError, match="but 'use_sliding_window' and 'sliding_window' do not set its size"):
        read(QWEN2_5_0_5B, layer_types=layer_types)


def test_a_llamas_window_changes_nothing_if_no_layer_has_it_or_it_covers_the_context() -> None:
    plain = read(LLAMA_3_2_1B)
    assert read(LLAMA_3_2_1B, sliding_window=131072) == plain
    assert read(LLAMA_3_2_1B, sliding_window=4096, layer_types=["full_attention"] * 16, max_window_layers=3) == plain
