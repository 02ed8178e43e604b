"""tests/conformance/adapters.json: adapters that Python and TypeScript read alike."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nearfar.compiler.bundle.entries import LoraEntry
from nearfar.compiler.formats.peft import CONFIG, WEIGHTS, read_adapter
from nearfar.compiler.runtime.errors import NearfarError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "conformance/adapters.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_adapters_have_the_values_or_the_error_of_the_vectors(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(case["config"]))
    (tmp_path / WEIGHTS).write_bytes(base64.b64decode(case["weights"]))
    states = {name: SimpleNamespace(shape=["M", *shape]) for name, shape in VECTORS["shapes"].items()}
    manifest: Any = SimpleNamespace(
        model=VECTORS["model"], lora=LoraEntry.model_validate(VECTORS["lora"]), states=states
    )
    if "error" in case:
        with pytest.raises(NearfarError, match=case["error"]):
            read_adapter(tmp_path, manifest)
        return
    found = read_adapter(tmp_path, manifest)
    assert found.keys() == case["states"].keys()
    for name, values in case["states"].items():
        np.testing.assert_array_equal(found[name].reshape(-1), np.array(values, np.float32))
