"""@nearfar/web as npm installs it: packed, and unpacked into an application, whose page requests two answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import web_page
from conftest import ROOT
from playwright.sync_api import Page

SOURCES = ROOT / "tests/web/bundlers"
# The machine may be busy.
BUILD_SECONDS = 300
ANSWER_MS = 240_000


@dataclass(frozen=True, slots=True)
class Answers:
    """The result of ask.js."""

    text: str
    json: str
    """The answer that a JSON schema constrained."""
    scripts_for_json: Sequence[str]
    """Names of the scripts that the page loaded for ``json``."""

    @classmethod
    def read(cls, result: str) -> Answers:
        found = json.loads(result)
        return cls(found["text"], found["json"], found["scriptsForJson"])

    def check(self) -> None:
        """Check that the demo model answered, and that its second answer matches the schema."""
        assert self.text.startswith("27 + 58 = 85")
        found = json.loads(self.json)
        assert list(found) == ["sum"]
        assert isinstance(found["sum"], int)


def pack(folder: Path, *, built: bool = False) -> Path:
    """Run `npm pack` in a fresh checkout with its dependencies installed, and return the tarball in the folder.
    ``built``: pack what `make web` has built instead of building it again, which takes 10 s of processor time.
    """
    checkout = folder / "checkout"
    ignored = shutil.ignore_patterns("node_modules", *([] if built else ["dist"]))
    shutil.copytree(ROOT / "web", checkout / "web", ignore=ignored)
    (checkout / "web/node_modules").symlink_to(ROOT / "web/node_modules")
    read = (each.removeprefix("../") for each in web_page.SOURCES if each.startswith("../"))
    # A build also writes the last one.
    for name in (*read, "compiler/shared/shared.js"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    run(["npm", "pack", "--pack-destination", str(folder), *["--ignore-scripts"] * built], checkout / "web")
    shutil.rmtree(checkout)
    (tarball,) = folder.glob("*.tgz")
    return tarball


def unpack(tarball: Path, modules: Path) -> None:
    """Install the tarball into the folder node_modules of an application."""
    target = modules / "@nearfar/web"
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball) as archive:
        archive.extractall(target.parent, filter="data")
    (target.parent / "package").rename(target)


def copy_app(app: Path, names: Sequence[str], bundle: Path) -> None:
    """Copy files of tests/web/bundlers into the application, and link the bundle into its output."""
    (app / "out").mkdir(parents=True)
    (app / "package.json").write_text('{ "type": "module" }')
    for name in names:
        shutil.copy(SOURCES / name, app)
    (app / "out/bundle").symlink_to(bundle)


def write_page(folder: Path, entry: str, *, name: str = "index", head: str = "") -> None:
    """Write a page whose only script is the entry."""
    script = f'<script type="module" src="./{entry}.js"></script>'
    (folder / f"{name}.html").write_text(f"<!doctype html><title>nearfar</title>{head}<body>{script}</body>")


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed, and return its standard output."""
    found = {**os.environ, "NO_COLOR": "1", "NO_UPDATE_NOTIFIER": "1", **(env or {})}
    done = subprocess.run(
        command, cwd=cwd, env=found, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def answers(page: Page, url: str) -> Answers:
    """Open a page that calls `show` of ask.js, and return its answers."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    page.wait_for_selector("body[data-state=done]", state="attached", timeout=ANSWER_MS)
    error, result = page.evaluate("() => [document.body.dataset.error, document.body.dataset.result]")
    assert error is None, [error, *problems]
    return Answers.read(result)
