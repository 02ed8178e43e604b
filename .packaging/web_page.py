"""Builds the web page of `nearfar demo`, which a wheel contains, from web/. setup.py calls this module."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools.errors import SetupError

WEB = Path(__file__).resolve().parents[1] / "web"
INDEX = WEB / "dist/page/index.html"
SOURCES = (
    "*.json",
    "*.mjs",
    "src/**/*",
    "page/**/*",
    "notices/*",
    "../LICENSE",
    "../.packaging/picojson-LICENSE",
    "../server_fallback/router/fitting/demo_policy.json",
)
"""What build.mjs reads for the page, relative to web/."""


def build_page() -> None:
    """Build the page if its sources are newer. Raises SetupError if that is impossible."""
    # A source distribution contains the page instead of its sources.
    if not (WEB / "package.json").is_file():
        if not INDEX.is_file():
            raise SetupError("the source distribution lacks web/dist/page; build one from a checkout")
        return
    if is_current():
        return
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise SetupError(
            "the wheel contains a web page, which Node.js builds: install Node.js 20.19 or newer with npm. "
            "An editable install (pip install --editable) does without the page."
        )
    if not (WEB / "node_modules").exists():
        # The package onnxruntime-node contains the CPU library; it would download the CUDA library.
        environment = {**os.environ, "ONNXRUNTIME_NODE_INSTALL": "skip"}
        run([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], environment)
    run([node, "build.mjs"], os.environ)


def is_current() -> bool:
    if not INDEX.is_file():
        return False
    built = INDEX.stat().st_mtime
    return all(file.stat().st_mtime <= built for pattern in SOURCES for file in WEB.glob(pattern))


def run(command: list[str], environment: dict[str, str] | os._Environ[str]) -> None:
    done = subprocess.run(command, cwd=WEB, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"web page: '{' '.join(command)}' failed:\n{done.stdout}{done.stderr}")
