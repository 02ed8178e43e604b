""".packaging/xgrammar_library.py: the library beside our binding, and the pins of pyproject.toml."""

from __future__ import annotations

import hashlib
import json
import tomllib
import zipfile
from pathlib import Path

import pytest
import xgrammar_library
from conftest import ROOT
from figures import read_figures
from install_size import MAX_SERVE_MB, MEASURED, closure, size_bytes
from packaging.requirements import Requirement
from setuptools.errors import SetupError
from xgrammar_library import Pin, install_library, pin, pins

from nearfar.server_fallback.text.grammar.xgrammar_binding import XGRAMMAR_VERSION

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(xgrammar_library, "FOLDER", tmp_path / "xgrammar")
    monkeypatch.delenv("NEARFAR_XGRAMMAR_WHEEL", raising=False)
    return tmp_path / "xgrammar"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of another platform that is pinned."""
    path = tmp_path / "given.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xgrammar/libxgrammar_bindings.dylib", "library")
        archive.writestr("xgrammar/libxgrammar_bindings.dylib.dSYM/Contents/libxgrammar_bindings.dylib", "symbols")
        archive.writestr("xgrammar/matcher.py", "import torch")
        archive.writestr("xgrammar-9.dist-info/licenses/LICENSE", "license")
    found = Pin("9", "macosx_99_0_arm64", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(xgrammar_library, "pins", lambda: {found.platform: found})
    return path


def test_one_version_is_pinned_everywhere() -> None:
    assert {found.version for found in pins().values()} == {XGRAMMAR_VERSION}
    assert f"xgrammar=={XGRAMMAR_VERSION}" in PYPROJECT["project"]["optional-dependencies"]["dev"]
    assert all(len(found.sha256) == 64 for found in pins().values())


def test_the_library_and_its_licenses_are_extracted_once(
    folder: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / "older.so").touch()
    monkeypatch.setenv("NEARFAR_XGRAMMAR_WHEEL", str(wheel))
    install_library()
    files = {file.name: file.read_text() for file in folder.iterdir()}
    assert files.keys() == {"LICENSE", "libxgrammar_bindings.dylib", "picojson-LICENSE", "source.txt"}
    assert (files["libxgrammar_bindings.dylib"], files["LICENSE"]) == ("library", "license")
    assert "Kazuho Oku" in files["picojson-LICENSE"]
    # The platform of the given wheel is that of ours, so one machine builds for all.
    assert pin().platform == "macosx_99_0_arm64"
    (folder / "LICENSE").write_text("as it was")
    install_library()
    assert (folder / "LICENSE").read_text() == "as it was"


def test_a_given_wheel_must_be_a_pinned_one(folder: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_XGRAMMAR_WHEEL", str(wheel.with_name("nowhere.whl")))
    with pytest.raises(SetupError, match=r"nowhere\.whl: the file does not exist"):
        install_library()
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    monkeypatch.setenv("NEARFAR_XGRAMMAR_WHEEL", str(wheel))
    with pytest.raises(SetupError, match=r"has the SHA-256 [0-9a-f]{64}, which is not that of xgrammar-9-cp311-cp311"):
        install_library()
    assert not folder.exists()


def test_without_a_network_the_message_names_the_file_and_the_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = pin()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(SetupError) as refused:
        install_library()
    assert f"pip could not download {wanted.file_name}" in str(refused.value)
    assert "Download that file elsewhere, and set NEARFAR_XGRAMMAR_WHEEL to its path." in str(refused.value)
    assert not folder.exists()


def test_an_unknown_platform_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar_library, "platform_tags", lambda: iter(["musllinux_1_2_riscv64"]))
    with pytest.raises(SetupError, match=r"cannot be built for musllinux_1_2_riscv64: .*win_amd64"):
        install_library()
    assert not folder.exists()


def test_the_server_needs_no_torch_and_little_space() -> None:
    added = closure("serve") - closure()
    assert "fastapi" in added
    assert not {name for name in closure("serve") if name.startswith(("nvidia", "torch", "transformers", "triton"))}
    assert sum(map(size_bytes, added)) < MAX_SERVE_MB * 1e6
    names = {Requirement(text).name for text in PYPROJECT["project"]["optional-dependencies"]["serve"]}
    assert "xgrammar" not in names


def test_the_size_of_every_extra_is_recorded_and_stated() -> None:
    stated = {value for figure in read_figures() for value in figure.values}
    recorded = json.loads((ROOT / "tests/bench/results/install-size.json").read_text())
    assert sorted(recorded) == sorted(["base", *MEASURED]), "run make install-size"
    assert {f"installed_mb {name}" for name in recorded} <= stated
