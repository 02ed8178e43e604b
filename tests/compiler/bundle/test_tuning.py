"""Tuning records that a compile adds to a bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_bundle import few_kernels

from nearfar.compiler.bundle.entries import VariantEntry
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.tuning import check_tuning, read_tuning
from nearfar.compiler.cli import main
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.errors import RequestError

ADAPTER = {"vendor": "nvidia", "architecture": "ampere", "device": "", "description": ""}


def record(folder: Path, name: str = "record.json", **changes: Any) -> Path:
    file = folder / name
    decode = {"ahead_ms": 1.5, "steps": [{"rows": 1, "ms": 2.0}, {"rows": 8, "ms": 2.5}]}
    steps = {"chunk": 256, "decode": decode}
    known = {"adapter": ADAPTER, "activation": "float16", "variants": {}, "steps": steps}
    file.write_text(json.dumps({**known, **changes}))
    return file


def test_records_are_stored_in_the_manifest_in_their_order(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    checkpoint = str(tiny_checkpoints["qwen3"])
    with few_kernels(tokens="any"):
        plain = compile_model(checkpoint, tmp_path / "plain", CompileOptions(context=64)).manifest
    assert plain.tuning == []
    name, rows = next((name, rows) for name, rows in plain.variants.items() if len(rows) > 1)
    tuned = {name: [{"when": ["==", "S", 1], "variant": "+".join(rows[-1].kernels)}]}
    files = [record(tmp_path, "a.json", variants=tuned), record(tmp_path, "b.json", activation="float32")]
    arguments = ["compile", checkpoint, "-o", str(tmp_path / "tuned"), "--context", "64", "--json"]
    with few_kernels(tokens="any"):
        assert main([*arguments, "--tuning", *map(str, files)]) == 0
    shipped = open_bundle(tmp_path / "tuned").manifest.tuning
    assert [entry.model_dump(mode="json") for entry in shipped] == [json.loads(file.read_text()) for file in files]


def test_a_record_without_sizes_of_steps_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"adapter": ADAPTER, "activation": "float16", "variants": {}}))
    assert read_tuning([file])[file].steps is None


def test_a_record_of_another_bundle_is_refused_and_leaves_nothing(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    file = record(tmp_path, variants={"elsewhere": [{"when": None, "variant": "x"}]})
    with few_kernels(), pytest.raises(RequestError, match=f"{file}: variants 'elsewhere' is not in this bundle"):
        compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", CompileOptions(context=64, tuning=(file,)))
    assert list(tmp_path.iterdir()) == [file]


def test_a_variant_that_the_bundle_does_not_have_is_refused(tmp_path: Path) -> None:
    tuning = read_tuning([record(tmp_path, variants={"sample": [{"when": None, "variant": "sample_64"}]})])
    rows = (VariantEntry(kernels=["sample_32"], activation=None, needs=[], when=None),)
    with pytest.raises(RequestError, match="variant 'sample_64' of 'sample' is not in this bundle"):
        check_tuning(tuning, {"sample": rows}, ["float16"])


def test_a_record_for_activations_that_the_bundle_does_not_have_is_refused(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    file = record(tmp_path, activation="int8")
    with (
        few_kernels(),
        pytest.raises(RequestError, match=f"{file}: was measured with int8 activations, .* float16, float32; leave it"),
    ):
        compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", CompileOptions(context=64, tuning=(file,)))
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_target_whose_runtime_does_not_tune_refuses_records(
    target: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    options = CompileOptions(target=target, tuning=(record(tmp_path),))
    with pytest.raises(RequestError, match=f"--tuning: target {target} does not support this option"):
        compile_model(str(tiny_checkpoints["llama"]), tmp_path / "bundle", options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a tuning record"),
        (b"\xff", "cannot be read"),
        (b"[]", "is not a tuning record"),
        (b'{"adapter": {}}', r"is not a tuning record \(adapter\.vendor: Field required\)"),
        (
            json.dumps({"adapter": ADAPTER, "activation": "int4", "variants": {}}).encode(),
            "activation: Input should be",
        ),
        (json.dumps({"adapter": ADAPTER, "activation": "float16", "variants": {}, "x": 1}).encode(), "x: Extra inputs"),
        (
            json.dumps({"adapter": dict.fromkeys(ADAPTER, ""), "activation": "float16", "variants": {}}).encode(),
            r"is not a tuning record \(adapter: the browser named no part of it",
        ),
        (
            json.dumps({"adapter": ADAPTER, "activation": "float16", "variants": {}, "steps": {"chunk": 0}}).encode(),
            r"steps\.chunk: Input should be greater than",
        ),
        (
            json.dumps(
                {
                    "adapter": ADAPTER,
                    "activation": "float16",
                    "variants": {},
                    "steps": {"decode": {"ahead_ms": 0, "steps": []}},
                }
            ).encode(),
            r"steps\.decode\.ahead_ms: Input should be greater than",
        ),
        (
            json.dumps(
                {
                    "adapter": ADAPTER,
                    "activation": "float16",
                    "variants": {"sample": [{"when": ["<=", "Q", 1], "variant": "sample"}]},
                }
            ).encode(),
            "dim 'Q' has no value",
        ),
        (
            json.dumps(
                {
                    "adapter": ADAPTER,
                    "activation": "float16",
                    "variants": {"sample": [{"when": ["=="], "variant": "sample"}]},
                }
            ).encode(),
            "is not a tuning record",
        ),
    ],
)
def test_a_file_that_is_not_a_record_is_reported_with_the_reason(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(content)
    with pytest.raises(RequestError, match=rf"--tuning {file}: .*{message}"):
        read_tuning([file])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"nowhere\.json: cannot be read"):
        read_tuning([tmp_path / "nowhere.json"])


def test_two_records_of_one_adapter_and_dtype_are_refused(tmp_path: Path) -> None:
    files = [record(tmp_path, name) for name in ("a.json", "b.json")]
    with pytest.raises(
        RequestError, match=r"b\.json: has the same adapter and dtype as .*a\.json \(nvidia ampere float16\)"
    ):
        read_tuning(files)
