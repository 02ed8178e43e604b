"""Packing weights into shards: memory stays small, planes are aligned and do not overlap, and equal the packed
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from plain_target import without_kernels

from nearfar.compiler import quant
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.formats import Checkpoint, load
from nearfar.compiler.formats.checkpoint import Tensor
from nearfar.compiler.ir.graph import Parameter, Source
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.pipeline import weights
from nearfar.compiler.quant import layout

# The tensors of a layer's fused weights.
PARTS = {
    "self_attn.qkv_proj.weight": ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    "mlp.gate_up_proj.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "self_attn.o_proj.weight": ["self_attn.o_proj.weight"],
}


@dataclass
class Watched:
    """A tensor that records the number of elements of each read."""

    tensor: Tensor
    most: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    def rows(self, start: int, stop: int) -> Array:
        rows = self.tensor.rows(start, stop)
        self.most = max(self.most, rows.size)
        return rows


@pytest.mark.parametrize("quantization", quant.NAMES)
def test_every_plane_equals_that_of_the_complete_tensor(
    quantization: str, compile_numpy: Callable[..., Path], tiny_checkpoints: Mapping[str, Path]
) -> None:
    bundle = open_bundle(compile_numpy("qwen3", quantization))
    tensors = load(str(tiny_checkpoints["qwen3"])).tensors
    for layer in range(3):
        for name, parts in PARTS.items():
            here = f"model.layers.{layer}"
            complete = np.concatenate(
                [tensors[f"{here}.{part}"].rows(0, tensors[f"{here}.{part}"].shape[0]) for part in parts]
            )
            for plane, expected in quant.by_name(quantization).pack(complete).items():
                np.testing.assert_array_equal(bundle.plane(f"{here}.{name}", plane), expected)
    norm = tensors["model.norm.weight"]
    np.testing.assert_array_equal(bundle.weight("model.norm.weight"), norm.rows(0, norm.shape[0]))


@pytest.mark.parametrize("quantization", quant.NAMES)
def test_planes_are_aligned_and_do_not_overlap(quantization: str, compile_numpy: Callable[..., Path]) -> None:
    check_layout(open_bundle(compile_numpy("qwen3", quantization)))


def check_layout(bundle: Bundle) -> None:
    ends = [0] * len(bundle.manifest.shards)
    for plane in (plane for weight in bundle.manifest.weights.values() for plane in weight.planes):
        assert plane.offset % 256 == 0
        assert plane.offset >= ends[plane.shard]
        assert plane.size == np.prod(plane.shape) * np.dtype(plane.dtype).itemsize
        ends[plane.shard] = plane.offset + plane.size
    assert ends == [shard.size for shard in bundle.manifest.shards]


def test_small_shards_and_blocks_hold_the_same_weights(
    compile_numpy: Callable[..., Path],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    single = open_bundle(compile_numpy("qwen3", "q4f16"))
    monkeypatch.setattr(weights, "SHARD_BYTES", 8_000)
    monkeypatch.setattr(weights, "BLOCK_ELEMENTS", 500)
    with without_kernels():
        split = compile_model(
            str(tiny_checkpoints["qwen3"]), tmp_path / "split", CompileOptions(context=256, activations=("float32",))
        )
    assert len(split.manifest.shards) > 5
    check_layout(split)
    open_bundle(split.path).verify()
    for name, weight in single.manifest.weights.items():
        for plane in weight.planes:
            np.testing.assert_array_equal(split.plane(name, plane.name), single.plane(name, plane.name))


@pytest.mark.parametrize("quantization", quant.NAMES)
def test_the_rows_of_a_plane_of_tiles_can_be_restored(quantization: str) -> None:
    for rows in (1, 16, 37):
        matrix = np.random.default_rng(rows).standard_normal((rows, 70)).astype(np.float32)
        for plane in quant.by_name(quantization).pack(matrix).values():
            stored = layout.store_rows("tiles16", plane)
            assert list(stored.shape) == layout.stored_shape("tiles16", *plane.shape)
            np.testing.assert_array_equal(stored[rows // 16 - (rows % 16 == 0), 1, (rows - 1) % 16], plane[rows - 1, 1])
            restored = layout.stored_rows("tiles16", stored)
            np.testing.assert_array_equal(restored[:rows], plane)
            assert not restored[rows:].any()


def test_any_rows_of_a_weight_in_tiles_can_be_read(
    compile_numpy: Callable[..., Path],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "BLOCK_ELEMENTS", 3_000)
    checkpoint = load(str(tiny_checkpoints["qwen2"]))
    fmt = quant.by_name("q4f16")
    table = "model.embed_tokens.weight"
    parameters = {
        name: Parameter(name, (Source(name, 0, rows),), columns)
        for name, rows, columns in ((table, 509, 72), ("model.norm.weight", 72, None))
    }
    entries, shards = weights.write_weights(checkpoint, parameters, fmt, tmp_path, lambda *_: None, "tiles16")
    manifest = open_bundle(compile_numpy("qwen2", "q4f16")).manifest.model_copy(
        update={"weights": entries, "shards": shards}
    )
    bundle = Bundle(tmp_path, manifest)
    check_layout(bundle)
    expected = fmt.unpack(fmt.pack(checkpoint.tensors[table].rows(0, 509)), 72)
    for start, stop in ((0, 509), (0, 16), (5, 7), (15, 33), (508, 509)):
        np.testing.assert_array_equal(bundle.weight(table, start, stop), expected[start:stop])
    assert bundle.weight("model.norm.weight").shape == (72,)


def test_no_tensor_is_read_in_more_than_one_block_at_once(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "BLOCK_ELEMENTS", 300)
    checkpoint = load(str(tiny_checkpoints["llama"]))
    watched = {name: Watched(tensor) for name, tensor in checkpoint.tensors.items()}
    parameters = {
        name: Parameter(name, (Source(name, 0, tensor.shape[0]),), tensor.shape[1] if len(tensor.shape) > 1 else None)
        for name, tensor in checkpoint.tensors.items()
    }
    spied: Checkpoint = replace(checkpoint, tensors=watched)  # type: ignore[arg-type]
    done: list[tuple[int, int]] = []
    weights.write_weights(spied, parameters, quant.by_name("q4f16"), tmp_path, lambda *numbers: done.append(numbers))
    assert 0 < max(each.most for each in watched.values()) <= 300
    assert done == sorted(done)
    assert done[-1][0] == done[-1][1] == sum(int(np.prod(tensor.shape)) for tensor in checkpoint.tensors.values())
