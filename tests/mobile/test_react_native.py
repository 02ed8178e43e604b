"""The built React Native package on Node, with onnxruntime-node instead of the native module: an app that pauses and
restarts.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from conftest import ROOT, lacks

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model

PACKAGE = ROOT / "mobile/react-native"


def test_an_app_downloads_answers_pauses_and_continues_without_a_network(node: str, tmp_path: Path) -> None:
    built = PACKAGE / "dist/index.js"
    if not built.is_file():
        lacks(f"{built} is not built ('make mobile')")
    export_model(str(CHECKPOINT), tmp_path / "bundle", CompileOptions(target="onnx", quantization="q4f16", context=256))
    (tmp_path / "documents").mkdir()
    command = [node, "test/phone.mjs", str(tmp_path / "bundle"), str(tmp_path / "documents")]
    found = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    output = json.loads(found.stdout.splitlines()[-1])
    assert output["target"] == "onnx"
    assert output["first"] == ["27 + 58 = 85", 0]
    assert output["texts"] == ["27 + 58 = 85"] * 4
    # The engine was unloaded on the memory warning, and loaded again once.
    assert output["recoveries"] == 1
    text, cached = output["second"]
    assert text == "30 + 12 = 42"
    assert cached > 10
    assert output["refused"]["code"] == "device_error"
    assert "no WebAssembly" in output["refused"]["message"]


def test_metro_can_bundle_the_built_package() -> None:
    built = PACKAGE / "dist/index.js"
    if not built.is_file():
        lacks(f"{built} is not built ('make mobile')")
    code = built.read_text()
    # The package imports neither modules of Node nor unknown addresses.
    assert re.findall(r'\bfrom\s*"[^"]+"|\bimport\s*"[^"]+"|\bimport\((?!\s*"\./)', code) == []
