"""Unpacks the archives of `make gpu-wheels` and `make gpu-prepare` on a machine without a network. Standard library
only.

The wheels are installed into a folder for PYTHONPATH, by pip if the machine's Python has it and otherwise by the pip
that is among the wheels. A virtual environment would need ensurepip, which Debian's Python lacks, and would hide
packages that the machine already has and that were therefore left out.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import Distribution
from pathlib import Path

WHEELS, PYTHON_FOLDER, NODE_FOLDER = "build/gpu-wheels", "build/gpu-python", "build/gpu-node"
# In the folder of the wheels: "node", and "web/" with Dawn and the scripts that run in Node.
NODE_ARCHIVE = "node.tar.xz"
INSTALLED = ".installed"


def install_wheels(root: Path) -> Path:
    """The folder for PYTHONPATH, with nearfar's name and version, and the wheels if there are any. Raises
    CalledProcessError if pip refuses them.
    """
    wheels, folder = sorted((root / WHEELS).glob("*.whl")), root / PYTHON_FOLDER
    # Wheels of another Python or other versions replace those that were installed.
    content = "\n".join([sys.version, *(wheel.name for wheel in wheels)])
    marker = folder / INSTALLED
    if not marker.exists() or marker.read_text() != content:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if wheels:
            packed = [wheel for wheel in wheels if wheel.name.startswith("pip-")]
            pip = ["-m", "pip"] if any(Distribution.discover(name="pip")) else [str(wheel / "pip") for wheel in packed]
            options = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-cache-dir"]
            options += ["--no-index", "--no-deps", "--no-compile", "--target", str(folder)]
            subprocess.run([sys.executable, *pip, "install", *options, *map(str, wheels)], check=True)
        declare(root, folder)
        marker.write_text(content)
    return folder


def declare(root: Path, folder: Path) -> None:
    """Put nearfar's name and version where Python looks for those of an installed package."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    information = folder / f"{project['name']}-{project['version']}.dist-info"
    information.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (information / "METADATA").write_text(metadata)


def unpack_node(root: Path) -> Path | None:
    """The folder of the packed Node.js; None if none was packed. Dawn and the scripts are put into web/, unless they
    are there already.
    """
    archive, folder = root / WHEELS / NODE_ARCHIVE, root / NODE_FOLDER
    if archive.exists() and not (folder / "node").exists():
        unpack(archive, folder)
    if not (folder / "node").exists():
        return None
    for packed in (folder / "web").rglob("*"):
        target = root / packed.relative_to(folder)
        if packed.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(packed, target)
    return folder


def unpack_prepared(prepared: Path) -> bool:
    """Whether there is a prepared folder. It is unpacked from the archive beside it if necessary."""
    archive = prepared.with_name(f"{prepared.name}.tar.xz")
    if not prepared.exists() and archive.exists():
        unpack(archive, prepared)
    return prepared.exists()


# Machine code of x86-64 is a tenth smaller with the filter, and other files are not larger.
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 27}]


def pack(archive: Path, files: dict[str, Path]) -> None:
    """``files``: folders and files by their names in the archive."""
    with lzma.open(archive, "wb", filters=FILTERS) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, path in files.items():
            tar.add(path, name)


def unpack(archive: Path, folder: Path) -> None:
    """The folder appears complete or not at all."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unfinished, filter="data")
    unfinished.rename(folder)
