""".packaging/web_page.py: when the build of a wheel builds the page, and why it cannot."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import web_page
from conftest import ROOT
from setuptools.errors import SetupError


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a page whose build writes the text of page/main.ts, and no Node.js."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page/main.ts").write_text("first")
    (tmp_path / "package.json").write_text("{}")
    monkeypatch.setattr(web_page, "WEB", tmp_path)
    monkeypatch.setattr(web_page, "INDEX", tmp_path / "dist/page/index.html")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


@pytest.fixture
def node(web: Path) -> Callable[[], list[str]]:
    """Node.js and npm, which log their arguments. Calling it returns and forgets them."""
    (web / "bin").mkdir()
    log = web / "log"
    build = "/bin/mkdir -p dist/page && /bin/cp page/main.ts dist/page/index.html"
    for name, command in (("node", build), ("npm", "/bin/mkdir node_modules")):
        program = web / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{command}\n')
        program.chmod(0o755)

    def ran() -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [" ".join(line.split()[:2]) for line in lines]

    return ran


def test_the_page_is_built_if_a_source_is_newer(web: Path, node: Callable[[], list[str]]) -> None:
    web_page.build_page()
    assert node() == ["npm ci", "node build.mjs"]
    assert (web / "dist/page/index.html").read_text() == "first"
    web_page.build_page()
    assert node() == []
    built = (web / "dist/page/index.html").stat().st_mtime
    (web / "page/main.ts").write_text("second")
    os.utime(web / "page/main.ts", (built + 1, built + 1))
    web_page.build_page()
    assert node() == ["node build.mjs"]
    assert (web / "dist/page/index.html").read_text() == "second"


def test_each_file_that_the_build_reads_outside_of_its_sources_is_an_input() -> None:
    scripts = "".join((ROOT / "web" / name).read_text() for name in ("build.mjs", "notices.mjs"))
    paths = {ROOT / "web" / path for path in re.findall(r'"((?:\.\./|notices/)[^"$]+)"', scripts)}
    read = {path.resolve() for path in paths if path.is_file()}
    assert {"LICENSE", "core-js.txt", "demo_policy.json"} <= {path.name for path in read}
    inputs = {file.resolve() for pattern in web_page.SOURCES for file in web_page.WEB.glob(pattern)}
    assert read <= inputs


def test_a_failed_build_of_the_page_fails_with_its_output(web: Path, node: Callable[[], list[str]]) -> None:
    (web / "page/main.ts").unlink()
    with pytest.raises(SetupError, match=r"(?s)node build\.mjs' failed:.*page/main\.ts"):
        web_page.build_page()
    assert node()


def test_without_node_the_message_says_what_to_install(web: Path) -> None:
    with pytest.raises(SetupError, match=r"install Node\.js 20\.19 or newer with npm"):
        web_page.build_page()
    assert not (web / "dist").exists()


def test_a_source_distribution_needs_no_node_because_it_contains_the_page(web: Path) -> None:
    (web / "package.json").unlink()
    with pytest.raises(SetupError, match="lacks web/dist/page"):
        web_page.build_page()
    (web / "dist/page").mkdir(parents=True)
    (web / "dist/page/index.html").touch()
    web_page.build_page()
