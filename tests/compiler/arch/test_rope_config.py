"""The rotary position embedding of config.json: both spellings, its scalings, and values that are refused."""

from __future__ import annotations

import json
from functools import partial
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from published_configs import LLAMA_3_2_1B, PHI_3_MINI_4K, QWEN2_5_0_5B, read, without

from nearfar.compiler.ir.rope import inverse_frequencies
from nearfar.compiler.ir.spec import RopeSpec
from nearfar.compiler.pipeline.context import model_context, paged_context, rotation_notes
from nearfar.compiler.runtime.errors import CheckpointError, RequestError, UnsupportedModel

PUBLISHED = files("nearfar.compiler.arch") / "published"
PYTHIA_160M, APERTUS_8B = (
    json.loads((PUBLISHED / f"{name}.json").read_text()) for name in ("pythia-160m", "apertus-8b-instruct-2509")
)


def test_phi3_rotates_a_part_of_each_head() -> None:
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


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling_is_read_in_both_spellings(key: str) -> None:
    expected = RopeSpec(500000.0, "linear", 2.0)
    assert read(LLAMA_3_2_1B, rope_scaling={key: "linear", "factor": 2}).rope == expected
    new_style = {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": 500000.0}
    assert read(without(LLAMA_3_2_1B, "rope_theta", "rope_scaling"), rope_parameters=new_style).rope == expected


def test_both_spellings_of_rope_may_occur_together_if_they_agree() -> None:
    same = {**LLAMA_3_2_1B["rope_scaling"], "rope_theta": 500000.0}
    assert read(LLAMA_3_2_1B, rope_parameters=same) == read(LLAMA_3_2_1B)
    with pytest.raises(CheckpointError, match="'rope_parameters' and 'rope_scaling' disagree"):
        read(LLAMA_3_2_1B, rope_parameters={"rope_type": "default"})
    with pytest.raises(CheckpointError, match=r"'rope_theta' is 10000.0 here and 500000.0 at the top"):
        read(LLAMA_3_2_1B, rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def test_gpt_neox_reads_its_own_names_of_the_rotation_as_transformers_does() -> None:
    plain = without(PYTHIA_160M, "rotary_pct", "rotary_emb_base")
    both = {"partial_rotary_factor": 0.5, "rope_theta": 500}
    expected = RopeSpec(theta=500.0, rotary_dim=32)
    assert read(plain, rotary_pct=0.5, rotary_emb_base=500, **both).rope == expected
    assert read(plain, rope_parameters=both, **both).rope == expected
    assert read(plain).rope == read(PYTHIA_160M).rope == RopeSpec(theta=10000.0, rotary_dim=16)
    with pytest.raises(CheckpointError, match="'rope_theta' is 500, but 'rotary_emb_base', which means the"):
        read(PYTHIA_160M, rope_theta=500)
    for key, value in both.items():
        with pytest.raises(UnsupportedModel, match=f"'{key}' is {value}, which is not supported; supported: "):
            read(plain, **{key: value})


def test_the_rotation_of_apertus_is_the_published_one_unless_its_file_has_another() -> None:
    absent = without(APERTUS_8B, "rope_scaling", "rope_theta")
    assert read(APERTUS_8B).rope == read(absent).rope == read(absent, rope_parameters=None).rope
    assert read(APERTUS_8B, rope_scaling={"type": "default"}).rope == RopeSpec(theta=12e6)
    absent_values: tuple[Any, ...] = (None, {})
    for neither in absent_values:
        with pytest.raises(UnsupportedModel, match="'rope_scaling' is null or empty, which transformers 4 reads as"):
            read(APERTUS_8B, rope_scaling=neither)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "ministral-3-3b-instruct", "qwen3-0.6b"])
def test_an_empty_rope_scaling_is_read_as_an_absent_one(name: str) -> None:
    published = json.loads((PUBLISHED / f"{name}.json").read_text())
    published = published.get("text_config", published)
    absent = without(published, "rope_scaling", "rope_parameters")
    assert read(absent, rope_scaling={}) == read(absent) == read(absent, rope_scaling=None)


def test_llama3_scaling_without_an_original_length_uses_the_longest_position() -> None:
    scaling = without(LLAMA_3_2_1B["rope_scaling"], "original_max_position_embeddings")
    assert read(LLAMA_3_2_1B, rope_scaling=scaling).rope.original_max_position_embeddings == 131072


@pytest.mark.parametrize("kind", ["axial", "mrope"])
def test_other_rope_scalings_are_refused_by_name(kind: str) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=rf"config\.json: rope_scaling: RoPE type '{kind}' is not supported; supported: default, linear, llama3",
    ):
        read(LLAMA_3_2_1B, rope_scaling={"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 8192})


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"long_factor": [1.0] * 47, "short_factor": [1.0] * 48}, "'long_factor' has 47 entries; .* has 48 pairs"),
        ({"long_factor": [1.0] * 48}, "'short_factor' is missing"),
        ({"long_factor": [1.0] * 48, "short_factor": [0.0] * 48}, "expected a list of finite numbers above zero"),
        ({"long_factor": 1.0, "short_factor": [1.0] * 48}, "expected a list of finite numbers above zero"),
    ],
)
def test_longrope_needs_a_factor_for_each_pair(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(PHI_3_MINI_4K, rope_scaling={"type": "longrope", **scaling})


def test_longrope_of_one_position_is_refused() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    with pytest.raises(CheckpointError, match="'original_max_position_embeddings' is 1; expected at least 2"):
        read(PHI_3_MINI_4K, rope_scaling=scaling, original_max_position_embeddings=1)


def test_a_bundles_context_ends_at_longropes_and_is_the_original_one_by_default() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    sizes = {"max_position_embeddings": 8192, "original_max_position_embeddings": 2048}
    spec = read(PHI_3_MINI_4K, rope_scaling=scaling, **sizes)
    message = r"--context 8193: .* 8192 positions \('max_position_embeddings'\)"
    for choose in (
        model_context,
        partial(paged_context, activations=("float16",), max_binding_bytes=1 << 40),
    ):
        assert [choose(requested, spec=spec) for requested in (None, 8192)] == [2048, 8192]
        with pytest.raises(RequestError, match=message):
            choose(8193, spec=spec)


def test_yarn_stretches_the_original_length_as_qwens_model_card_has_it() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    card = read(QWEN2_5_0_5B, max_position_embeddings=32768, rope_scaling=yarn)
    assert model_context(131072, card) == 131072
    with pytest.raises(RequestError, match=r"--context 131073: .* 131072 positions"):
        model_context(131073, card)
    # Files with the stretched length, and without an original one, which is then that of the first key.
    assert read(QWEN2_5_0_5B, max_position_embeddings=131072, rope_scaling=yarn) == card
    implied = read(
        QWEN2_5_0_5B, max_position_embeddings=32768, rope_scaling=without(yarn, "original_max_position_embeddings")
    )
    assert implied == card
    # More positions than the factor gives are those of the file.
    assert read(QWEN2_5_0_5B, max_position_embeddings=140000, rope_scaling=yarn).max_position_embeddings == 140000
    # The factor of another scaling does not say how far it reaches.
    linear = read(QWEN2_5_0_5B, max_position_embeddings=32768, rope_scaling={"type": "linear", "factor": 4.0})
    assert linear.max_position_embeddings == 32768


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_a_factor_beyond_all_lengths_is_a_typed_error(kind: str) -> None:
    with pytest.raises(CheckpointError, match="stretches 131072 positions too far"):
        read(LLAMA_3_2_1B, rope_scaling={"rope_type": kind, "factor": 1e30})


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_context_that_selects_other_factors_than_transformers_for_short_texts_is_a_note(kind: str) -> None:
    scalings: dict[str, dict[str, Any]] = {
        "longrope": {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        "dynamic": {"factor": 4.0},
    }
    scaling = scalings[kind]
    sizes = {"max_position_embeddings": 8192 if kind == "longrope" else 2048, "original_max_position_embeddings": 2048}
    spec = read(PHI_3_MINI_4K, rope_scaling={"type": kind, **scaling}, **sizes)
    assert rotation_notes(spec, 2048) == []
    (note,) = rotation_notes(spec, 2049)
    assert "beyond the 2048" in note
    assert "--context 2048 computes short texts as it does" in note


def test_a_context_that_selects_no_other_factors_has_no_note() -> None:
    same = {"type": "longrope", "short_factor": [2.0] * 48, "long_factor": [2.0] * 48}
    sizes = {"max_position_embeddings": 8192, "original_max_position_embeddings": 2048}
    assert rotation_notes(read(PHI_3_MINI_4K, rope_scaling=same, **sizes), 8192) == []
    assert rotation_notes(read(QWEN2_5_0_5B, rope_scaling={"type": "yarn", "factor": 4.0}), 100_000) == []


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
def test_unsupported_rope_is_refused(scaling: dict[str, Any], message: str) -> None:
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
    ("scaling", "context"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0}, 4096),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096),
    ],
    ids=lambda value: str(value.get("rope_type")) if isinstance(value, dict) else "",
)
def test_the_frequencies_are_those_of_transformers(scaling: dict[str, Any], context: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind, head_dim, original = scaling["rope_type"], 64, 1024
    rope = {**scaling, "rope_theta": 10000.0, "original_max_position_embeddings": original}
    config = SimpleNamespace(
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=original,
        rope_parameters=rope,
        standardize_rope_params=lambda: None,
    )
    expected, _ = ROPE_INIT_FUNCTIONS[kind](config, None, seq_len=context)
    own = {key: value for key, value in scaling.items() if key != "rope_type"}
    found = inverse_frequencies(
        RopeSpec(10000.0, kind, original_max_position_embeddings=original, **own), head_dim, context
    )
    np.testing.assert_allclose(found, expected.double().numpy(), rtol=1e-5)
