"""PyTorch's .bin files: the tensors of safetensors, in one file or several, and never code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_families import make_family
from safetensors.torch import load_file

from nearfar.compiler.formats import load
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make_family("olmo2", tmp_path)
    return tmp_path


def as_bin(folder: Path, parts: int = 1, dtype: torch.dtype = torch.float32) -> dict[str, np.ndarray]:
    """Replace the folder's safetensors by .bin files. Returns the tensors."""
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    if parts == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        files = [f"pytorch_model-{number:05d}-of-{parts:05d}.bin" for number in range(1, parts + 1)]
        shards = {file: dict(list(tensors.items())[number::parts]) for number, file in enumerate(files)}
        for file, shard in shards.items():
            torch.save(shard, folder / file)
        weight_map = {name: file for file, shard in shards.items() for name in shard}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_those_that_were_saved(parts: int, dtype: torch.dtype, saved: Path) -> None:
    expected = as_bin(saved, parts, dtype)
    found = load(str(saved)).tensors
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.shape == expected[name].shape
        np.testing.assert_array_equal(tensor.rows(0, tensor.shape[0]), expected[name])
        np.testing.assert_array_equal(tensor.rows(1, 3), expected[name][1:3])


class Code:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self._path,))


@pytest.mark.parametrize("plain", [False, True])
def test_code_is_never_run(plain: bool, saved: Path) -> None:
    as_bin(saved)
    proof = saved / "ran"
    if plain:
        (saved / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Code(proof)}))
    else:
        torch.save({"x": Code(proof)}, saved / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"contains more than tensors, such as code|cannot be read"):
        load(str(saved))
    assert not proof.exists()


def test_damaged_and_incomplete_files_are_named(saved: Path) -> None:
    as_bin(saved, 2)
    part = saved / "pytorch_model-00002-of-00002.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.bin: cannot be read"):
        load(str(saved))
    part.unlink()
    with pytest.raises(
        CheckpointError, match=r"00002-of-00002\.bin is missing, though pytorch_model\.bin\.index\.json"
    ):
        load(str(saved))


def test_other_dtypes_are_refused(saved: Path) -> None:
    as_bin(saved, 1, torch.float64)
    tensor = load(str(saved)).tensors["model.norm.weight"]
    with pytest.raises(UnsupportedModel, match="dtype float64"):
        tensor.rows(0, 1)
