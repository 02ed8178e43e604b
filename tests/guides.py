"""The guides in web/docs/, and the files in them: blocks whose first line names the file after the language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "web/docs"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
# A block of commands.
COMMANDS = re.compile(r"^```\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def guides() -> Mapping[str, str]:
    return {file.stem: file.read_text("utf-8") for file in sorted(DOCS.glob("*.md"))}


def guide_files(guide: str, replaced: Mapping[str, str] | None = None) -> dict[str, str]:
    """The files of a guide by name. ``replaced``: texts of them that a test must replace, such as a server's address,
    each of which must occur.
    """
    files = dict(FILE.findall((DOCS / f"{guide}.md").read_text("utf-8")))
    for old, new in (replaced or {}).items():
        assert any(old in text for text in files.values()), f"web/docs/{guide}.md has no file with '{old}'"
        files = {name: text.replace(old, new) for name, text in files.items()}
    return files


def guide_commands(guide: str) -> list[str]:
    """The blocks of commands of a guide."""
    return COMMANDS.findall(FILE.sub("", (DOCS / f"{guide}.md").read_text("utf-8")))


def write_guide(guide: str, folder: Path, replaced: Mapping[str, str] | None = None) -> list[Path]:
    """Write the files of a guide into the folder."""
    paths = []
    for name, text in guide_files(guide, replaced).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        paths.append(path)
    return paths
