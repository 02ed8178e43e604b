"""The runner of a command on a machine without a device for the bundle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.cli import main
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.webgpu import device


def test_without_a_device_for_the_target_a_command_says_so_and_runs_on_the_cpu(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "preferred_adapter", lambda _: None)
    assert main(["run", str(tiny_bundle), "hi", "--raw", "--max-tokens", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "numpy" in json.loads(out)["device"]
    assert "note: no WebGPU adapter was found" in err
    assert "numpy runner instead" in err
    assert "--runner" not in err
    # A runner that the user names is not replaced.
    assert main(["run", str(tiny_bundle), "hi", "--raw", "--max-tokens", "2", "--runner", "webgpu"]) != 0
    assert capsys.readouterr().err.rstrip().endswith("or use --runner numpy")


def test_what_has_no_option_for_the_runner_is_advised_to_compile_for_the_cpu(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "preferred_adapter", lambda _: None)
    with pytest.raises(DeviceError, match="nearfar compile MODEL --target cpu") as error:
        open_runner("webgpu", open_any(tiny_bundle), Limits())
    assert "--runner" not in error.value.message


def test_the_search_for_adapters_has_a_runtime_folder_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with device.runtime_dir():
        assert Path(os.environ["XDG_RUNTIME_DIR"]).is_dir()
    assert "XDG_RUNTIME_DIR" not in os.environ
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    with device.runtime_dir():
        assert os.environ["XDG_RUNTIME_DIR"] == "/run/user/7"
