"""config.json -> ModelSpec: configurations as they are published, and what transformers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from decoder_families import WRITTEN
from published_configs import (
    LLAMA_3_2_1B,
    PUBLISHED,
    QWEN2_5_0_5B,
    QWEN3_0_6B,
    SMOLLM2_135M,
    read,
    transformers_config,
    without,
)
from pydantic import TypeAdapter

from nearfar.compiler import arch
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.runtime.errors import CheckpointError

EPS_KEYS = {
    "cohere2": "layer_norm_eps", "nemotron": "norm_eps", "phi": "layer_norm_eps", "stablelm": "layer_norm_eps",
    "starcoder2": "norm_epsilon", "lfm2": "norm_eps", "lfm2_moe": "norm_eps", "lfm3": "norm_eps",
    "mamba2": "layer_norm_epsilon", "gpt_neox": "layer_norm_eps",
}  # fmt: skip


def test_llama_3_2_has_llama3_scaling_and_three_ends() -> None:
    assert read(LLAMA_3_2_1B) == ModelSpec(
        model_type="llama",
        vocab_size=128256,
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope=RopeSpec(500000.0, "llama3", 32.0, 1.0, 4.0, 8192),
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    )


def test_smollm2_derives_its_head_size() -> None:
    spec = read(SMOLLM2_135M)
    assert (spec.head_dim, spec.num_heads, spec.num_kv_heads, spec.rope) == (64, 9, 3, RopeSpec(100000.0))


def test_qwen2_has_biases_only_on_queries_keys_and_values() -> None:
    spec = read(QWEN2_5_0_5B)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm) == (True, False, False, False)
    assert (spec.head_dim, spec.rope, spec.eos_token_ids) == (64, RopeSpec(1000000.0), (151643,))


def test_qwen3_has_norms_of_heads_and_its_own_head_size() -> None:
    spec = read(QWEN3_0_6B)
    assert (spec.qk_norm, spec.qkv_bias, spec.head_dim) == (True, False, 128)
    assert spec.num_heads * spec.head_dim != spec.hidden_size


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_spec_survives_json(name: str) -> None:
    spec = read(PUBLISHED[name])
    assert TypeAdapter(ModelSpec).validate_json(json.dumps(spec.to_json())) == spec


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_that_transformers_5_saved_reads_the_same(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    from_transformers = transformers_config(published)
    from_transformers.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    assert "rope_theta" not in saved
    assert read(saved) == read(published)
    assert read(json.loads(json.dumps(from_transformers.to_dict()))) == read(published)


# Families whose default sizes contradict those of the test, and the sizes of mixtures, which have no default.
OWN_SIZES: dict[str, dict[str, object]] = {
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 64},
    "granitemoehybrid": {"mamba_n_heads": 8, "num_local_experts": 0, "shared_intermediate_size": 48},
    "gpt_oss": {"num_local_experts": 5, "num_experts_per_tok": 3},
    "granitemoe": {"num_local_experts": 5, "num_experts_per_tok": 3},
    "lfm2_moe": {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    "openai_privacy_filter": {"num_local_experts": 5, "num_experts_per_tok": 3},
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 3},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    "gpt_neox": {"num_key_value_heads": 4},
    "olmo": {"rms_norm_eps": 1e-5},
    "mamba2": {"num_heads": 8, "head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": None},
}


# GPT-2 has other names of sizes. gpt-oss has a default rotation.
@pytest.mark.parametrize(
    ("model_type", "values"),
    [
        *((name, {}) for name in arch.SUPPORTED if name not in (*WRITTEN, "gpt2")),
        ("gpt_oss", {"rope_parameters": None}),
        ("gpt_oss", {"rope_scaling": None, "rope_theta": 9.0}),
    ],
)
def test_the_defaults_are_those_of_transformers(model_type: str, values: dict[str, Any], tmp_path: Path) -> None:
    required = {
        EPS_KEYS.get(model_type, "rms_norm_eps"): 1e-6,
        "model_type": model_type,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **OWN_SIZES.get(model_type, {}),
        **values,
    }
    transformers_config(required).save_pretrained(tmp_path)
    assert read(required) == read(json.loads((tmp_path / "config.json").read_text()))


def test_llama_without_kv_heads_has_one_per_query_head() -> None:
    assert read(without(LLAMA_3_2_1B, "num_key_value_heads")).num_kv_heads == 32
    assert read(LLAMA_3_2_1B, num_key_value_heads=None).num_kv_heads == 32
    with pytest.raises(CheckpointError, match="'num_key_value_heads' is missing"):
        read(without(QWEN2_5_0_5B, "num_key_value_heads"))


def test_a_null_head_size_is_derived_and_an_absent_one_of_qwen3_is_128() -> None:
    assert read(QWEN3_0_6B, head_dim=None).head_dim == 64
    assert read(without(QWEN3_0_6B, "head_dim")).head_dim == 128
    assert read(LLAMA_3_2_1B, head_dim=None).head_dim == 64


def test_llama_biases_follow_their_flags() -> None:
    spec = read(LLAMA_3_2_1B, attention_bias=True, mlp_bias=True)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, True)
    spec = read(QWEN3_0_6B, attention_bias=True)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == (True, True, False)
