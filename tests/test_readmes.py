"""The files, commands, options and targets of make that READMEs name exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from command_line import parsed
from links import CODE, ROOT, readmes

from nearfar.compiler.cli.overview import COMMANDS, Call, Command
from nearfar.compiler.options import Group, declared

# Files of these kinds are this repository's. Those of other kinds, such as config.json, are often the reader's.
SOURCE = re.compile(r"[\w./-]*\w\.(?:py|tsx?|mjs|wgsl|svg|swift|kt|proto|toml)")
FOLDER = re.compile(r"[a-z_.][\w.-]*/(?:[\w.-]+/)*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
# The first cell of a row, which names files of the README's own folder.
FIRST_CELL = re.compile(r"^\| *([^|\n]*)\|", flags=re.MULTILINE)
# A line of a block that calls nearfar, without its comment.
CALL = re.compile(r"^ *(?:[A-Z_]+=\S+ +)*(?:\.venv/bin/)?nearfar (.+?)(?: +[#>].*)?$", flags=re.MULTILINE)
# The first line of a block that is a file.
GIVEN = re.compile(r"^```\w+ (\S+)$", flags=re.MULTILINE)
MAKE = re.compile(r"\bmake ([a-z][a-z0-9-]+)")

# The files of readers, the model store and other projects, and options of vLLM, smg, mlx-lm, esbuild and this
# repository's scripts.
OTHERS = {
    *("models/", "blobs/", "bundles/"),
    *("public/", "static/", "bundle/", "whisper/", "./transcriber/", "ort-wasm-simd-threaded.mjs", "ort.wasm.min.mjs"),
    *("--distributed-executor-backend", "--enable-auto-tool-choice", "--enable-prompt-tokens-details", "--nnodes"),
    *("--reasoning-parser", "--routing-key-override"),
    *("--tool-call-parser", "--kv-bits", "--splitting", "--examples", "--resume", "--source-maps", "--llama-bench"),
}


def documents() -> Sequence[Path]:
    """All but the change log, which also names what no longer exists."""
    return [file for file in readmes() if file.name != "CHANGELOG.md"]


def test_what_readmes_name_exists() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in documents()
        for name in unknown_names(file.read_text("utf-8"), file.parent)
    ]
    assert missing == []


def test_the_commands_in_readmes_are_accepted() -> None:
    calls = [
        call
        for file in documents()
        for block in CODE.finditer(file.read_text("utf-8"))
        for call in CALL.findall(block[0].replace("\\\n", " "))
    ]
    assert len(calls) > 30
    for call in calls:
        parsed(*shlex.split(call))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`tests/links.py`, `links.py`, `cli/test_chat.py` and `compiler/cli/`", []),
        ("| `chat.py` | `chat.py` |", ["chat.py"]),
        ("`test_chats.py` and `compiler/clis/`", ["test_chats.py", "compiler/clis/"]),
        ("`nearfar compile A --kv\nq8` and `--front-ends 4`", []),
        ("`nearfar compile A --front-ends 4` and `--front-end 4`", ["--front-ends", "--front-end"]),
        ("`src/main.ts` and `src/other.ts`\n\n```ts src/main.ts\n```\n", ["src/other.ts"]),
        ("`nearfar compiles A`", ["nearfar compiles A"]),
        ("`make demo`\n\n```\nmake demos\n```\n", ["make demos"]),
    ],
)
def test_unknown_names_are_found(text: str, found: Sequence[str]) -> None:
    assert list(unknown_names(text, ROOT / "tests")) == found


def unknown_names(text: str, folder: Path) -> Iterator[str]:
    """The names in a README of ``folder`` that do not exist."""
    yield from (f"make {name}" for name in MAKE.findall("\n".join(code_of(text))) if name not in targets_of_make())
    # What the document itself gives as a file belongs to the reader.
    given = {*OTHERS, *GIVEN.findall(text)}
    prose = CODE.sub("", text)
    cells = " ".join(FIRST_CELL.findall(prose))
    yield from (span for span in SPAN.findall(cells) if SOURCE.fullmatch(span) and not exists(span, folder))
    for span in SPAN.findall(prose):
        command = re.match(r"nearfar ([a-z]+)\b", span)
        if command and command[1] not in COMMANDS:
            yield span
            continue
        known = options()[command[1]] if command else frozenset().union(*options().values())
        yield from (option for option in OPTION.findall(span) if option not in known | OTHERS)
        for word in span.split():
            is_path = SOURCE.fullmatch(word) or FOLDER.fullmatch(word)
            if is_path and word not in given and not (exists(word, ROOT) or exists(word, folder)):
                yield word


def code_of(text: str) -> Iterator[str]:
    yield from SPAN.findall(CODE.sub("", text))
    yield from (block[0] for block in CODE.finditer(text))


def exists(name: str, folder: Path) -> bool:
    """In the folder, or at the end of a path below it."""
    start = "" if folder == ROOT else f"{folder.relative_to(ROOT)}/"
    end = name if name.endswith("/") else f"{name}\n"
    return (folder / name).exists() or any(f"/{end}" in f"/{file}\n" for file in tracked() if file.startswith(start))


@cache
def tracked() -> Sequence[str]:
    return subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()


@cache
def targets_of_make() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))


@cache
def options() -> Mapping[str, frozenset[str]]:
    """The options of each command, with those of its subcommands."""
    owners = {
        name: [Call(words, command).owner for words in kinds_of(name, command)] for name, command in COMMANDS.items()
    }
    return {name: frozenset(option for each in found for option in options_of(each)) for name, found in owners.items()}


def kinds_of(name: str, command: Command) -> Sequence[tuple[str, ...]]:
    return [(name, kind) for kind in command.kinds] if command.kinds else [(name,)]


def options_of(owner: type) -> Iterator[str]:
    yield "--help"
    for option in declared(owner):
        yield from options_of(option.type) if isinstance(option, Group) else option.names
