"""Keys and values of config.json that are refused, and unknown keys that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from published_configs import LLAMA_3_2_1B, QWEN2_5_0_5B, QWEN3_0_6B, read

from nearfar.compiler.errors import CheckpointError, UnsupportedModel


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA_3_2_1B, {"hidden_act": "relu"}, "'hidden_act' is 'relu', which is not supported; supported: 'silu'"),
        (LLAMA_3_2_1B, {"pretraining_tp": 2}, "'pretraining_tp' is 2"),
        (LLAMA_3_2_1B, {"rope_interleaved": True}, "'rope_interleaved' is true"),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        (LLAMA_3_2_1B, {"head_dim": 63}, "'head_dim' is 63; rotary position embedding needs an even size"),
        (LLAMA_3_2_1B, {"logit_scale": 0.5}, "unknown key 'logit_scale' = 0.5"),
        (LLAMA_3_2_1B, {"sliding_window": 4096}, "unknown key 'sliding_window'"),
        (LLAMA_3_2_1B, {"auto_map": {"AutoModel": "x"}}, "unknown key 'auto_map'"),
        (LLAMA_3_2_1B, {"architectures": ["LlamaForQuestionAnswering"]}, "not a language model"),
        (LLAMA_3_2_1B, {"architectures": ["LlamaForRewardModel"]}, "not a language model"),
        (LLAMA_3_2_1B, {"quantization_config": {"quant_method": "awq", "bits": 4}}, "already quantized .*method 'awq'"),
        (LLAMA_3_2_1B, {"layer_types": ["sliding_attention"] * 16}, "'layer_types' holds 'sliding_attention'"),
        (
            QWEN2_5_0_5B,
            {"layer_types": ["full_attention"] * 23 + ["chunked_attention"]},
            "'layer_types' holds 'chunked_attention'",
        ),
        (QWEN2_5_0_5B, {"use_mrope": True}, "'use_mrope' is true"),
        (QWEN2_5_0_5B, {"mlp_bias": True}, "unknown key 'mlp_bias'"),
        (QWEN3_0_6B, {"num_experts": 8}, "unknown key 'num_experts'"),
    ],
)
def test_unsupported_mathematics_is_refused(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(config, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_key_value_heads": 5},
            "'num_attention_heads' is 32, not a multiple of 'num_key_value_heads', which is 5",
        ),
        ({"hidden_size": 2047, "head_dim": None}, "'hidden_size' is 2047, not a multiple of 'num_attention_heads'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; the maximum is 10000"),
        ({"num_attention_heads": -32}, "'num_attention_heads' is -32"),
        ({"vocab_size": True}, r"'vocab_size' is true \(boolean\)"),
        ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0"),
        ({"eos_token_id": 128256}, "'eos_token_id' is 128256, outside of the vocabulary of 128256"),
        ({"bos_token_id": -1}, "'bos_token_id' is -1"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'"),
        ({"architectures": "LlamaForCausalLM"}, "expected a list of strings"),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(LLAMA_3_2_1B, **changes)


def test_unknown_keys_that_are_null_or_false_change_nothing() -> None:
    plain = read(LLAMA_3_2_1B)
    assert read(LLAMA_3_2_1B, sliding_window=None, use_new_attention=False, logit_scale=None) == plain
    rope = {**LLAMA_3_2_1B["rope_scaling"], "mscale": None, "truncate": False}
    assert read(LLAMA_3_2_1B, rope_scaling=rope) == plain
    values: tuple[Any, ...] = (0, "", [], {}, True)
    for value in values:
        with pytest.raises(UnsupportedModel, match="unknown key 'use_new_attention'"):
            read(LLAMA_3_2_1B, use_new_attention=value)


@pytest.mark.parametrize("key", sorted(set(LLAMA_3_2_1B) - {"architectures", "model_type"}))
def test_a_key_with_an_invalid_value_is_refused_unless_it_is_harmless(key: str) -> None:
    from nearfar.compiler.arch.decoder_config import HARMLESS_KEYS

    if key in HARMLESS_KEYS:
        assert read(LLAMA_3_2_1B, **{key: "nonsense"}) == read(LLAMA_3_2_1B)
    else:
        with pytest.raises(CheckpointError, match=key):
            read(LLAMA_3_2_1B, **{key: "nonsense"})
