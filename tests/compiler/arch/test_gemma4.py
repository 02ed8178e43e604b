"""Gemma 4's configurations: both spellings of a layer's sizes, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from decoder_families import make_family

from nearfar.compiler import quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.arch.gemma4_text import read_config
from nearfar.compiler.errors import CheckpointError, NearfarError, UnsupportedModel
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any

KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
E2B: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "num_hidden_layers": 35,
    "intermediate_size": 6144,
    "use_double_wide_mlp": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "final_logit_softcapping": 30.0,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}
SMALL: dict[str, Any] = {**E2B, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": KINDS}


def read(**keys: Any) -> ModelSpec:
    return read_config(ConfigReader({**SMALL, **keys}))


def test_both_spellings_of_head_sizes_give_the_same_spec() -> None:
    named = read(global_head_dim=64, num_global_key_value_heads=None)
    listed = read(per_layer_config={"1": {"head_dim": 64}, "3": {"head_dim": 64, "num_key_value_heads": 1}})
    assert named == listed
    assert named.head_dims == (256, 64, 256, 64)
    assert read().head_dims == (256, 512, 256, 512)


def test_shared_layers_are_wide_and_read_the_last_layer_of_their_kind() -> None:
    spec = read_config(ConfigReader(E2B))
    assert (spec.intermediate_size_of(14), spec.intermediate_size_of(15)) == (6144, 12288)
    assert (spec.kv_layer(14), spec.kv_layer(15), spec.kv_layer(19)) == (14, 13, 14)
    assert spec.rope.scaling == "proportional"
    assert (spec.rope.rotary_dim, spec.attention_scale, spec.per_layer_scale) == (128, 1.0, 16.0)


def test_the_passes_leave_twelve_nodes_of_a_layer_with_keys_and_values() -> None:
    spec = read_config(ConfigReader(E2B))
    graph = by_model_type("gemma4_text").forward(spec, 16, 4096)
    fused = run_passes(graph, quant.by_name("q4f16"), 1 << 30)
    names = [next(iter(node.outputs.values())) for node in fused.nodes]
    counts = [sum(f"layers.{layer}." in name for name in names) for layer in (0, 4, 15, 19)]
    assert counts == [12, 12, 14, 14]
    assert sum(value.shape[0] == "P" for value in fused.states.values()) == 15
    embeddings = by_model_type("gemma4_text").forward(spec, 16, 4096, embeds=True)
    assert embeddings.shape_of(embeddings.outputs["embeddings"]) == ("R", 1536)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"attention_k_eq_v": True}, UnsupportedModel, "'attention_k_eq_v' is true"),
        ({"enable_moe_block": True}, UnsupportedModel, "'enable_moe_block' is true"),
        ({"use_bidirectional_attention": "all"}, UnsupportedModel, "'use_bidirectional_attention' is 'all'"),
        ({"num_kv_shared_layers": 4}, CheckpointError, "'num_kv_shared_layers' is 4"),
        ({"num_kv_shared_layers": 3}, CheckpointError, "'num_kv_shared_layers' is 3"),
        ({"vocab_size_per_layer_input": 9}, UnsupportedModel, "'vocab_size_per_layer_input' is 9"),
        ({"per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 32}}}, UnsupportedModel, "head sizes of"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 2}}}, UnsupportedModel, "'num_key_value_heads' is 2"),
        ({"per_layer_config": {"1": {"theta": 2}}}, UnsupportedModel, "per_layer_config: 1: unknown key 'theta'"),
        ({"per_layer_config": {"9": {"head_dim": 64}}}, UnsupportedModel, "per_layer_config: unknown key '9'"),
        ({"rope_parameters": None}, CheckpointError, "'rope_parameters' is null"),
        ({"altup": 3}, UnsupportedModel, "unknown key 'altup'"),
    ],
)
def test_other_mathematics_are_refused_by_key(keys: dict[str, Any], error: type[NearfarError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(**keys)


def test_adapters_and_frameworks_without_its_blocks_are_refused(tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path / "checkpoint")
    for options, message in (
        ({"target": "cpu", "lora_rank": 4}, "layers.3.*LoRA adapters are not supported"),
        ({"target": "onnx"}, "no form in --target onnx"),
        ({"target": "mlx"}, "take another --target"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            compile_any(
                str(tmp_path / "checkpoint"),
                tmp_path / "bundle",
                CompileOptions(quantization="f32", context=64, **options),  # type: ignore[arg-type]
            )
