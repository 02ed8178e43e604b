"""ConfigReader: all values are checked, unread keys are refused, and every error gives its location and advice."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.formats.config import ConfigReader, require_skippable
from nearfar.compiler.formats.json_file import parse_json_object
from nearfar.compiler.runtime.errors import CheckpointError, RequestError, UnsupportedModel

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def test_values_of_the_right_type_are_returned_unchanged() -> None:
    config = ConfigReader(
        {"size": 8, "eps": 1e-6, "whole": 2, "tied": True, "name": "x", "names": ["a", "b"], "eos": [3, 3, 1]}
    )
    assert config.integer("size") == 8
    assert config.number("eps") == 1e-6
    assert isinstance(config.number("whole"), float)
    assert config.flag("tied") is True
    assert config.text("name") == "x"
    assert config.texts("names") == ("a", "b")
    assert config.token_ids("eos") == (3, 1)
    config.finish()


def test_errors_name_the_keys_of_the_file_where_a_reader_has_renamed_them() -> None:
    names = {"width": "experts_width", "shared_width": "width", "old_layers": "layers", "absent": "heads"}
    config = ConfigReader({"width": 3, "shared_width": 0, "layers": -1}).renamed(names)
    assert config.integer("experts_width") == 3
    for key, message in (
        ("width", "'shared_width' is 0"),
        ("layers", "'layers' is -1"),
        ("heads", "'absent' is missing"),
    ):
        with pytest.raises(CheckpointError, match=message):
            config.integer(key)
    with pytest.raises(UnsupportedModel, match="'shared_width' is 0, which is not supported; supported: 4"):
        config.expect("width", 4)
    error = config.contradiction("width", "'layers' is -1, and 'width' is 0")
    assert "'layers' is -1, and 'shared_width' is 0" in error.message
    assert error.details["key"] == "shared_width"


def test_defaults_replace_only_absent_keys() -> None:
    config = ConfigReader({"size": None})
    assert config.integer("absent", default=4) == 4
    assert config.optional_integer("size", absent=4) is None
    assert config.optional_integer("window", absent=4) == 4
    assert config.optional_number("cap", absent=0.5) == 0.5
    assert config.flag("gone", default=False) is False
    with pytest.raises(CheckpointError, match=r"'size' is null \(null\), expected a positive integer"):
        config.integer("size", default=4)


@pytest.mark.parametrize("value", [True, False, 0, -1, 1.0, "8", None, [8], {}, 2**60])
def test_a_size_must_be_a_positive_integer_and_not_a_boolean(value: object) -> None:
    with pytest.raises(
        CheckpointError, match=r"config\.json: 'hidden_size' is .*expected a positive integer; correct the file"
    ) as caught:
        ConfigReader({"hidden_size": value}).integer("hidden_size")
    assert caught.value.details == {"file": "config.json", "key": "hidden_size"}


@pytest.mark.parametrize("value", [True, 0, -0.5, math.nan, math.inf, "1e-6", None])
def test_a_number_must_be_finite_and_above_zero(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"'rms_norm_eps' is .*expected a finite number above zero"):
        ConfigReader({"rms_norm_eps": value}).number("rms_norm_eps")


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_a_flag_must_be_true_or_false(value: object) -> None:
    with pytest.raises(CheckpointError, match="expected true or false"):
        ConfigReader({"mlp_bias": value}).flag("mlp_bias")


@pytest.mark.parametrize("value", [-1, True, "2", [1, None], [[1]], 1.5])
def test_token_ids_must_be_non_negative_integers(value: object) -> None:
    with pytest.raises(CheckpointError, match="expected a token id or a list of token ids"):
        ConfigReader({"eos_token_id": value}).token_ids("eos_token_id")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(
        CheckpointError, match=r"^config\.json: 'vocab_size' is missing; correct the file or download it again$"
    ):
        ConfigReader({}).integer("vocab_size")


def test_a_section_names_itself_in_errors_and_has_its_own_finish() -> None:
    config = ConfigReader({"rope_scaling": {"factor": 0, "odd": 1}})
    section = config.section("rope_scaling")
    assert section is not None
    with pytest.raises(CheckpointError, match=r"config\.json: rope_scaling: 'factor' is 0"):
        section.number("factor")
    with pytest.raises(UnsupportedModel, match=r"config\.json: rope_scaling: unknown key 'odd' = 1"):
        section.finish()
    config.finish()


def test_expect_accepts_only_absence_and_the_allowed_values() -> None:
    ConfigReader({}).expect("pretraining_tp", 1)
    ConfigReader({"pretraining_tp": 1}).expect("pretraining_tp", 1, None)
    with pytest.raises(UnsupportedModel, match="'pretraining_tp' is 2, which is not supported; supported: 1 or null"):
        ConfigReader({"pretraining_tp": 2}).expect("pretraining_tp", 1, None)
    with pytest.raises(UnsupportedModel, match="'pretraining_tp' is true"):
        ConfigReader({"pretraining_tp": True}).expect("pretraining_tp", 1)


def test_finish_refuses_unread_keys_by_name() -> None:
    config = ConfigReader({"hidden_size": 8, "logit_scale": 0.5, "a_new_norm": "x" * 200, "use_cache": True})
    config.integer("hidden_size")
    with pytest.raises(
        UnsupportedModel, match=r"unknown keys 'a_new_norm' = 'x+\.\.\., 'logit_scale' = 0\.5; "
    ) as caught:
        config.finish(frozenset({"use_cache"}))
    assert caught.value.details["keys"] == ["a_new_norm", "logit_scale"]


@given(value=JSON_VALUES)
def test_any_json_value_results_in_a_value_of_the_declared_type_or_a_typed_error(value: Any) -> None:
    config = ConfigReader({"key": value})
    readers: list[tuple[Callable[[str], object], tuple[type, ...]]] = [
        (config.integer, (int,)),
        (config.number, (float,)),
        (config.flag, (bool,)),
        (config.text, (str,)),
        (config.texts, (tuple,)),
        (config.token_ids, (tuple,)),
        (config.section, (ConfigReader, type(None))),
    ]
    for read, kinds in readers:
        with suppress(CheckpointError):
            assert type(read("key")) in kinds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1,\n "b" 2}', r"f\.json: line 2 column 6: not valid JSON"),
        (b"", "line 1 column 1"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"[1]", "contains a JSON array, but an object is expected"),
        (b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
        (b'{"a":' + b"[" * 100_000, "not usable JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer, .* 'git lfs pull'"),
    ],
)
def test_broken_json_is_a_typed_error_with_the_position(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_json_object(content, "f.json")


def test_an_unknown_key_is_named_with_the_option_that_ignores_it() -> None:
    values = {"size": 8, "odd": 1, "rope": {"odder": 2}}
    with pytest.raises(UnsupportedModel, match=r"unknown key 'odd' = 1; .* add --ignore-key odd$"):
        read_all(ConfigReader(values))
    with pytest.raises(UnsupportedModel, match=r"config\.json: rope: unknown key 'odder' = 2; .* --ignore-key odder$"):
        read_all(ConfigReader(values, skipped=["odd"]))
    read_all(ConfigReader(values, skipped=["odd", "odder"]))
    read_all(ConfigReader(values, skipped=["odd", "odder"]).renamed({"extent": "size"}).with_defaults({"more": False}))


def test_a_key_that_is_read_cannot_be_ignored() -> None:
    with pytest.raises(RequestError, match=r"--ignore-key size: config\.json: the compiler reads 'size', .* value 8"):
        read_all(ConfigReader({"size": 8, "rope": None}, skipped=["size"]))
    # A key that is accepted with any value has no effect, so it may be ignored too.
    config = ConfigReader({"size": 8}, skipped=["size"])
    config.ignore("size")
    config.finish()


@pytest.mark.parametrize("key", ["quantization_config", "quantization", "compression_config"])
def test_a_key_without_which_weights_are_misread_is_never_ignored(key: str) -> None:
    values = {key: {"quant_method": "aqlm"}, "odd": 1}
    with pytest.raises(RequestError, match=f"--ignore-key {key}: .* would be misread; pass the unquantized checkpoint"):
        require_skippable([key], values, "config.json")
    with pytest.raises(UnsupportedModel, match=r"already quantized .*method 'aqlm'.* pass the unquantized") as caught:
        ConfigReader(values).finish()
    assert "--ignore-key" not in caught.value.message


def test_a_mistyped_key_to_ignore_is_refused() -> None:
    values = {"size": 8, "rope": {"scaling_factor": 2}}
    require_skippable(["scaling_factor", "size"], values, "config.json")
    with pytest.raises(RequestError, match=r"config\.json has no such key; did you mean 'scaling_factor'\?"):
        require_skippable(["scaling_facto"], values, "config.json")


def read_all(config: ConfigReader) -> None:
    assert config.integer("size") == 8
    rope = config.section("rope")
    config.finish()
    if rope is not None:
        rope.finish()
