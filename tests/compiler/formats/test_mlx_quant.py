"""Folders that mlx-lm quantized: the logits of mlx-lm, the codes of MLX, and configurations that we refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_families import TOKENS, make_family
from tolerances import relative_error

from nearfar.compiler.errors import CheckpointError, UnsupportedModel
from nearfar.compiler.formats import load
from nearfar.compiler.formats.packed_columns import unpack_stream
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference

pytest.importorskip("mlx.core")

WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# For each name: the family, its bits and group size, and the modules with other ones.
FOLDERS: Mapping[str, tuple[str, int, int, Mapping[str, Any]]] = {
    "smollm4": ("smollm3", 4, 64, {}),
    "olmo3": ("olmo2", 3, 32, {"model.layers.0.self_attn.v_proj": {"bits": 6, "group_size": 32}}),
    "granite5": ("granite", 5, 128, {"model.layers.1.mlp.down_proj": False}),
}
SCRIPT = """
import json, sys
import mlx.core as mx
import numpy as np
from mlx_lm import convert, load

for folder, (bits, group, modules) in json.loads(sys.argv[1]).items():
    def choose(path, module, modules=modules):
        if not hasattr(module, "to_quantized"):
            return False
        return modules.get(path, True)
    convert(folder, folder + "/mlx", quantize=True, q_bits=bits, q_group_size=group, quant_predicate=choose)
    model, _ = load(folder + "/mlx")
    np.save(folder + "/logits.npy", np.array(model(mx.array([json.loads(sys.argv[2])]))[0].astype(mx.float32)))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """mlx-lm's folders, each with its logits beside it."""
    found = {}
    for name, (family, *_) in FOLDERS.items():
        found[name] = tmp_path_factory.mktemp(name)
        make_family(family, found[name], **WIDE)
        # mlx-lm reads the key that transformers wrote before it had a section for RoPE.
        config = json.loads((found[name] / "config.json").read_text())
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        (found[name] / "config.json").write_text(json.dumps(config))
    jobs = {str(found[name]): rest for name, (_, *rest) in FOLDERS.items()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(jobs), json.dumps(TOKENS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("name", FOLDERS)
def test_logits_are_those_of_mlx_lm(name: str, folders: Mapping[str, Path]) -> None:
    _, bits, group, modules = FOLDERS[name]
    checkpoint = load(str(folders[name] / "mlx"))
    expected = {(bits, group), *((each["bits"], each["group_size"]) for each in modules.values() if each)}
    forms = {(int(form[1]), int(form[3:].partition("b")[0])) for form in checkpoint.stored_forms}
    assert forms == expected
    reference = CheckpointReference(checkpoint, len(TOKENS))
    found = reference.logits(next(iter(reference.hidden([TOKENS]))))
    assert relative_error(found, np.load(folders[name] / "logits.npy")) < 1e-4


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_those_of_mlx(bits: int) -> None:
    import mlx.core as mx

    weights = np.random.default_rng(bits).normal(size=(5, 96)).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(weights), group_size=32, bits=bits)
    codes = unpack_stream(np.array(packed), bits).astype(np.float32).reshape(5, 3, 32)
    found = codes * np.array(scales)[..., None] + np.array(biases)[..., None]
    expected = np.array(mx.dequantize(packed, scales, biases, group_size=32, bits=bits))
    np.testing.assert_allclose(found.reshape(5, 96), expected, rtol=1e-6, atol=1e-6)


def change(folder: Path, target: Path, **values: Any) -> Path:
    """A copy of a folder whose section "quantization" has other values."""
    target.mkdir()
    for file in (folder / "mlx").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["quantization"] |= values
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"mode": "nvfp4"}, UnsupportedModel, "'mode' is 'nvfp4'"),
        ({"bits": 7}, UnsupportedModel, "'bits' is 7"),
        ({"group_size": 48}, UnsupportedModel, "'group_size' is 48"),
        ({"rotation": 3}, UnsupportedModel, "unknown key 'rotation'"),
        ({"bits": 8}, CheckpointError, r"scales has dtype .* for 8 bits in groups of 64"),
        ({"model.layers.0.mlp.up_proj": False}, CheckpointError, "up_proj is not quantized by 'quantization'"),
    ],
)
def test_a_configuration_that_does_not_match_is_refused(
    values: dict[str, Any], error: type[Exception], words: str, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        load(str(change(folders["smollm4"], tmp_path / "changed", **values)))
