"""The hooks of `@nearfar/web/react` on React 18. The TypeScript tests run them on version 19."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, lacks


@pytest.mark.exhaustive
def test_the_hooks_run_on_react_18(node: str, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        lacks("npm is not installed")
    (tmp_path / "package.json").write_text('{"private": true}')
    install = [npm, "install", "--no-audit", "--no-fund", "--save-exact", "react@18.3.1", "react-dom@18.3.1"]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        lacks(f"npm cannot install React 18: {installed.stderr.strip()[-200:]}")
    command = [node, "node_modules/vitest/vitest.mjs", "run", "test/react"]
    done = subprocess.run(
        command,
        cwd=ROOT / "web",
        env={**os.environ, "REACT_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
