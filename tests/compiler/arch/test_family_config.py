"""Keys of config.json that single families have: their defaults, and values that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_configs import read, transformers_config, without

from nearfar.compiler.ir.spec import RopeSpec
from nearfar.compiler.measure.model_table import published
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

CONFIGS: dict[str, dict[str, Any]] = {name: json.loads(path.read_text()) for name, path in published()}
GLM4, ERNIE, HUNYUAN = (CONFIGS[name] for name in ("glm-4-9b-0414", "ernie-4.5-0.3b", "hy-mt2-7b"))
COHERE, STABLELM = CONFIGS["c4ai-command-r7b-12-2024"], CONFIGS["stablelm-2-1_6b"]
GRANITE_4 = CONFIGS["granite-4.0-h-350m"]
GEMMA4, E4B = (CONFIGS[f"gemma-4-{size}-it"]["text_config"] for size in ("e2b", "e4b"))
# One configuration of each model_type.
FAMILIES = {values["model_type"]: values for values in (each.get("text_config", each) for each in CONFIGS.values())}
MIXED = (
    "cohere2",
    "exaone4",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "ministral",
    "olmo3",
    "qwen2",
    "qwen3",
    "smollm3",
)


def test_glm4_rotates_half_of_a_head_and_has_biases_unless_its_config_says_otherwise() -> None:
    spec = read(GLM4)
    assert (spec.rope.rotary_dim, spec.qkv_bias, spec.output_bias) == (64, False, False)
    spec = read(without(GLM4, "partial_rotary_factor", "attention_bias"))
    assert (spec.rope.rotary_dim, spec.qkv_bias, spec.output_bias) == (64, True, False)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    assert read(without(GLM4, "partial_rotary_factor"), rope_parameters=rope).rope.rotary_dim == 32
    assert read(without(GLM4, "partial_rotary_factor"), rope_parameters={"rope_type": "default"}).rope.rotary_dim == 64


def test_one_flag_of_ernie_applies_to_all_projections() -> None:
    spec = read(ERNIE, use_bias=True)
    assert spec.qkv_bias
    assert spec.output_bias
    assert spec.mlp_bias
    assert read(without(ERNIE, "head_dim")).head_dim == 128
    assert read(ERNIE, head_dim=None).head_dim == 64
    assert read(without(ERNIE, "num_key_value_heads")).num_kv_heads == 16


def test_alpha_of_hunyuan_stretches_the_rotation_at_every_length() -> None:
    spec = read(HUNYUAN)
    assert spec.rope == RopeSpec(theta=10000.0 * 1000.0 ** (128 / 126))
    assert spec.max_position_embeddings == 262144
    # Without it, the scaling depends on the length.
    dynamic = {"type": "dynamic", "factor": 4.0}
    assert read(HUNYUAN, rope_scaling=dynamic).rope == RopeSpec(10000.0, "dynamic", 4.0, 1.0, 1.0, 262144)
    assert read(HUNYUAN, rope_scaling=None).rope == RopeSpec(theta=10000.0)


def test_only_layers_of_command_r7b_with_a_window_rotate() -> None:
    spec = read(COHERE)
    assert spec.windows == (4096, 4096, 4096, None) * 8
    assert spec.unrotated == tuple(range(3, 32, 4))
    assert (spec.logit_scale, spec.rms_norm_eps, spec.tie_word_embeddings) == (0.25, 1e-5, True)
    plain = without(COHERE, "sliding_window_pattern", "layer_switch")
    kinds = ["full_attention", "sliding_attention"] * 16
    assert read(plain) == spec
    assert read(plain, layer_types=kinds).unrotated == tuple(range(0, 32, 2))
    assert read(without(COHERE, "logit_scale")).logit_scale == 0.0625


def test_stablelm_rotates_a_quarter_of_a_head() -> None:
    assert read(STABLELM).rope.rotary_dim == 16
    assert read(without(STABLELM, "partial_rotary_factor")).rope.rotary_dim == 16
    assert (read(STABLELM).qkv_bias, read(without(STABLELM, "use_qkv_bias")).qkv_bias) == (True, False)
    assert read(without(STABLELM, "layer_norm_eps")).rms_norm_eps == 1e-5


@pytest.mark.parametrize("config", [GEMMA4, E4B], ids=["e2b", "e4b"])
def test_gemma_4_is_read_as_it_was_published_and_as_transformers_saves_it(
    config: dict[str, Any], tmp_path: Path
) -> None:
    transformers_config(config).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "global_head_dim" in config
    assert "per_layer_config" in saved
    assert "global_head_dim" not in saved
    spec = read({"bos_token_id": 2, "eos_token_id": 1, **config})
    assert read(saved) == spec
    # Keys and values of the full layers and of those with a window.
    full = config["layer_types"].index("full_attention")
    kv_heads = config["num_key_value_heads"]
    assert (spec.heads_of(0), spec.heads_of(full)) == ((kv_heads, 256), (kv_heads, 512))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_layer_config": {"4": {"head_dim": 512}}}, "'per_layer_config' has the layers 4; only full layers"),
        ({"per_layer_config": {"0": {"head_dim": 512}}}, "'per_layer_config' has the layers 0; only full layers"),
        (
            {"per_layer_config": {str(layer): {"head_dim": 512 + 2 * (layer == 9)} for layer in range(4, 35, 5)}},
            "'per_layer_config' gives full layers heads of different sizes",
        ),
        (
            {"per_layer_config": {str(layer): {"head_dim": 512, "rope_theta": 3.0} for layer in range(4, 35, 5)}},
            "per_layer_config: 4: unknown key 'rope_theta'",
        ),
        ({"num_kv_shared_layers": 35}, "'num_kv_shared_layers' is 35, so no earlier layer of type"),
        ({"num_kv_shared_layers": 31}, "'num_kv_shared_layers' is 31, so no earlier layer of type 'full_attention'"),
        ({"vocab_size_per_layer_input": 262143}, "'vocab_size_per_layer_input' is less than 'vocab_size'"),
        ({"enable_moe_block": True}, "'num_experts' is missing"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "is 3, but there are 2 experts"),
        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention' is 'all'"),
    ],
)
def test_gemma_4_that_computes_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        read(GEMMA4, **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_refuses_keys_that_are_not_known(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="unknown key 'use_gates' = true"):
        read(FAMILIES[family], use_gates=True)


@pytest.mark.parametrize("family", MIXED)
def test_every_family_refuses_layer_types_that_are_not_known_or_too_few(family: str) -> None:
    config = FAMILIES.get(family) or {**FAMILIES["mistral"], "model_type": family}
    layers = config.get("num_hidden_layers", 26)
    windows = {"use_sliding_window": True, "sliding_window": 64} if family in ("qwen2", "qwen3", "smollm3") else {}
    kinds = ["full_attention"] * (layers - 1)
    with pytest.raises(UnsupportedModel, match="'layer_types' holds 'chunked_attention', which is not supported"):
        read(config, **windows, layer_types=[*kinds, "chunked_attention"])
    with pytest.raises(CheckpointError, match=f"'layer_types' has {layers - 1} entries for {layers} layers"):
        read(config, **windows, layer_types=kinds)


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        (GLM4, {"mlp_bias": True}, UnsupportedModel, "unknown key 'mlp_bias'"),
        (GLM4, {"use_qk_norm": True}, UnsupportedModel, "unknown key 'use_qk_norm'"),
        (GLM4, {"partial_rotary_factor": 0.51}, UnsupportedModel, "rotates 65 of a head's 128 elements"),
        (GLM4, {"hidden_act": "mish"}, UnsupportedModel, "'hidden_act' is 'mish'"),
        (ERNIE, {"moe_num_experts": 64}, UnsupportedModel, "unknown key 'moe_num_experts'"),
        (ERNIE, {"partial_rotary_factor": 0.5}, UnsupportedModel, "'partial_rotary_factor' is 0.5"),
        (HUNYUAN, {"num_experts": 16}, UnsupportedModel, "'num_experts' is 16"),
        (HUNYUAN, {"use_qk_norm": False}, UnsupportedModel, "'use_qk_norm' is false"),
        (HUNYUAN, {"use_cla": True}, UnsupportedModel, "'use_cla' is true"),
        (HUNYUAN, {"attention_head_dim": 64}, UnsupportedModel, "'attention_head_dim' is 64"),
        (HUNYUAN, {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 5.0}}, UnsupportedModel, "key 'alpha'"),
        (HUNYUAN, {"moe_topk": 2}, UnsupportedModel, "unknown key 'moe_topk'"),
        (COHERE, {"use_qk_norm": True}, UnsupportedModel, "'use_qk_norm' is true"),
        (COHERE, {"use_parallel_block": False}, UnsupportedModel, "'use_parallel_block' is false"),
        (COHERE, {"position_embedding_type": "rope"}, UnsupportedModel, "'position_embedding_type' is 'rope'"),
        (COHERE, {"rotary_pct": 0.5}, UnsupportedModel, "'rotary_pct' is 0.5"),
        (COHERE, {"layer_switch": 2}, UnsupportedModel, "'layer_switch' is 2"),
        (COHERE, {"use_embedding_sharing": False}, UnsupportedModel, "'use_embedding_sharing' is false"),
        (COHERE, {"head_dim": 64}, UnsupportedModel, "'head_dim' is 64"),
        (COHERE, {"sliding_window": None}, CheckpointError, "'sliding_window' is null"),
        (COHERE, {"rms_norm_eps": 1e-5}, UnsupportedModel, "unknown key 'rms_norm_eps'"),
        (STABLELM, {"qk_layernorm": True}, UnsupportedModel, "'qk_layernorm' is true"),
        (STABLELM, {"use_parallel_residual": True}, UnsupportedModel, "'use_parallel_residual' is true"),
        (STABLELM, {"rotary_scaling_factor": 2.0}, UnsupportedModel, "unknown key 'rotary_scaling_factor'"),
        (GRANITE_4, {"position_embedding_type": "alibi"}, UnsupportedModel, "'position_embedding_type' is 'alibi'"),
        (GRANITE_4, {"shared_intermediate_size": 0}, CheckpointError, "'shared_intermediate_size' is 0"),
        (ERNIE, {"use_bias": "no"}, CheckpointError, "'use_bias' is 'no'"),
    ],
)
def test_options_that_a_family_does_not_compute_are_refused(
    config: dict[str, Any], changes: dict[str, Any], error: type[NearfarError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(config, **changes)
