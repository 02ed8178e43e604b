"""Environments of their own for packages that the tests' one does not have: the newest of each that pip and npm install
now. They are kept under build/ and made anew when a list changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, lacks

INSTALL_SECONDS = 900


def python_with(*packages: str) -> Path:
    """A Python that has them."""
    return _folder("python", packages) / "bin/python"


def node_with(*packages: str) -> Path:
    """The folder with node_modules."""
    if shutil.which("npm") is None:
        lacks("npm is not installed")
    return _folder("node", packages)


def _folder(kind: str, packages: tuple[str, ...]) -> Path:
    listed = json.dumps(packages)
    folder = ROOT / "build/installed-packages" / f"{kind}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"
    stamp = folder / "packages.json"
    if stamp.is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    command: list[str | Path]
    if kind == "python":
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALL_SECONDS)
        command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    else:
        folder.mkdir(parents=True)
        command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent", *packages]
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
    stamp.write_text(listed)
    return folder
