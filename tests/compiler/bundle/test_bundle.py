"""Bundles on disk: what is wrong with one is found when it is opened or verified, and none is left half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.bundle.folder import new_folder, open_bundle
from nearfar.compiler.bundle.manifest import FORMAT_VERSION
from nearfar.compiler.errors import BundleError, OutputError


@pytest.fixture
def bundle(compile_tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """A bundle of one's own, to spoil."""
    return Path(shutil.copytree(compile_tiny("qwen2", "q4f16"), tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_sound_bundle_opens_and_verifies(bundle: Path) -> None:
    open_bundle(bundle).verify()


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path)
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path / "missing")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"{}"])
def test_a_corrupt_manifest_is_a_bundle_error(content: bytes, bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json.*compile the bundle again"):
        open_bundle(bundle)


@pytest.mark.parametrize("version", [0, 1, FORMAT_VERSION + 1, "2", None])
def test_another_format_version_is_named(version: object, bundle: Path) -> None:
    edit(bundle, lambda manifest: manifest.update(format_version=version))
    with pytest.raises(BundleError, match=f"has format version {version}, this nearfar reads {FORMAT_VERSION}"):
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
def test_a_manifest_with_keys_missing_added_or_wrong_is_a_bundle_error(change: Callable[[dict[str, Any]], object], bundle: Path) -> None:
    edit(bundle, change)
    with pytest.raises(BundleError, match="compile the bundle again"):
        open_bundle(bundle)


def test_a_truncated_shard_is_found_when_the_bundle_is_opened(bundle: Path) -> None:
    shard = bundle / "weights/00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"00000\.bin: has [\d,]+ bytes, the manifest says"):
        open_bundle(bundle)
    shard.unlink()
    with pytest.raises(BundleError, match=r"00000\.bin: is missing"):
        open_bundle(bundle)


@pytest.mark.parametrize("file", ["weights/00000.bin", "tokenizer.json", "kernel"])
def test_a_flipped_bit_in_any_file_is_found_by_verify(file: str, bundle: Path) -> None:
    path = next((bundle / "kernels").iterdir()) if file == "kernel" else bundle / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    opened = open_bundle(bundle)
    with pytest.raises(BundleError, match=r"is corrupt \(SHA-256 "):
        opened.verify()
    path.unlink()
    with pytest.raises(BundleError, match="is missing"):
        open_bundle(bundle).verify()


# --- writing -----------------------------------------------------------------------------------------------------------------------


def test_a_new_folder_appears_when_its_block_ends(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a/b", force=False) as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a/b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a/b/file").read_text() == "x"


def test_a_folder_that_exists_is_kept_without_force_and_replaced_with_it(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "manifest.json").write_text("old")
    with pytest.raises(OutputError, match="exists already"), new_folder(output, force=False):
        pass
    with new_folder(output, force=True) as folder:
        (folder / "manifest.json").write_text("new")
        assert (output / "manifest.json").read_text() == "old"
    assert (output / "manifest.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("is_folder", [True, False])
def test_force_refuses_to_replace_what_is_no_bundle(is_folder: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    if is_folder:
        output.mkdir()
        (output / "thesis.txt").write_text("mine")
    else:
        output.write_text("mine")
    with pytest.raises(OutputError, match="is not a bundle, so --force does not replace it"), new_folder(output, force=True):
        pass
    assert (output / "thesis.txt" if is_folder else output).read_text() == "mine"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out", force=False) as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "out/file").exists()


def test_the_working_folder_is_taken_or_refused_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="exists already"), new_folder(Path("."), force=False):
        pass


@pytest.mark.parametrize("existing", [True, False])
def test_an_error_in_the_block_leaves_all_as_it_was(existing: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    if existing:
        output.mkdir()
        (output / "manifest.json").write_text("old")

    def fail() -> None:
        with new_folder(output, force=True) as folder:
            (folder / "manifest.json").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == ([output] if existing else [])
    assert not existing or (output / "manifest.json").read_text() == "old"


def test_a_place_below_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot be written"), new_folder(tmp_path / "file/out", force=False):
        pass


def test_the_folder_one_stands_in_may_become_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with new_folder(Path(), force=False) as folder:
        (folder / "made").touch()
    assert (here / "made").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_bundle_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text("old")
    rename = Path.rename

    def fail_for_the_new_one(path: Path, target: Path) -> Path:
        if ".partial-" in path.name:
            raise OSError(13, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)
    with pytest.raises(OutputError, match="Permission denied"), new_folder(bundle, force=True):
        pass
    assert (bundle / "manifest.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
