"""Bundles on disk: defects are detected when a bundle is opened or verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.bundle.manifest import FORMAT_VERSION
from nearfar.compiler.runtime.errors import BundleError


@pytest.fixture
def bundle(compile_light: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a bundle that a test may damage."""
    return Path(shutil.copytree(compile_light("qwen2", "q4f16"), tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_valid_bundle_opens_and_verifies(bundle: Path) -> None:
    open_bundle(bundle).verify()


def test_a_folder_without_a_manifest_is_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path)
    with pytest.raises(BundleError, match="does not exist; create it with"):
        open_bundle(tmp_path / "missing")
    with pytest.raises(BundleError, match="of a model of the store, 'nearfar show missing' prints the bundles"):
        open_bundle(Path("missing"))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}"])
def test_a_corrupt_manifest_is_a_bundle_error(content: bytes, bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json.*compile the bundle again"):
        open_bundle(bundle)


@pytest.mark.parametrize("version", [0, 1, FORMAT_VERSION + 1, "2", None])
def test_another_format_version_is_refused_by_number(version: object, bundle: Path) -> None:
    edit(bundle, lambda manifest: manifest.update(format_version=version))
    with pytest.raises(BundleError, match=f"has format version {version}, but this nearfar reads {FORMAT_VERSION}"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("plans"),
        lambda manifest: manifest.update(new_key=1),
        lambda manifest: manifest["plans"]["generate"]["steps"][0].pop("op"),
        lambda manifest: manifest["spec"].pop("hidden_size"),
        lambda manifest: manifest.update(context="many"),
        lambda manifest: manifest["weights"]["model.norm.weight"]["planes"][0].update(dtype="int8"),
    ],
)
def test_a_manifest_with_keys_missing_added_or_wrong_is_a_bundle_error(
    change: Callable[[dict[str, Any]], object], bundle: Path
) -> None:
    edit(bundle, change)
    with pytest.raises(BundleError, match="compile the bundle again"):
        open_bundle(bundle)


def test_opening_a_bundle_detects_a_truncated_shard(bundle: Path) -> None:
    shard = bundle / "weights/00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"00000\.bin: has [\d,]+ bytes, the manifest says"):
        open_bundle(bundle)
    shard.unlink()
    with pytest.raises(BundleError, match=r"00000\.bin: is missing"):
        open_bundle(bundle)


@pytest.mark.parametrize("file", ["weights/00000.bin", "tokenizer.json", "kernel"])
def test_verify_detects_a_flipped_bit_in_any_file(file: str, bundle: Path) -> None:
    path = next((bundle / "kernels").iterdir()) if file == "kernel" else bundle / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    opened = open_bundle(bundle)
    with pytest.raises(BundleError, match=r"is corrupt \(its SHA-256 "):
        opened.verify()
    path.unlink()
    with pytest.raises(BundleError, match="is missing"):
        open_bundle(bundle).verify()
