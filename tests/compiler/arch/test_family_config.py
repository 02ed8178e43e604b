"""Keys of config.json that single families have: their defaults, and values that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from published_configs import read, without

from nearfar.compiler.errors import CheckpointError, NearfarError, UnsupportedModel
from nearfar.compiler.ir.spec import RopeSpec
from nearfar.compiler.measure.model_table import published

CONFIGS: dict[str, dict[str, Any]] = {name: json.loads(path.read_text()) for name, path in published()}
GLM4, ERNIE, HUNYUAN = (CONFIGS[name] for name in ("glm-4-9b-0414", "ernie-4.5-0.3b", "hy-mt2-7b"))
COHERE, STABLELM = CONFIGS["c4ai-command-r7b-12-2024"], CONFIGS["stablelm-2-1_6b"]


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


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        (GLM4, {"mlp_bias": True}, UnsupportedModel, "unknown key 'mlp_bias'"),
        (GLM4, {"use_qk_norm": True}, UnsupportedModel, "unknown key 'use_qk_norm'"),
        (GLM4, {"partial_rotary_factor": 0.51}, UnsupportedModel, "rotates 65 of a head's 128 elements"),
        (GLM4, {"hidden_act": "relu"}, UnsupportedModel, "'hidden_act' is 'relu'"),
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
        (ERNIE, {"use_bias": "no"}, CheckpointError, "'use_bias' is 'no'"),
    ],
)
def test_options_that_a_family_does_not_compute_are_refused(
    config: dict[str, Any], changes: dict[str, Any], error: type[NearfarError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(config, **changes)
