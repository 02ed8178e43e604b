"""The text that the demo encoder learns from: this repository's own Markdown files, docstrings and comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# The encoder never reads these documents in training.
HELD_OUT_DOCUMENTS = frozenset(
    {"server_fallback/README.md", "mobile/webview/README.md", "mobile/react-native/README.md"}
)
MARKDOWN = (
    "*.md", "compiler/**/*.md", "targets/**/*.md", "server_fallback/**/*.md", "web/*.md", "web/examples/*.md",
    "mobile/*.md", "mobile/*/*.md", "tests/*.md", "tests/bench/*.md", "tests/demo_model/*.md",
)  # fmt: skip
PYTHON = (
    "compiler/**/*.py",
    "targets/**/*.py",
    "server_fallback/**/*.py",
    "tests/compiler/**/*.py",
    "tests/server_fallback/**/*.py",
)
TYPESCRIPT = ("web/src/**/*.ts", "web/page/*.ts", "mobile/*/src/**/*.ts")
PASSAGE_CHARACTERS = 600
LEAST_WORDS = 6
HEADING = re.compile(r"(#{1,6})\s+(.*)")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[(-])")
TYPESCRIPT_COMMENT = re.compile(
    r"/\*\*(?P<comment>(?:[^*]|\*(?!/))*)\*/\s*"
    r"(?:(?:export|async|static|readonly|private|function|class|interface|const|type) )*#?(?P<name>\w+)"
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a Markdown file, with the headings above it, the outermost first."""

    document: str
    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Described:
    """A name in the code and its docstring or comment."""

    file: str
    name: str
    text: str


def documents() -> dict[str, str]:
    """This repository's Markdown files, by their paths."""
    paths = (path for pattern in MARKDOWN for path in sorted(REPOSITORY.glob(pattern)))
    return {path.relative_to(REPOSITORY).as_posix(): path.read_text() for path in paths}


def markdown_passages() -> list[Passage]:
    """The passages of the documents for training."""
    return [
        passage
        for name, source in documents().items()
        if name not in HELD_OUT_DOCUMENTS
        for passage in passages_of(name, source)
    ]


def passages_of(document: str, source: str) -> Iterator[Passage]:
    """Neighbouring paragraphs, list items and rows of tables of one section, up to 600 characters each."""
    headings: list[str] = []
    block = ""
    for part in _blocks(source):
        match = HEADING.fullmatch(part)
        if match or len(block) + len(part) > PASSAGE_CHARACTERS:
            if len(words(block)) >= LEAST_WORDS:
                yield Passage(document, tuple(headings), block)
            block = ""
        if match:
            headings = [*headings[: len(match[1]) - 1], match[2]]
        else:
            block = f"{block}\n{part}".strip()
    if len(words(block)) >= LEAST_WORDS:
        yield Passage(document, tuple(headings), block)


def described_names() -> Iterator[Described]:
    """Functions, classes, methods and files of the code, with what their docstrings and comments say."""
    for pattern in PYTHON:
        for path in sorted(REPOSITORY.glob(pattern)):
            yield from _docstrings(path)
    for pattern in TYPESCRIPT:
        for path in sorted(REPOSITORY.glob(pattern)):
            if "node_modules" in path.parts:
                continue
            source, file = path.read_text(), path.relative_to(REPOSITORY).as_posix()
            head = re.match(r"(?://.*\n)+", source)
            if head is not None:
                yield Described(file, path.stem, " ".join(line.strip("/ ") for line in head[0].splitlines()))
            for match in TYPESCRIPT_COMMENT.finditer(source):
                yield Described(file, match["name"], " ".join(match["comment"].replace("*", " ").split()))


@cache
def sentences(text: str) -> tuple[str, ...]:
    parts = SENTENCE_END.split(" ".join(text.split()))
    return tuple(sentence for sentence in parts if len(words(sentence)) >= LEAST_WORDS)


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text)


@cache
def spoken(name: str) -> str:
    """An identifier as words: read_config and readConfig are "read config"."""
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower().split())


def _docstrings(path: Path) -> Iterator[Described]:
    file = path.relative_to(REPOSITORY).as_posix()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module):
            name, text = path.stem, ast.get_docstring(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name, text = node.name, ast.get_docstring(node)
            if name.startswith("test_") and text is None:
                # The words of the code are all that there is about a fact that a test's name states.
                text = " ".join(dict.fromkeys(spoken(word) for word in _identifiers(node)))
        else:
            continue
        if text and len(words(text)) >= LEAST_WORDS:
            yield Described(file, name.removeprefix("test_"), " ".join(text.split()))


def _identifiers(function: ast.AST) -> list[str]:
    names = (
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return [name for name in names if len(name) > 3][:60]


def _blocks(source: str) -> Iterator[str]:
    """Headings, paragraphs, list items and rows of tables. Long ones are divided between sentences."""
    lines: list[str] = []
    for line in [*source.splitlines(), ""]:
        starts = HEADING.fullmatch(line) or line.startswith(("|", "- ", "* ", "  - ")) or not line.strip()
        if starts and lines:
            yield from _divided(" ".join(" ".join(lines).split()))
            lines = []
        if HEADING.fullmatch(line):
            yield line.strip()
        elif line.strip() and not re.fullmatch(r"[|\s:-]+", line):
            lines.append(line)


def _divided(block: str) -> Iterator[str]:
    part = ""
    for sentence in SENTENCE_END.split(block):
        if part and len(part) + len(sentence) > PASSAGE_CHARACTERS:
            yield part
            part = ""
        part = f"{part} {sentence}".strip()
    if part:
        yield part
