"""Makes files that several workers of pytest need only once: the first worker makes a file while the others wait.

Checkpoints and bundles outlive a run, in `build/made`, until anything changes that they are made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]
MADE = ROOT / "build/made"
# What checkpoints and bundles are made with, besides the compiler, its targets and the helpers in this folder.
PACKAGES = (
    "apache-tvm", "apache-tvm-ffi", "numpy", "nvidia-cuda-nvrtc", "onnx", "safetensors", "tokenizers", "torch",
    "transformers", "ziglang",
)  # fmt: skip
# A branch and another one.
KEPT_KEYS = 2


def kept_folder(name: str) -> Path:
    """A folder that this run shares with other runs of the same sources and packages."""
    made = MADE / sources_key()
    folder = made / name
    folder.mkdir(parents=True, exist_ok=True)
    # Another process may remove the same old folder.
    with suppress(FileNotFoundError):
        os.utime(made)
        for old in sorted(MADE.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_KEYS]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


@cache
def sources_key() -> str:
    """A hash of every file of the compiler and its targets, of the tests' helpers and of the versions of packages."""
    digest = hashlib.sha256()
    files = [*(ROOT / "compiler").rglob("*"), *(ROOT / "targets").rglob("*"), *(ROOT / "tests").glob("*.py")]
    for file in sorted(files):
        if file.is_file() and file.parent.name != "__pycache__":
            digest.update(f"{file.relative_to(ROOT)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    for package in PACKAGES:
        try:
            digest.update(f"{package} {version(package)} ".encode())
        except PackageNotFoundError:
            digest.update(f"{package} is missing ".encode())
    return digest.hexdigest()[:16]


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all workers of this run of pytest share."""
    # Each worker's own folder is inside that of the run.
    base = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = base / name
    folder.mkdir(exist_ok=True)
    return folder


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """The file or folder that ``make(path)`` makes. It appears complete or not at all."""
    with FileLock(f"{path}.lock"):
        if not path.exists():
            unfinished = path.with_name(f"unfinished-{path.name}")
            # This is left over from a failed attempt.
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(path)
    return path
