"""New folders: none is left half-written, two processes cannot write one path, and leftovers of killed processes are
removed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearfar.compiler.bundle.new_folder import discard_partial, new_file, new_folder
from nearfar.compiler.runtime.errors import OutputError

# Creates a partial folder, reports it, and waits to be killed.
HALF = """
import sys
from pathlib import Path
from nearfar.compiler.bundle.new_folder import new_folder
with new_folder(Path(sys.argv[1]), force=True) as folder:
    (folder / "half").mkdir()
    (folder / "half/file").touch()
    print("half", flush=True)
    sys.stdin.read()
"""


def start_half(output: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HALF, str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def test_a_new_folder_appears_when_its_block_ends(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a/b", force=False) as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "a/b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a/b/file").read_text() == "x"


@pytest.mark.parametrize("kind", ["folder", "replaced folder", "file", "replaced file"])
def test_all_bytes_are_on_the_disk_before_the_new_name_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    events: list[int | str] = []
    flush, replace = os.fsync, Path.replace

    def record_flush(descriptor: int) -> None:
        events.append(os.fstat(descriptor).st_ino)
        flush(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        events.append("renamed")
        return replace(path, target)

    def write(text: str) -> None:
        if kind.endswith("file"):
            with new_file(output, force=True) as path:
                path.write_text(text)
        else:
            with new_folder(output, force=True) as folder:
                (folder / "kernels").mkdir()
                for file in ("manifest.json", "kernels/a.wgsl"):
                    (folder / file).write_text(text)

    if kind.startswith("replaced"):
        write("old")
    monkeypatch.setattr(os, "fsync", record_flush)
    monkeypatch.setattr(Path, "replace", record_rename)
    write("new")
    written = {path.stat().st_ino for path in (output, *output.rglob("*"))}
    assert set(events[: len(written)]) == written
    assert events[len(written) :] == ["renamed", tmp_path.stat().st_ino]


def test_an_existing_folder_stays_without_force_and_is_replaced_with_it(tmp_path: Path) -> None:
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
def test_force_does_not_replace_a_folder_that_is_not_a_bundle(is_folder: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    if is_folder:
        output.mkdir()
        (output / "thesis.txt").write_text("mine")
    else:
        output.write_text("mine")
    with (
        pytest.raises(OutputError, match="is not a bundle, so it is not replaced"),
        new_folder(output, force=True),
    ):
        pass
    assert (output / "thesis.txt" if is_folder else output).read_text() == "mine"


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out", force=False) as folder:
        (folder / "file").write_text("x")
    assert (tmp_path / "out/file").exists()


def test_the_working_folder_is_treated_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="exists already"), new_folder(Path("."), force=False):
        pass


@pytest.mark.parametrize("existing", [True, False])
def test_an_error_in_the_block_changes_nothing(existing: bool, tmp_path: Path) -> None:
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


def test_a_path_below_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot be written"), new_folder(tmp_path / "file/out", force=False):
        pass


def test_the_working_folder_may_become_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def fail(*_: object) -> Path:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OutputError, match="Permission denied"), new_folder(bundle, force=True):
        pass
    assert (bundle / "manifest.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_path_that_another_process_writes_is_refused_until_that_process_is_killed(
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    with start_half(output) as process:
        with pytest.raises(OutputError, match="out: another process is writing it"), new_folder(output, force=True):
            pass
        discard_partial(output)
        assert (tmp_path / ".out.partial/half/file").exists()
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"]
    with new_folder(output, force=False) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "file"]


def test_the_partial_folder_of_a_killed_process_can_be_discarded(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    discard_partial(tmp_path / "out")
    discard_partial(tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_a_killed_process_was_replacing_is_restored(tmp_path: Path) -> None:
    replaced = tmp_path / ".out.replaced"
    replaced.mkdir()
    (replaced / "manifest.json").write_text("old")
    with pytest.raises(OutputError, match="exists already"), new_folder(tmp_path / "out", force=False):
        pass
    assert (tmp_path / "out/manifest.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_was_created_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"

    def make_it_meanwhile() -> None:
        with new_folder(output, force=False) as folder:
            (folder / "manifest.json").write_text("second")
            output.mkdir()
            (output / "manifest.json").write_text("first")

    with pytest.raises(OutputError, match="was created by another program in the meantime"):
        make_it_meanwhile()
    assert (output / "manifest.json").read_text() == "first"
    assert list(tmp_path.iterdir()) == [output]


def test_a_link_stays_and_the_folder_that_it_points_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "far/target", tmp_path / "link"
    link.symlink_to(target)
    for text in ("first", "second"):
        with new_folder(link, force=text == "second") as folder:
            (folder / "manifest.json").write_text(text)
        assert os.readlink(link) == str(target)
        assert (target / "manifest.json").read_text() == text
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link", "manifest.json", "target"]
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(OutputError, match="link: cannot be written"), new_folder(link, force=True):
        pass
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["x" * 256, "x" * 250, "a/" * 3000, "nul\0byte", "surrogate\udc80/x"])
def test_a_path_that_the_system_refuses_is_an_output_error(name: str, tmp_path: Path) -> None:
    if name.startswith("surrogate"):
        (tmp_path / "surrogate\udc80").write_text("a file")
    with (
        pytest.raises(OutputError, match=r"cannot be written|not a valid path"),
        new_folder(tmp_path / name, force=False),
    ):
        pass
