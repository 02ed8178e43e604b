"""The TypeScript tests with all of their cases, of which `make test` runs a selection (web/test/exhaustive.ts)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest
from conftest import ROOT

WEB = ROOT / "web"


# The usual cases have each kind once; the others differ in sizes, lengths, seeds and combinations of policies.
@pytest.mark.exhaustive
def test_all_cases_pass(node: str, swiftshader: Mapping[str, str]) -> None:
    files = [file for file in WEB.glob("test/**/*.test.ts") if "exhaustive.js" in file.read_text()]
    assert files
    done = subprocess.run(
        [node, "node_modules/vitest/vitest.mjs", "run", *(str(file.relative_to(WEB)) for file in files)],
        cwd=WEB,
        env={**swiftshader, "NEARFAR_ALL_VARIANTS": "1", "NEARFAR_FAULTS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
