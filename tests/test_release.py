"""`make release`: what it checks, builds and would upload, without building anything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import release as module
from release import PACKAGES, problems, release, versions

ROOT = Path(__file__).parents[1]
TOKENS = {"TWINE_PASSWORD": "p", "NODE_AUTH_TOKEN": "n", "HF_TOKEN": "h"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "nearfar"\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.0 (2026-12-01)\n\n### A\n\n- A change.\n\n## 1.1.0\n\n- Old.\n"
    )
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "package.json").write_text(json.dumps({"version": "1.2.0"}))
    return tmp_path


class Commands:
    """Records commands; the one with the word ``fails`` fails."""

    def __init__(self, fails: str = "-") -> None:
        self.run: list[list[str]] = []
        self.fails = fails

    def __call__(self, command: Sequence[str], folder: Path) -> None:
        self.run.append([*command, str(folder)])
        if self.fails in command:
            raise subprocess.CalledProcessError(3, list(command))

    def has(self, *words: str) -> bool:
        return any(set(words) <= set(command) for command in self.run)


def test_this_checkout_has_one_version_and_an_entry_of_the_changelog() -> None:
    assert len(set(versions(ROOT).values())) == 1
    assert problems(ROOT, upload=False) == []


def test_versions_and_the_changelog_must_agree(checkout: Path) -> None:
    assert problems(checkout, upload=True) == []
    (checkout / "web/package.json").write_text('{"version": "1.1.9"}')
    assert "versions differ: pyproject.toml 1.2.0, web/package.json 1.1.9" in problems(checkout, upload=False)[0]
    (checkout / "web/package.json").write_text('{"version": "1.2.0"}')
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("(2026-12-01)", "(unreleased)"))
    assert problems(checkout, upload=False) == []
    assert problems(checkout, upload=True) == ["CHANGELOG.md says that 1.2.0 is unreleased; write the date"]
    assert problems(checkout, upload=True, changed=" M README.md\n")[1].startswith("files are not committed")
    # The changes of another version do not count.
    changelog.write_text("# Changelog\n\n## 1.2.0\n\n## 1.1.0\n\n- Old.\n")
    assert problems(checkout, upload=False) == ["CHANGELOG.md has no entry '## 1.2.0' with a change"]


def test_a_dry_run_builds_everything_and_prints_the_uploads(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands()
    assert release(checkout, commands, TOKENS, upload=False, site="hf:o/n", changed=" M x") == 0
    assert commands.has("wheel")
    assert commands.has("make", "docs")
    assert commands.has("publish", "demo", "-o")
    assert [command[-1] for command in commands.run if "pack" in command] == [str(checkout / name) for name in PACKAGES]
    assert not commands.has("upload")
    assert not commands.has("npm", "publish")
    shown = capsys.readouterr().out
    assert shown.count("would   ") == 2 + len(PACKAGES)
    assert "nothing was uploaded" in shown


def test_uploads_need_the_option_and_their_token(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands()
    (checkout / module.OUT).mkdir(parents=True)
    (checkout / module.OUT / "nearfar-1.2.0.whl").touch()
    assert release(checkout, commands, {"TWINE_PASSWORD": "p"}, upload=True, site="hf:o/n", changed="") == 1
    assert commands.has("twine", "check", str(checkout / module.OUT / "nearfar-1.2.0.whl"))
    assert commands.has("twine", "upload", str(checkout / module.OUT / "nearfar-1.2.0.whl"))
    assert not commands.has("npm", "publish")
    assert capsys.readouterr().out.count("skipped ") == 1 + len(PACKAGES)
    commands = Commands()
    assert release(checkout, commands, TOKENS, upload=True, site="hf:o/n", changed="") == 0
    assert [command[-1] for command in commands.run if command[:2] == ["npm", "publish"]] == [
        str(checkout / name) for name in PACKAGES
    ]
    assert commands.has("publish", "--to", "hf:o/n")


def test_a_build_that_fails_ends_the_release(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands(fails="docs")
    assert release(checkout, commands, TOKENS, upload=True, site=None, changed="") == 1
    assert not commands.has("upload")
    assert "error: docs: 'make docs ...' failed with exit code 3" in capsys.readouterr().out
