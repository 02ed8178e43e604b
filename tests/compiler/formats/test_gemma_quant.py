"""Google's quantized checkpoints: the integers that transformers reads, and each way in which a checkpoint is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantized_models import QUANTIZATION, make_quantized_checkpoint, transformers_logits_of
from safetensors.numpy import load_file, save_file
from tiny_models import VOCAB_SIZE
from tolerances import F32, relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import Checkpoint, StoredMatrix
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.gemma_quant import read_quantization, unpack
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

TOKENS = [3, 500, 77, 0, 508, 12, 12, 254, 301]
K_PROJ = "model.layers.0.self_attn.k_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantized_checkpoint(tmp_path_factory.mktemp("gemma") / "model", num_hidden_layers=1)


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """changed(quantization, tensors) -> a copy of the checkpoint with other keys and tensors; None removes one."""

    def change(quantization: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> Path:
        for file in checkpoint.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        config = json.loads((tmp_path / "config.json").read_text())
        config["quantization_config"] |= quantization or {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        stored = {**load_file(tmp_path / "model.safetensors"), **(tensors or {})}
        save_file({name: each for name, each in stored.items() if each is not None}, tmp_path / "model.safetensors")
        return tmp_path

    return change


def logits_of(checkpoint: Checkpoint) -> Any:
    reference = CheckpointReference(checkpoint, 16)
    return reference.logits(next(reference.hidden([TOKENS])))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", [1, 37, 64])
def test_codes_are_the_integers_that_transformers_unpacks(bits: int, columns: int) -> None:
    import torch
    from transformers.integrations.gemma_quant import _unpack_int2, _unpack_int4

    width = -(-columns * bits // 8)
    stored = np.random.default_rng(bits).integers(0, 256, (5, width)).astype(np.uint8)
    theirs = {2: _unpack_int2, 4: _unpack_int4, 8: lambda packed, _: packed.view(torch.int8)}[bits]
    expected = theirs(torch.from_numpy(stored), columns).numpy()
    codes = unpack(stored.view(np.int8) if bits == 8 else stored, bits)[:, :columns]
    np.testing.assert_array_equal(codes.astype(int) - (1 << (bits - 1)), expected)


@pytest.mark.parametrize("rounds", [False, True])
def test_a_checkpoint_of_three_widths_computes_what_transformers_computes(rounds: bool, tmp_path: Path) -> None:
    folder = make_quantized_checkpoint(tmp_path, rounds=rounds, num_hidden_layers=2)
    read = load(str(folder))
    assert set(read.stored_forms) == {"q2c", "q4c", "q8c"}
    assert bool(read.activation_scales) == rounds
    assert relative_error(logits_of(read), transformers_logits_of(folder, TOKENS)) < F32


def test_unquantized_embeddings_and_skipped_modules_stay_floats(tmp_path: Path) -> None:
    quantization = {**QUANTIZATION, "quantize_embeddings": False, "modules_to_not_convert": ["lm_head"]}
    quantization["module_quant_configs"] = {"v_proj$": {"num_bits": 8}}
    folder = make_quantized_checkpoint(tmp_path, quantization=quantization, num_hidden_layers=1)
    read = load(str(folder))
    assert not isinstance(read.tensors["lm_head.weight"], StoredMatrix)
    assert not isinstance(read.tensors["model.embed_tokens.weight"], StoredMatrix)
    assert read.tensors["model.layers.0.self_attn.q_proj.weight"].dtype == "q4c"
    assert relative_error(logits_of(read), transformers_logits_of(folder, TOKENS)) < F32


def test_an_embedding_may_have_scales_for_blocks_of_columns(tmp_path: Path) -> None:
    folder = make_quantized_checkpoint(tmp_path, num_hidden_layers=1, hidden_size=128)
    tensors = load_file(folder / "model.safetensors")
    scales = np.random.default_rng(3).uniform(0.01, 0.02, (VOCAB_SIZE, 2)).astype(np.float32)
    save_file({**tensors, "model.embed_tokens.embedding_scale": scales}, folder / "model.safetensors")
    table = load(str(folder)).tensors["model.embed_tokens.weight"]
    assert table.dtype == "q8g64"
    integers = tensors["model.embed_tokens.embedding_quantized"][7:19].astype(np.float32)
    np.testing.assert_array_equal(table.rows(7, 19), integers * np.repeat(scales[7:19], 64, axis=1))


def test_the_match_that_starts_first_decides_as_in_transformers() -> None:
    patterns = {"q_proj": {"num_bits": 8}, r"layers\.0": {"num_bits": 2}, "layers": {}}
    section = {**QUANTIZATION, "module_quant_configs": patterns}
    read = read_quantization(ConfigReader(section))
    assert read.bits_of("model.layers.0.self_attn.q_proj", tied=False) == 2
    assert read.bits_of("model.layers.1.self_attn.q_proj", tied=False) == 4
    assert read.bits_of("q_proj", tied=False) == 8


def test_a_model_without_a_list_of_skipped_modules_has_a_float_head() -> None:
    read = read_quantization(ConfigReader({"quant_method": "gemma", "quantize_embeddings": True}))
    assert read.bits_of("lm_head", tied=False) is None
    assert read.bits_of("model.embed_tokens", tied=False) == 4
    assert read.bits_of("model.embed_tokens", tied=True) is None


def test_scales_of_the_cache_are_ignored_with_a_note(changed: Callable[..., Path]) -> None:
    one = np.ones(1, np.float32)
    names = [f"model.layers.0.self_attn.{kind}_cache_scale" for kind in "kv"]
    read = load(str(changed(tensors=dict.fromkeys(names, one))))
    assert [note for note in read.notes if "2 scales of 8-bit keys and values are ignored" in note]


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"num_bits": 3}, "'num_bits' is 3, which is not supported; supported: 2 or 4 or 8"),
        ({"module_quant_configs": {"q_proj": {"num_bits": 5}}}, "'num_bits' is 5"),
        ({"module_quant_configs": {"q_proj": {"bits": 4}}}, "unknown key 'bits'"),
        ({"module_quant_configs": {"q_proj": 4}}, "'q_proj' is 4 .*expected an object"),
        ({"module_quant_configs": {"q_porj": {"num_bits": 8}}}, "'q_porj' matches no module"),
        ({"module_quant_configs": {"q_(proj": {"num_bits": 8}}}, "is not a regular expression"),
        ({"modules_to_not_convert": ["*"]}, "is not a regular expression"),
        ({"group_size": 32}, "unknown key 'group_size'"),
        ({"quantize_embeddings": 1}, "'quantize_embeddings' is 1"),
        ({"quantize_embeddings": False}, "embedding_scale is a scale, but model.embed_tokens is not quantized"),
        ({"num_bits": 8}, r"down_proj.weight has dtype U8 and shape \[70, 53\]; 8 bits are a matrix of I8"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(
    quantization: dict[str, Any], message: str, changed: Callable[..., Path]
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(str(changed(quantization)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{K_PROJ}.weight_scale": None}, f"{K_PROJ}.weight_scale is missing"),
        ({f"{K_PROJ}.weight_scale": np.ones((71, 1), "f4")}, r"shape \[71, 1\]; it must be \[72, 1\]"),
        ({f"{K_PROJ}.weight_scale": np.ones((72, 2), "f4")}, r"shape \[72, 2\]; it must be \[72, 1\]"),
        ({f"{K_PROJ}.weight": np.ones((72, 70), "f4")}, "has dtype F32"),
        ({f"{K_PROJ}.input_activation_scale": np.array(np.nan, "f4")}, "is nan; a scale must be"),
        ({f"{K_PROJ}.input_activation_scale": np.array(-1, "f4")}, "is -1.0; a scale must be"),
        ({f"{K_PROJ}.output_activation_scale": np.ones(3, "f4")}, r"has shape \[3\]; it must be one number"),
        ({"model.embed_tokens.embedding_scale": np.ones((VOCAB_SIZE, 3), "f4")}, r"shape \[509, 3\]; it must be"),
        ({"model.embed_tokens.embedding_scale": np.ones((VOCAB_SIZE, 7), "f4")}, "a multiple of 32 columns"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(tensors: dict[str, Any], message: str, changed: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(str(changed(tensors=tensors)))


def test_a_matrix_of_other_columns_than_the_model_is_refused(changed: Callable[..., Path]) -> None:
    wrong = changed(tensors={f"{K_PROJ}.weight": np.zeros((72, 17), np.uint8)})
    with pytest.raises(CheckpointError, match=r"k_proj.weight has shape \[72, 68\].*requires \[72, 70\]"):
        logits_of(load(str(wrong)))


def test_other_methods_are_still_refused_by_name(changed: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match="method 'vptq'"):
        load(str(changed({"quant_method": "vptq"})))
