"""Keys and values of config.json that are refused, and unknown keys that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from published_configs import LLAMA_3_2_1B, MISTRAL_7B, PUBLISHED, QWEN2_5_0_5B, QWEN3_0_6B, read

from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA_3_2_1B, {"hidden_act": "mish"}, "'hidden_act' is 'mish', which is not supported; supported: 'silu'"),
        (LLAMA_3_2_1B, {"rope_interleaved": True}, "'rope_interleaved' is true"),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        (LLAMA_3_2_1B, {"head_dim": 63}, "'head_dim' is 63; rotary position embedding needs an even size"),
        (LLAMA_3_2_1B, {"logit_scale": 0.5}, "unknown key 'logit_scale' = 0.5"),
        (LLAMA_3_2_1B, {"sliding_window": 4096}, "unknown key 'sliding_window'"),
        (MISTRAL_7B, {"is_causal": False}, "'is_causal' is false, which is not supported beside sliding windows"),
        (LLAMA_3_2_1B, {"attn_logit_softcapping": 50.0}, "unknown key 'attn_logit_softcapping'"),
        (LLAMA_3_2_1B, {"embedding_multiplier": 12.0}, "unknown key 'embedding_multiplier'"),
        (LLAMA_3_2_1B, {"clip_qkv": 8.0}, "unknown key 'clip_qkv'"),
        (LLAMA_3_2_1B, {"use_qk_norm": True}, "unknown key 'use_qk_norm'"),
        (LLAMA_3_2_1B, {"alibi": True}, "unknown key 'alibi'"),
        (LLAMA_3_2_1B, {"num_nextn_predict_layers": 1}, "unknown key 'num_nextn_predict_layers'"),
        (QWEN2_5_0_5B, {"use_dynamic_ntk": True}, "unknown key 'use_dynamic_ntk'"),
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
        ({"rope_theta": 1e39}, "expected a finite number above zero"),
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


# What trainers and libraries write; the values are those of published files, or of the libraries' defaults.
TRAINERS_KEYS: dict[str, Any] = {
    "unsloth_version": "2026.3.3", "unsloth_fixed": True, "_attn_implementation_autoset": True,
    "_attn_implementation": "sdpa", "attn_implementation": "flash_attention_2", "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0}, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "hidden_dropout": 0.1,
    "attention_probs_dropout_prob": 0.1, "classifier_dropout": 0.1,
    "neftune_noise_alpha": 5.0, "model_name": "unsloth/Qwen3-0.6B", "peft_version": "0.18.0", "max_seq_length": 2048,
    "router_aux_loss_coef": 0.01, "initializer_factor": 1.0, "gradient_checkpointing": True, "min_p": 0.05,
    "trust_remote_code": True, "use_flash_attention_2": True, "loss_type": "ForCausalLMLoss",
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
    "processor_class": "Qwen2_5_VLProcessor", "_name_or_path": "org/model", "transformers_version": "4.51.3",
    "dtype": "bfloat16", "torch_dtype": "bfloat16", "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "pretraining_tp": 2, "use_cache": False, "tokenizer_class": "LlamaTokenizer", "problem_type": "regression",
    "summary_type": "cls_index", "summary_use_proj": True, "summary_first_dropout": 0.1, "bad_words_ids": [[7]],
    "cls_token_id": 0, "mask_token_id": 4, "unk_token_id": 3, "output_past": True, "model_max_length": 4096,
    "tokenizer_padding_side": "right", "use_return_dict": True, "custom_pipelines": {}, "export_model_type": "decoder",
    "_from_model_config": True, "num_assistant_tokens": 20, "stop_strings": ["</s>"], "seed": 42, "recompute": True,
    "activation_dropout": 0.1, "use_liger_kernel": True, "license": "mit", "matryoshka_dimensions": [256, 64],
}  # fmt: skip


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_keys_of_trainers_and_libraries_change_nothing(config: dict[str, Any]) -> None:
    assert read(config, **{key: value for key, value in TRAINERS_KEYS.items() if key not in config}) == read(config)


@pytest.mark.parametrize("base", ["PretrainedConfig", "GenerationConfig"])
def test_no_key_that_transformers_writes_into_any_configuration_is_unknown(base: str) -> None:
    import transformers

    from nearfar.compiler.formats.harmless_keys import HARMLESS_KEYS

    # Read, or checked.
    known = {"architectures", "model_type", "is_encoder_decoder", "bos_token_id", "eos_token_id"}
    assert set(getattr(transformers, base)().to_dict()) <= HARMLESS_KEYS | known


@pytest.mark.parametrize("key", sorted(set(LLAMA_3_2_1B) - {"architectures", "model_type"}))
def test_a_key_with_an_invalid_value_is_refused_unless_it_is_harmless(key: str) -> None:
    from nearfar.compiler.formats.harmless_keys import HARMLESS_KEYS

    if key in HARMLESS_KEYS:
        assert read(LLAMA_3_2_1B, **{key: "nonsense"}) == read(LLAMA_3_2_1B)
    else:
        with pytest.raises(CheckpointError, match=key):
            read(LLAMA_3_2_1B, **{key: "nonsense"})
