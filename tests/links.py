"""Finds broken links in Markdown files, as GitHub renders them, and in a site of HTML files.

``python tests/links.py FOLDER`` prints the broken links of a site and fails if it finds any.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

CODE = re.compile(r"^( *)(```|~~~).*?^\1\2", flags=re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", flags=re.MULTILINE)
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


ROOT = Path(__file__).resolve().parents[1]


def readmes() -> list[Path]:
    """The Markdown files of this repository."""
    command = ["git", "ls-files", "*.md"]
    return [ROOT / file for file in subprocess.check_output(command, cwd=ROOT, text=True).split()]


def broken_in_markdown(files: Iterable[Path]) -> list[str]:
    """Each link to a file or heading that does not exist, as ``FILE: TARGET``. Links to other sites are not opened."""
    return [
        f"{file}: {target}"
        for file in files
        for target in LINK.findall(CODE.sub("", file.read_text()))
        if not markdown_target_exists(file, target)
    ]


def markdown_target_exists(file: Path, target: str) -> bool:
    scheme, _, path, _, fragment = urlsplit(target)
    if scheme:
        return True
    linked = file if path == "" else file.parent / unquote(path)
    return linked.exists() and (fragment == "" or linked.suffix != ".md" or fragment in anchors(linked.read_text()))


def anchors(markdown: str) -> set[str]:
    """The ids that GitHub gives to headings."""
    found: set[str] = set()
    for heading in HEADING.findall(CODE.sub("", markdown)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(next(name for name in numbered(slug) if name not in found))
    return found


def numbered(slug: str) -> Iterator[str]:
    yield slug
    yield from (f"{slug}-{count}" for count in range(1, 1000))


def broken_in_site(folder: Path) -> list[str]:
    """Each link within a site to a file or an id that does not exist, as ``FILE: TARGET``."""
    pages = {file.resolve(): HtmlPage(file.read_text()) for file in folder.rglob("*.html")}
    broken = []
    for file, page in pages.items():
        for target in sorted(page.links):
            scheme, host, path, _, fragment = urlsplit(target)
            if scheme or host:
                continue
            linked = file if path == "" else (file.parent / unquote(path)).resolve()
            known = pages.get(linked)
            if not linked.exists() or (fragment and known is not None and unquote(fragment) not in known.ids):
                broken.append(f"{file.relative_to(folder.resolve())}: {target}")
    return broken


class HtmlPage(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(values["id"] or "")
        if tag == "a" and values.get("href") not in (None, "#"):
            self.links.add(values["href"] or "")


if __name__ == "__main__":
    found = broken_in_site(Path(sys.argv[1]))
    sys.exit("\n".join(["Broken links:", *found]) if found else 0)
