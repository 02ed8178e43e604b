"""Puts xgrammar's native library and its licenses beside the binding that loads it (text/grammar/xgrammar_binding.py).

pip would install the package xgrammar with torch, transformers and triton: 5 GB, none of which the library needs. So
the build takes the library, 3 MB, from the wheel that xgrammar publishes for the platform. pyproject.toml pins the
version and the hashes. setup.py calls this module; `python .packaging/xgrammar_library.py` does it for a checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import platform_tags
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "server_fallback/text/grammar/xgrammar"
# The library contains picojson, whose license the wheel of xgrammar lacks.
PICOJSON_LICENSE = Path(__file__).with_name("picojson-LICENSE")
# Names the wheel that the library is from.
SOURCE = "source.txt"
LIBRARY_SUFFIXES = (".so", ".dylib", ".dll")
VARIABLE = "NEARFAR_XGRAMMAR_WHEEL"


@dataclass(frozen=True, slots=True)
class Pin:
    """A published wheel. Those for Python 3.11 are pinned; their libraries work with every version of Python."""

    version: str
    platform: str
    """The platform tags of the file name, joined by dots: those of our own wheel as well."""
    sha256: str

    @property
    def file_name(self) -> str:
        return f"xgrammar-{self.version}-cp311-cp311-{self.platform}.whl"


def pins() -> Mapping[str, Pin]:
    """The pinned wheels by platform."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["nearfar"]["xgrammar"]
    return {platform: Pin(table["version"], platform, sha256) for platform, sha256 in table["wheels"].items()}


def pin() -> Pin:
    """The wheel that $NEARFAR_XGRAMMAR_WHEEL names, or else the one for this platform."""
    given = os.environ.get(VARIABLE)
    if given:
        return pin_of(Path(given))
    for tag in platform_tags():
        for platform, found in pins().items():
            if tag in platform.split("."):
                return found
    raise SetupError(
        f"nearfar cannot be built for {next(iter(platform_tags()))}: TVM and xgrammar publish no wheels for it, "
        f"only for {', '.join(pins())}"
    )


def pin_of(wheel: Path) -> Pin:
    """Raises SetupError for a file that is not one of the pinned wheels."""
    if not wheel.is_file():
        raise SetupError(f"{VARIABLE}={wheel}: the file does not exist")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for found in pins().values():
        if found.sha256 == sha256:
            return found
    names = ", ".join(found.file_name for found in pins().values())
    raise SetupError(f"{VARIABLE}={wheel}: has the SHA-256 {sha256}, which is not that of {names}")


def install_library() -> None:
    """Fill FOLDER, unless the pinned library is there. Raises SetupError."""
    wanted = pin()
    source = f"{wanted.file_name} sha256:{wanted.sha256}\n"
    if (FOLDER / SOURCE).is_file() and (FOLDER / SOURCE).read_text() == source:
        return
    given = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix="nearfar-xgrammar-") as folder:
        extract(Path(given) if given else download(wanted, Path(folder)))
    shutil.copy(PICOJSON_LICENSE, FOLDER)
    (FOLDER / SOURCE).write_text(source)


def download(wanted: Pin, folder: Path) -> Path:
    """Download the wheel with pip, from the index that the user's pip is configured with. pip checks the hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"xgrammar=={wanted.version} --hash=sha256:{wanted.sha256}\n")
    platforms = [f"--platform={tag}" for tag in wanted.platform.split(".")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary=:all:", "--implementation=cp", "--python-version=3.11", "--abi=cp311", *platforms),
            *("--require-hashes", "--requirement", str(requirements), "--dest", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    wheel = folder / wanted.file_name
    if done.returncode != 0 or not wheel.is_file():
        raise SetupError(
            f"pip could not download {wanted.file_name}, whose library constrains the server's answers: "
            f"{done.stderr.strip()}\nDownload that file elsewhere, and set {VARIABLE} to its path."
        )
    return wheel


def extract(wheel: Path) -> None:
    """Write the wheel's library and licenses into FOLDER, which then contains nothing else."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parent, _, base = name.rpartition("/")
            if (parent == "xgrammar" and base.endswith(LIBRARY_SUFFIXES)) or (parent.endswith("/licenses") and base):
                (FOLDER / base).write_bytes(archive.read(name))


if __name__ == "__main__":
    install_library()
