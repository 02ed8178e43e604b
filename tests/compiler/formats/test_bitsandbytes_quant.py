"""Folders that transformers quantized with bitsandbytes: transformers' logits, bitsandbytes' weights, and files that
we refuse.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import TOKENS
from safetensors.numpy import load_file, save_file
from tiny_models import make_checkpoint, write_tokenizer
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import Checkpoint, StoredMatrix
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

pytestmark = [
    # Not importorskip: it imports torch's compiler in every process that collects tests.
    pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:MatMul8bitLt"),
]

# For each name: the checkpoint, transformers' settings and the formats of the matrices that we read. Rows of 72 and 144
# elements do not consist of complete blocks of 64.
FOLDERS: Mapping[str, tuple[str, Mapping[str, Any], set[str]]] = {
    "nf4": ("qwen3_wide", {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, {"nf4"}),
    "fp4": ("llama_wide", {"bnb_4bit_quant_type": "fp4"}, {"fp4"}),
    "crossing": ("phi3", {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, {"nf4"}),
    "int8": ("qwen2", {"load_in_8bit": True}, {"q8c"}),
}


@pytest.fixture(scope="module")
def plain_kernels() -> Iterator[None]:
    """On CPUs with bfloat16 instructions, bitsandbytes packs weights anew, but only whole blocks of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
        yield


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    plain_kernels: None,  # noqa: ARG001
) -> Mapping[str, tuple[Path, npt.NDArray[np.float32]]]:
    """The folders, with transformers' logits."""
    import torch
    import transformers

    found = {}
    for name, (checkpoint, settings, _) in FOLDERS.items():
        plain, folder = (tmp_path_factory.mktemp(name) / each for each in ("plain", "quantized"))
        plain.mkdir()
        make_checkpoint(checkpoint, plain)
        four = {} if name == "int8" else {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32}
        model = transformers.AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=transformers.BitsAndBytesConfig(**four, **settings), dtype=torch.float32
        )
        model.save_pretrained(folder)
        write_tokenizer(folder)
        with torch.no_grad():
            found[name] = folder, model(torch.tensor([TOKENS])).logits[0].float().numpy()
    return found


def logits_of(checkpoint: Checkpoint) -> npt.NDArray[np.float32]:
    reference = CheckpointReference(checkpoint, len(TOKENS))
    return reference.logits(next(iter(reference.hidden([TOKENS]))))


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_transformers(name: str, folders: Mapping[str, Any]) -> None:
    if name == "crossing":
        import torch

        if torch.backends.cpu.get_cpu_capability() == "AVX512":
            pytest.skip("bitsandbytes computes rows that end within a block wrongly with AVX-512")
    folder, expected = folders[name]
    checkpoint = load(str(folder))
    assert set(checkpoint.stored_forms) == FOLDERS[name][2]
    # With 8 bits, transformers rounds the activations too.
    assert relative_error(logits_of(checkpoint), expected) < (0.05 if name == "int8" else 1e-4)


def test_weights_of_8_bits_are_those_of_bitsandbytes(folders: Mapping[str, Any]) -> None:
    import torch
    from bitsandbytes.functional import int8_vectorwise_dequant

    folder, _ = folders["int8"]
    stored = load_file(folder / "model.safetensors")
    module = "model.layers.1.mlp.down_proj"
    codes, scales = (torch.from_numpy(stored[f"{module}.{kind}"]) for kind in ("weight", "SCB"))
    found = load(str(folder)).tensors[f"{module}.weight"].rows(0, len(codes))
    np.testing.assert_allclose(found, int8_vectorwise_dequant(codes, scales).numpy(), rtol=1e-6)


@pytest.mark.parametrize(("name", "most"), [("nf4", 0.006), ("fp4", 0.005)])
def test_codes_of_8_bits_differ_little_from_the_table(name: str, most: float, folders: Mapping[str, Any]) -> None:
    matrices = [each for each in load(str(folders[name][0])).tensors.values() if isinstance(each, StoredMatrix)]
    assert {matrix.form.name for matrix in matrices} == {"q8g64"}
    for matrix in matrices:
        rows = matrix.shape[0]
        exact, stored = matrix.rows(0, rows), matrix.form.unpack(matrix.planes(0, rows), matrix.shape[1])
        assert 0 < np.linalg.norm(stored - exact) / np.linalg.norm(exact) < most
        part = matrix.form.unpack(matrix.planes(3, 8), matrix.shape[1])
        np.testing.assert_array_equal(part, stored[3:8])
        np.testing.assert_array_equal(matrix.rows(3, 8), exact[3:8])


def changed(folder: Path, target: Path, tensor: str, change: Any, **config: Any) -> Path:
    """A copy whose first tensor of a kind is changed, or absent."""
    shutil.copytree(folder, target)
    tensors = dict(load_file(target / "model.safetensors"))
    name = next(name for name in tensors if name.endswith(tensor))
    value = change(tensors.pop(name))
    if value is not None:
        tensors[name] = np.asarray(value)
    save_file(tensors, target / "model.safetensors")
    described = json.loads((target / "config.json").read_text())
    described["quantization_config"] |= config
    (target / "config.json").write_text(json.dumps(described))
    return target


def as_json(**values: Any) -> Any:
    """Other values in a module's state."""

    def change(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.frombuffer(json.dumps({**json.loads(data.tobytes()), **values}).encode(), np.uint8)

    return change


STATE = "quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("name", "tensor", "change", "error", "words"),
    [
        ("nf4", STATE, as_json(blocksize=128), CheckpointError, "absmax has dtype U8 and shape"),
        ("nf4", STATE, as_json(shape=[2**40, 2**40]), CheckpointError, "expected two sizes"),
        ("nf4", STATE, as_json(shape=[64, 128]), CheckpointError, "weight has dtype U8 and shape"),
        ("nf4", STATE, as_json(nested_offset=None), CheckpointError, "'nested_offset' is None"),
        ("nf4", STATE, as_json(nested_blocksize=64), UnsupportedModel, "'nested_blocksize' is 64"),
        ("nf4", STATE, lambda data: data[:-3], CheckpointError, "not valid JSON"),
        ("nf4", "weight.quant_map", lambda data: data * 3, CheckpointError, "outside of -1 to 1"),
        ("nf4", "nested_absmax", lambda _: None, CheckpointError, "nested_absmax is missing"),
        ("fp4", "weight.absmax", lambda data: data[1:], CheckpointError, "absmax has dtype F32 and shape"),
        ("int8", "weight_format", lambda data: data + 1, UnsupportedModel, "an order of elements for a kernel"),
        ("int8", "SCB", lambda data: data[1:], CheckpointError, "SCB has dtype F32 and shape"),
    ],
)
def test_damaged_tensors_are_refused(
    name: str, tensor: str, change: Any, error: type[Exception], words: str, folders: Mapping[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        load(str(changed(folders[name][0], tmp_path / "changed", tensor, change)))


def test_an_unknown_key_is_refused(folders: Mapping[str, Any], tmp_path: Path) -> None:
    folder = changed(folders["nf4"][0], tmp_path / "changed", "absmax", lambda data: data, rotation="hadamard")
    with pytest.raises(UnsupportedModel, match="unknown key 'rotation'"):
        load(str(folder))
