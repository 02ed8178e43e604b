"""The links between the READMEs, and the site that `make docs` builds of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from links import ROOT, anchors, broken_in_markdown, broken_in_site, readmes


def test_every_link_in_the_readmes_leads_somewhere() -> None:
    assert ROOT / "README.md" in readmes()
    assert broken_in_markdown(readmes()) == []


def test_no_section_of_a_readme_appears_twice() -> None:
    """A merge can leave an older version of a section."""
    for file in readmes():
        sections = [line for line in file.read_text().splitlines() if line.startswith("## ")]
        assert len(set(sections)) == len(sections), file


def test_broken_links_are_found(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(
        "# One `two` (three)!\n\n## Same\n\n## Same\n\n"
        "```\n# not a heading, [no link](nowhere.md)\n```\n\nx [y](#b) z\n"
    )
    assert anchors(file.read_text()) == {"one-two-three", "same", "same-1"}
    assert broken_in_markdown([file]) == [f"{file}: #b"]
    file.write_text(
        "# A\n\n[1](#a) [2](b.md) ![3](c.png) [4](https://example.com/d) [5](a.md#a) [6](a.md#b) [`7` [x]](e%20f.md)\n"
    )
    (tmp_path / "e f.md").write_text("")
    assert [line.rpartition(" ")[2] for line in broken_in_markdown([file])] == ["b.md", "c.png", "a.md#b"]


def test_broken_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="#x"></a><a href="#y"></a><a href="sub/b.html#z"></a><a href="sub/c.html"></a>'
    )
    (tmp_path / "sub/b.html").write_text(
        '<a href="../a.html#x"></a><a href="../a.html#w"></a><a href="https://example.com/"></a>'
    )
    assert sorted(broken_in_site(tmp_path)) == [
        "a.html: #y",
        "a.html: sub/b.html#z",
        "a.html: sub/c.html",
        "sub/b.html: ../a.html#w",
    ]


def test_the_pages_of_pythons_api_have_what_programs_call(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "web/docs/pages.py", str(tmp_path)], cwd=ROOT, check=True)
    agents = (tmp_path / "python_agents_in_python.md").read_text()
    assert "from nearfar.server_fallback.agent import function_tool" in agents
    assert "\nAgent(\n    engine: ChatSource,\n    tools: Sequence[ToolSource],\n    *,\n    approve:" in agents
    assert all(f"## {name}\n" in agents for name in ("mcp_tools", "AgentResult", "CallEnded"))
    opening = (tmp_path / "python_compile_open_and_download.md").read_text()
    assert "async def open_executor(\n    model: str | Path,\n    options:" in opening


@pytest.mark.exhaustive
def test_the_docs_are_built_without_a_broken_link(node: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "web/docs/pages.py", "build/docs-pages"], cwd=ROOT, check=True)
    subprocess.run([node, "node_modules/typedoc/bin/typedoc", "--out", str(tmp_path)], cwd=ROOT / "web", check=True)
    assert (tmp_path / "documents/A_plain_page.html").is_file()
    assert "fit_calibration" in (tmp_path / "documents/Calibrated_decisions.html").read_text()
    assert "NVIDIA H200" in (tmp_path / "documents/Measured_devices.html").read_text()
    assert "useChat" in (tmp_path / "modules/_nearfar_web_react.html").read_text()
    assert (tmp_path / "documents/Contributing.html").is_file()
    assert broken_in_site(tmp_path) == []
