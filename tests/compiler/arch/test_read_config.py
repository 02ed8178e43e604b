"""config.json -> ModelSpec: configurations as they are published, what transformers writes, and everything that must be refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from nearfar.compiler import arch
from nearfar.compiler.arch import families
from nearfar.compiler.errors import CheckpointError, UnsupportedModel
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec

LLAMA_3_2_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}

SMOLLM2_135M: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}

QWEN2_5_0_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}

PHI_3_MINI_4K: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2",
    "use_cache": True,
    "vocab_size": 32064,
}

PUBLISHED = {
    "llama-3.2-1b": LLAMA_3_2_1B, "smollm2-135m": SMOLLM2_135M, "mistral-7b": MISTRAL_7B, "phi-3-mini-4k": PHI_3_MINI_4K,
    "qwen2.5-0.5b": QWEN2_5_0_5B, "qwen3-0.6b": QWEN3_0_6B,
}  # fmt: skip


def read(config: dict[str, Any], **changes: Any) -> ModelSpec:
    merged = {**config, **changes}
    return arch.by_model_type(merged["model_type"]).read_config(ConfigReader(merged))


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


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


def test_qwen2_has_biases_on_queries_keys_and_values_alone() -> None:
    spec = read(QWEN2_5_0_5B)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm) == (True, False, False, False)
    assert (spec.head_dim, spec.rope, spec.eos_token_ids) == (64, RopeSpec(1000000.0), (151643,))


def test_qwen3_has_norms_of_heads_and_a_head_size_of_its_own() -> None:
    spec = read(QWEN3_0_6B)
    assert (spec.qk_norm, spec.qkv_bias, spec.head_dim) == (True, False, 128)
    assert spec.num_heads * spec.head_dim != spec.hidden_size


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_spec_survives_json(name: str) -> None:
    spec = read(PUBLISHED[name])
    assert TypeAdapter(ModelSpec).validate_json(json.dumps(spec.to_json())) == spec


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_transformers_5_makes_of_a_published_config_reads_the_same(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    from_transformers = transformers_config(published)
    from_transformers.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    assert "rope_theta" not in saved
    assert read(saved) == read(published)
    assert read(json.loads(json.dumps(from_transformers.to_dict()))) == read(published)


@pytest.mark.parametrize("model_type", arch.SUPPORTED)
def test_the_defaults_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    required = {
        "model_type": model_type,
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    transformers_config(required).save_pretrained(tmp_path)
    assert read(required) == read(json.loads((tmp_path / "config.json").read_text()))


def test_mistral_has_a_window_on_every_layer_unless_it_is_null() -> None:
    assert read(MISTRAL_7B).windows == (4096,) * 32
    assert read(without(MISTRAL_7B, "sliding_window")).windows == (4096,) * 32
    assert read(MISTRAL_7B, sliding_window=None).windows == ()


def test_phi3_rotates_a_part_of_each_head_and_refuses_long_rope() -> None:
    assert read(PHI_3_MINI_4K).rope == RopeSpec(theta=10000.0)
    assert read(PHI_3_MINI_4K, partial_rotary_factor=0.75).rope == RopeSpec(theta=10000.0, rotary_dim=72)
    assert (
        read(PHI_3_MINI_4K, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.75}).rope.rotary_dim
        == 72
    )
    with pytest.raises(UnsupportedModel, match="rotates 31 of a head's 96 elements; their number must be even"):
        read(PHI_3_MINI_4K, partial_rotary_factor=0.33)
    with pytest.raises(CheckpointError, match=r"'partial_rotary_factor' is 0\.5 here and 0\.75 at the top"):
        read(PHI_3_MINI_4K, partial_rotary_factor=0.75, rope_parameters={"partial_rotary_factor": 0.5})
    with pytest.raises(UnsupportedModel, match="RoPE type 'longrope' is not supported"):
        read(PHI_3_MINI_4K, rope_scaling={"type": "longrope", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48})


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


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling_is_read_in_both_spellings(key: str) -> None:
    expected = RopeSpec(500000.0, "linear", 2.0)
    assert read(LLAMA_3_2_1B, rope_scaling={key: "linear", "factor": 2}).rope == expected
    new_style = {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}
    assert read(without(LLAMA_3_2_1B, "rope_theta", "rope_scaling"), rope_parameters=new_style).rope == expected


def test_both_spellings_of_rope_may_stand_side_by_side_when_they_agree() -> None:
    same = {**LLAMA_3_2_1B["rope_scaling"], "rope_theta": 500000.0}
    assert read(LLAMA_3_2_1B, rope_parameters=same) == read(LLAMA_3_2_1B)
    with pytest.raises(CheckpointError, match="'rope_parameters' and 'rope_scaling' disagree"):
        read(LLAMA_3_2_1B, rope_parameters={"rope_type": "default"})
    with pytest.raises(CheckpointError, match=r"'rope_theta' is 10000.0 here and 500000.0 at the top"):
        read(LLAMA_3_2_1B, rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def test_llama3_scaling_without_an_original_length_takes_the_longest_position() -> None:
    scaling = without(LLAMA_3_2_1B["rope_scaling"], "original_max_position_embeddings")
    assert read(LLAMA_3_2_1B, rope_scaling=scaling).rope.original_max_position_embeddings == 131072


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", "proportional"])
def test_other_rope_scalings_are_refused_by_name(kind: str) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=rf"config\.json: rope_scaling: RoPE type '{kind}' is not supported; supported: default, linear, llama3",
    ):
        read(LLAMA_3_2_1B, rope_scaling={"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 8192})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "default", "type": "mrope"}, "RoPE type 'mrope' beside 'default' is not supported"),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            "'partial_rotary_factor' is 0.5, which is not supported",
        ),
        ({"rope_type": "linear", "factor": 2.0, "attention_factor": 1.1}, "unknown key 'attention_factor'"),
        ({"full_attention": {"rope_type": "default"}}, "unknown key 'full_attention'"),
    ],
)
def test_rope_that_we_do_not_compile_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(LLAMA_3_2_1B, rope_scaling=scaling)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "linear"}, "'factor' is missing"),
        ({"rope_type": "linear", "factor": "2"}, "'factor' is '2'"),
        ({"rope_type": 3}, "'rope_type' is 3"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "not above 'low_freq_factor'",
        ),
        ([], "expected an object"),
    ],
)
def test_broken_rope_values_are_refused(scaling: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(LLAMA_3_2_1B, rope_scaling=scaling)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (LLAMA_3_2_1B, {"hidden_act": "gelu"}, "'hidden_act' is 'gelu', which is not supported; supported: 'silu'"),
        (LLAMA_3_2_1B, {"pretraining_tp": 2}, "'pretraining_tp' is 2"),
        (LLAMA_3_2_1B, {"rope_interleaved": True}, "'rope_interleaved' is true"),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
        (LLAMA_3_2_1B, {"head_dim": 63}, "'head_dim' is 63; rotary position embedding needs an even one"),
        (LLAMA_3_2_1B, {"logit_scale": 0.5}, "unknown key 'logit_scale' = 0.5"),
        (LLAMA_3_2_1B, {"sliding_window": 4096}, "unknown key 'sliding_window'"),
        (LLAMA_3_2_1B, {"auto_map": {"AutoModel": "x"}}, "unknown key 'auto_map'"),
        (LLAMA_3_2_1B, {"architectures": ["LlamaForSequenceClassification"]}, "not a language model"),
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
def test_mathematics_that_we_do_not_compile_is_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
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
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; at most 10000"),
        ({"num_attention_heads": -32}, "'num_attention_heads' is -32"),
        ({"vocab_size": True}, r"'vocab_size' is true \(boolean\)"),
        ({"rms_norm_eps": 0}, "'rms_norm_eps' is 0"),
        ({"eos_token_id": 128256}, "'eos_token_id' is 128256, outside of the vocabulary of 128256"),
        ({"bos_token_id": -1}, "'bos_token_id' is -1"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'"),
        ({"architectures": "LlamaForCausalLM"}, "expected a list of strings"),
    ],
)
def test_values_that_cannot_be_right_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(LLAMA_3_2_1B, **changes)


def test_a_sliding_window_beyond_the_last_layer_or_switched_off_is_full_attention() -> None:
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
    with pytest.raises(CheckpointError, match="but 'use_sliding_window' and 'sliding_window' give it no size"):
        read(QWEN2_5_0_5B, layer_types=layer_types)


def test_a_window_that_no_layer_of_a_llama_has_or_that_holds_the_context_changes_nothing() -> None:
    plain = read(LLAMA_3_2_1B)
    assert read(LLAMA_3_2_1B, sliding_window=131072) == plain
    assert read(LLAMA_3_2_1B, sliding_window=4096, layer_types=["full_attention"] * 16, max_window_layers=3) == plain


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
def test_no_key_of_a_config_can_hold_nonsense_unnoticed_unless_it_is_harmless(key: str) -> None:
    from nearfar.compiler.arch.decoder_config import HARMLESS_KEYS

    if key in HARMLESS_KEYS:
        assert read(LLAMA_3_2_1B, **{key: "nonsense"}) == read(LLAMA_3_2_1B)
    else:
        with pytest.raises(CheckpointError, match=key):
            read(LLAMA_3_2_1B, **{key: "nonsense"})


@pytest.mark.parametrize("name", ["mamba2", "", "decoder", "..errors", "llama "])
def test_an_unknown_model_type_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        arch.by_model_type(name)
    assert caught.value.message.startswith(
        f"config.json: model_type {name!r} is not supported; supported: {', '.join(arch.SUPPORTED)}. "
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "smollm3",
            "It is a known family that nearfar .* does not compile yet; the nearest that it compiles is 'llama'. Ask for it in",
        ),
        ("qwen3_next", "the nearest that it compiles is 'qwen3'"),
        (
            "mamba2",
            "It is a model with recurrent states; nearfar .* does not compile such families yet. Ask for it in the project's",
        ),
        ("bert", "It is an encoder, which generates no text; nearfar"),
        (
            "qwenn3",
            "No family of that name is known; did you mean 'qwen3'\\? Either the file is wrong, or the family is newer than nearfar",
        ),
        ("Llama", "No family of that name is known; did you mean 'llama'"),
        ("xyzzy", "No family of that name is known. Either the file is wrong"),
    ],
)
def test_a_family_that_is_not_compiled_is_told_apart_from_an_unknown_name(name: str, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        arch.by_model_type(name)


def test_no_supported_family_is_listed_as_unsupported() -> None:
    listed = [each for names in (*families.DECODERS.values(), *families.OTHERS.values()) for each in names]
    assert not set(listed) & set(arch.SUPPORTED)
    assert len(listed) == len(set(listed))
    assert families.DECODERS.keys() <= set(arch.SUPPORTED)


def transformers_config(values: dict[str, Any]) -> Any:
    import transformers

    config_class = transformers.CONFIG_MAPPING[values["model_type"]]
    return config_class.from_dict(json.loads(json.dumps(values)))
