"""Checkpoints of compressed-tensors: the weights that the library decompresses, the logits that transformers computes,
and configurations that we refuse.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_families import make_family
from quantized_families import (
    logits_of,
    make_quantized,
    quantize_projections,
    transformers_logits,
    write_quantization,
)
from safetensors.torch import load_file, save_file
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.compressed_tensors_quant import read_quantization
from nearfar.compiler.formats.config import ConfigReader
from nearfar.compiler.formats.packed_columns import Packing
from nearfar.compiler.formats.safetensors_file import read_safetensors
from nearfar.compiler.runtime.errors import CheckpointError, QuantizationError, UnsupportedModel

# Not importorskip: every process that collects tests would need seconds for the import.
pytestmark = pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed_tensors is not installed")

INT4: Mapping[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
CHANNEL: Mapping[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FLOAT8: Mapping[str, Any] = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
BLOCKS = {**FLOAT8, "strategy": "block", "block_structure": [128, 128]}
DYNAMIC = {**CHANNEL, "strategy": "token", "dynamic": True}
MX = {"type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "scale_dtype": "torch.uint8"}
# The format, the weights' arguments, and the form in which we store them.
MATRICES: Mapping[str, tuple[str, dict[str, Any], str]] = {
    **{
        f"packed{bits}": ("pack-quantized", {**INT4, "num_bits": bits}, f"q{width}g32")
        for bits, width in ((1, 2), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 8), (8, 8))
    },
    "packed4_zero": ("pack-quantized", {**INT4, "symmetric": False, "group_size": 64}, "q4g64z"),
    "packed3_channel_zero": ("pack-quantized", {**CHANNEL, "num_bits": 3, "symmetric": False}, "q3cz"),
    "packed7_zero": ("pack-quantized", {**INT4, "num_bits": 7, "symmetric": False}, "q8g32z"),
    "packed8_tensor_zero": ("pack-quantized", {**FLOAT8, "type": "int", "symmetric": False}, "q8cz"),
    "int8_channel": ("int-quantized", {**CHANNEL}, "q8c"),
    "int8_zero": ("int-quantized", {**CHANNEL, "symmetric": False}, "q8cz"),
    "int8_tensor": ("naive-quantized", {**FLOAT8, "type": "int"}, "q8c"),
    "int8_blocks": ("naive-quantized", {**BLOCKS, "type": "int", "block_structure": [16, 32]}, "q8g32"),
    "int4_unpacked": ("int-quantized", {**INT4}, "q4g32"),
    "float8_tensor": ("float-quantized", {**FLOAT8}, "F8_E4M3"),
    "float8_channel": ("float-quantized", {**FLOAT8, "strategy": "channel"}, "F8_E4M3"),
    "float8_blocks": ("naive-quantized", {**BLOCKS, "block_structure": [16, 64]}, "F8_E4M3"),
    "mxfp8": ("mxfp8-quantized", {**MX, "num_bits": 8}, "F8_E4M3"),
    "mxfp4": ("mxfp4-pack-quantized", {**MX, "num_bits": 4}, "q5g32"),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {**MX, "num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
        "q5g16",
    ),
}


def compressed(
    format_: str, args: dict[str, Any], weight: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors that the library writes for a weight (N, K) with random scales, and the weight that it reads back."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    rows, columns = weight.shape
    shape = {
        "tensor": (1,),
        "channel": (rows, 1),
        "block": (
            -(-rows // args.get("block_structure", [1, 1])[0]),
            columns // args.get("block_structure", [1, 1])[1],
        ),
    }.get(args["strategy"], (rows, columns // args.get("group_size", columns)))
    generator = torch.Generator().manual_seed(rows)
    largest = {"int": 2.0 ** (args["num_bits"] - 1), "float": 6.0 if args["num_bits"] == 4 else 448.0}[args["type"]]
    scale = (torch.rand(shape, generator=generator) + 0.5) * weight.abs().max() / largest
    parts = {"weight": weight, "weight_scale": scale}
    if "scale_dtype" in args:
        # Scales that 8 bits can represent.
        parts["weight_scale"] = torch.exp2(torch.floor(torch.log2(scale)))
    if args["strategy"] == "tensor_group":
        # A power of two, because the library multiplies in bfloat16.
        parts["weight_global_scale"] = torch.tensor([512.0])
        parts["weight_scale"] = (scale * 512).to(torch.float8_e4m3fn).float()
    if not args["symmetric"]:
        limit = 2 ** (args["num_bits"] - 1)
        parts["weight_zero_point"] = torch.randint(-limit, limit, shape, generator=generator).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format_)
    stored = compressor.compress(parts, scheme)
    return stored, compressor.decompress(stored, scheme)["weight"].float()


def section(format_: str, weights: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": dict(weights), "format": format_}}
    return {"quant_method": "compressed-tensors", "format": format_, "config_groups": groups, "ignore": [], **values}


@pytest.mark.parametrize("name", MATRICES)
def test_weights_are_those_that_the_library_decompresses(name: str, tmp_path: Path) -> None:
    format_, args, form = MATRICES[name]
    torch.manual_seed(1)
    # 37 rows fill neither words nor blocks.
    stored, expected = compressed(format_, args, torch.randn(37, 192))
    matrix = open_matrix(tmp_path, stored, section(format_, args)).tensors["x.weight"]
    assert (matrix.dtype, matrix.shape) == (form, (37, 192))
    np.testing.assert_allclose(matrix.rows(0, 37), expected.numpy(), rtol=1e-6, atol=0)
    for start, stop in ((0, 1), (5, 33), (31, 37)):
        np.testing.assert_array_equal(matrix.rows(start, stop), matrix.rows(0, 37)[start:stop])


# For each model: the section, and the format and arguments of each projection's weights, by parts of its name.
# transformers 5.23 cannot load zero points.
WIDE_GROUPS = {**INT4, "group_size": 64}
CHECKPOINTS: Mapping[str, tuple[dict[str, Any], Mapping[str, tuple[str, Mapping[str, Any]]]]] = {
    # A module's name takes precedence over a regular expression, and this over a class.
    "llama": (
        section(
            "mixed-precision",
            {},
            config_groups={
                "group_0": {"targets": ["Linear"], "weights": dict(WIDE_GROUPS), "format": "pack-quantized"},
                "group_1": {
                    "targets": ["re:.*down_proj", "model.layers.0.mlp.up_proj"],
                    "weights": dict(CHANNEL),
                    "format": "int-quantized",
                },
                "group_2": {"targets": ["re:.*mlp.*"], "weights": dict(INT4), "format": "pack-quantized"},
            },
            ignore=["lm_head", "re:.*v_proj"],
            sparsity_config={"format": "dense"},
            version="0.20.0",
        ),
        {
            "v_proj": ("", {}),
            "down_proj": ("int-quantized", CHANNEL),
            "0.mlp.up_proj": ("int-quantized", CHANNEL),
            "mlp": ("pack-quantized", INT4),
            "": ("pack-quantized", WIDE_GROUPS),
        },
    ),
    "qwen3": (
        section("int-quantized", CHANNEL, quantization_status="compressed", ignore=["lm_head"]),
        {"": ("int-quantized", CHANNEL)},
    ),
    "gemma3": (
        section("pack-quantized", {**INT4, "num_bits": 3}, ignore=["lm_head"]),
        {"": ("pack-quantized", {**INT4, "num_bits": 3})},
    ),
    "phi3": (section("float-quantized", BLOCKS, ignore=["lm_head"]), {"": ("float-quantized", BLOCKS)}),
}


def make(model: str, folder: Path) -> None:
    config, parts = CHECKPOINTS[model]

    def quantize(module: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        format_, args = next(each for part, each in parts.items() if part in module)
        return compressed(format_, dict(args), weight)[0] if format_ else {"weight": weight}

    make_quantized(model, folder, quantize, {"quantization_status": "compressed", **config})


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_logits_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    import transformers

    make(model, tmp_path)
    reader = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert relative_error(logits_of(tmp_path), transformers_logits(reader)) < 1e-4


@pytest.mark.parametrize("name", ["packed4", "float8_channel"])
def test_every_expert_has_values_of_its_own_beside_a_router_of_floats(name: str, tmp_path: Path) -> None:
    import transformers

    format_, args, form = MATRICES[name]
    sizes = {"hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "head_dim": 32}
    make_family("qwen3_moe", tmp_path / "floats", num_attention_heads=4, num_key_value_heads=2, **sizes)
    shutil.copytree(tmp_path / "floats", tmp_path / "codes")
    weights = load_file(tmp_path / "floats" / "model.safetensors")

    def quantize(module: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        stored, weights[f"{module}.weight"] = compressed(format_, args, weight)
        return stored

    quantize_projections(tmp_path / "codes", quantize)
    ignored = ["lm_head", "re:.*mlp\\.gate$"]
    write_quantization(tmp_path / "codes", section(format_, args, ignore=ignored, quantization_status="compressed"))
    save_file(weights, tmp_path / "floats" / "model.safetensors", {"format": "pt"})
    read = load(str(tmp_path / "codes")).tensors
    experts = {each for each in read if ".experts." in each}
    assert len(experts) == 2 * 5 * 3
    assert {read[each].dtype for each in experts} == {form}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats", dtype=torch.float32)
    model.set_experts_implementation("eager")
    assert relative_error(logits_of(tmp_path / "codes"), transformers_logits(model)) < 1e-4


def open_matrix(folder: Path, parts: Mapping[str, torch.Tensor], config: dict[str, Any]) -> Any:
    """The matrix that we read for a module "x" with these tensors."""
    save_file({f"x.{kind}": part.contiguous() for kind, part in parts.items()}, folder / "x.safetensors")
    tensors = read_safetensors(folder / "x.safetensors")
    return read_quantization(ConfigReader(config)).read_tensors(tensors, tied=False)


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 7])
def test_old_versions_fill_each_word_alone(bits: int, tmp_path: Path) -> None:
    args = {**INT4, "num_bits": bits, "symmetric": False}
    # The library packs streams since version 0.13. These rows fill words in both packings.
    stored, expected = compressed("pack-quantized", args, torch.randn(120, 192))

    def by_word(codes: torch.Tensor) -> torch.Tensor:
        """Words (R, W) of codes (R, C)."""
        each = 32 // bits
        padded = torch.nn.functional.pad(codes.to(torch.int64), (0, -codes.shape[1] % each)).reshape(
            len(codes), -1, each
        )
        return (padded << (bits * torch.arange(each))).sum(-1).to(torch.int32)

    from compressed_tensors.compressors.pack_quantized import unpack_from_int32

    half = 1 << (bits - 1)
    codes = unpack_from_int32(stored["weight_packed"], bits, torch.Size((120, 192))).long() + half
    zeros = unpack_from_int32(stored["weight_zero_point"], bits, torch.Size((120, 6)), packed_dim=0).long() + half
    old = {**stored, "weight_packed": by_word(codes), "weight_zero_point": by_word(zeros.T).T}
    matrix = open_matrix(tmp_path, old, section("pack-quantized", args)).tensors["x.weight"]
    np.testing.assert_allclose(matrix.rows(0, 120), expected.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(matrix.rows(31, 97), matrix.rows(0, 120)[31:97])


def test_a_packing_that_cannot_be_known_is_refused() -> None:
    # 20 integers of 3 bits take two words, both as a stream and with 10 in each word.
    assert Packing.of(3, 20, 2) is None
    assert Packing.of(3, 32, 3) == Packing(3, True)
    assert Packing.of(3, 32, 4) == Packing(3, False)


def test_columns_in_another_order_than_their_groups_become_floats(tmp_path: Path) -> None:
    args = {**INT4, "symmetric": False, "actorder": "group"}
    stored, expected = compressed("pack-quantized", {**args, "actorder": None}, torch.randn(37, 192))
    natural = torch.arange(192, dtype=torch.int32) // 32
    order = torch.randperm(192)
    for index in (natural, torch.full((192,), -1, dtype=torch.int32)):
        kept = open_matrix(tmp_path, {**stored, "weight_g_idx": index}, section("pack-quantized", args))
        assert kept.tensors["x.weight"].dtype == "q4g32z"
        assert not kept.notes
    codes = (expected.reshape(37, 6, 32) / stored["weight_scale"][..., None]).reshape(37, 192)
    read = open_matrix(tmp_path, {**stored, "weight_g_idx": natural[order]}, section("pack-quantized", args))
    assert read.tensors["x.weight"].dtype == "q4 reordered"
    assert "not in the order of their groups" in read.notes[0]
    from compressed_tensors.compressors.pack_quantized import unpack_from_int32

    integers = unpack_from_int32(stored["weight_packed"], 4, torch.Size((37, 192))).float()
    zeros = unpack_from_int32(stored["weight_zero_point"], 4, torch.Size((37, 6)), packed_dim=0).float()
    group = natural[order].long()
    found = (integers - zeros[:, group]) * stored["weight_scale"][:, group]
    assert not torch.equal(codes, integers)
    np.testing.assert_allclose(read.tensors["x.weight"].rows(0, 37), found.numpy(), rtol=1e-6)


def test_rounding_of_activations_and_of_the_cache_is_left_out_with_notes(tmp_path: Path) -> None:
    import transformers

    config = section("int-quantized", CHANNEL, ignore=["lm_head"])
    config["config_groups"]["group_0"] |= {"input_activations": DYNAMIC}
    config["kv_cache_scheme"] = {**FLOAT8}
    config["quantization_status"] = "compressed"

    def nearest(_: str, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return {"weight": torch.round(weight / scale).to(torch.int8), "weight_scale": scale}

    original = make_quantized("llama", tmp_path, nearest, config)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("k_scale", "v_scale"):
        tensors |= {f"model.layers.{layer}.self_attn.{name}": torch.tensor([0.02]) for layer in (0, 1)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    notes = load(str(tmp_path)).notes
    assert any("activations are not rounded" in note for note in notes)
    assert any("keys and values are not rounded" in note for note in notes)
    write_quantization(tmp_path, {**config, "kv_cache_scheme": None})
    reader = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rounded = transformers_logits(reader)
    for module in reader.modules():
        module.quantization_enabled = False
    found = logits_of(tmp_path)
    assert relative_error(found, transformers_logits(reader)) < 1e-4
    assert relative_error(found, original) < relative_error(rounded, original)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (
            section("marlin-24", INT4),
            UnsupportedModel,
            "'format' is 'marlin-24', which is not supported; supported: pack",
        ),
        (section("mxfp6-pack-quantized", INT4), UnsupportedModel, "'format' is 'mxfp6-pack-quantized'"),
        (section("pack-quantized", {**INT4, "type": "float"}), UnsupportedModel, "type 'float' with 4 bits in format"),
        (section("pack-quantized", {**INT4, "num_bits": 16}), UnsupportedModel, "type 'int' with 16 bits"),
        (section("pack-quantized", {**INT4, "group_size": 48}), UnsupportedModel, "a scale for 48 columns"),
        (section("pack-quantized", {**INT4, "rotation": 3}), UnsupportedModel, "unknown key 'rotation'"),
        (section("pack-quantized", INT4, rotation=3), UnsupportedModel, "unknown key 'rotation'"),
        (
            section("pack-quantized", INT4, sparsity_config={"format": "sparse-24-bitmask"}),
            UnsupportedModel,
            "sparse-24",
        ),
        (
            section("pack-quantized", INT4, transform_config={"config_groups": {"R3": {}}}),
            UnsupportedModel,
            "rotates activations",
        ),
        (section("pack-quantized", INT4, ignore=["re:(x"]), CheckpointError, "'ignore': 're:\\(x' is not a regular"),
        (
            section("pack-quantized", INT4, ignore=["x"]),
            CheckpointError,
            "x.weight_packed is quantized, but 'config_groups'",
        ),
        (
            section("pack-quantized", {**INT4, "group_size": 64}),
            CheckpointError,
            r"weight_scale has .* expected .* \[37, 3\]",
        ),
        (section("pack-quantized", {**INT4, "num_bits": 3}), CheckpointError, "cannot hold 3 bits for each of"),
        (section("pack-quantized", {**INT4, "symmetric": False}), CheckpointError, "x.weight_zero_point is missing"),
        (section("int-quantized", {**FLOAT8, "type": "float"}), UnsupportedModel, "type 'float' with 8 bits in format"),
        (section("float-quantized", FLOAT8), CheckpointError, "has dtype I32, but group_0 has weights of type 'float'"),
        (
            section(
                "x", {}, config_groups={"a": {"targets": ["re:y"], "weights": {**INT4}, "format": "pack-quantized"}}
            ),
            UnsupportedModel,
            r"a: 'targets' \['re:y'\] match no module",
        ),
    ],
)
def test_what_does_not_match_is_named(config: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    stored, _ = compressed("pack-quantized", dict(INT4), torch.randn(37, 192))
    if "48" in words:
        stored["weight_scale"] = torch.ones(37, 4)
    with pytest.raises(error, match=words):
        open_matrix(tmp_path, stored, config)


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ({"weight_shape": None}, CheckpointError, "x.weight_shape is missing"),
        ({"weight_shape": torch.tensor([37, -192])}, CheckpointError, r"holds \[37, -192\]"),
        ({"weight_shape": torch.tensor([37, 2**40])}, CheckpointError, "cannot hold 4 bits"),
        ({"weight_scale": None}, CheckpointError, "x.weight_scale is missing"),
        ({"weight_scale": torch.ones(36, 6)}, CheckpointError, r"shape \[36, 6\]; expected .* \[37, 6\]"),
        ({"weight_scale": torch.ones(37, 6, dtype=torch.int32)}, CheckpointError, "weight_scale has dtype I32"),
        ({"weight_zero_point": torch.ones(37, 6, dtype=torch.int8)}, CheckpointError, "is not zero, though group_0"),
        (
            {"weight_g_idx": torch.full((192,), 6, dtype=torch.int32)},
            CheckpointError,
            "groups from 6 to 6, and there are 6",
        ),
    ],
)
def test_damaged_tensors_are_named(
    parts: Mapping[str, torch.Tensor | None], error: type[Exception], words: str, tmp_path: Path
) -> None:
    stored, _ = compressed("pack-quantized", dict(INT4), torch.randn(37, 192))
    changed = {kind: part for kind, part in {**stored, **parts}.items() if part is not None}
    with pytest.raises(error, match=words):
        open_matrix(tmp_path, changed, section("pack-quantized", INT4))


def test_integers_beyond_their_bits_are_refused(tmp_path: Path) -> None:
    stored, _ = compressed("int-quantized", dict(INT4), torch.randn(4, 64))
    stored["weight"][2, 3] = 9
    matrix = open_matrix(tmp_path, stored, section("int-quantized", INT4)).tensors["x.weight"]
    with pytest.raises(QuantizationError, match="has integers from -8 to 9, more than 4 bits"):
        matrix.rows(0, 4)
