"""The overview: every command with its one-line summary, and what `nearfar` alone prints.

A command's parser is loaded when the command is called, so that `nearfar --help` imports neither numpy nor any command.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .program import program

# Columns that every terminal shows without wrapping.
WIDTH = 80
DESCRIPTION = (
    "Compile a language model once; run it near (browser, phone, laptop) and far (GPU server), with the same answers."
)

# The cpu target runs on Linux only. Other systems have a GPU with a driver.
TARGET = "cpu" if sys.platform.startswith("linux") else "webgpu"
# Each example runs without changes, in this order, without a download.
EXAMPLES = (
    (f"compile demo --target {TARGET} -o my-demo", "make a bundle of the demo model"),
    ("run my-demo 'what is 27 + 58?'", "answer; without prompt: chat"),
    ("compile demo --dry-run", "show sizes and time only"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """``module`` has the functions ``add_parser`` and ``run``."""

    module: str
    summary: str


# The modules are named, not imported: the compiler does not depend on the server, and a start loads one command only.
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "compile": Command("nearfar.compiler.cli.compile", "compile a checkpoint into a bundle"),
        "run": Command("nearfar.compiler.cli.run", "generate text with a bundle, once or as a chat"),
        "demo": Command("nearfar.compiler.cli.demo", "show a bundle at work in headless Chromium, or serve its page"),
        "models": Command("nearfar.compiler.cli.models", "show the models that compile, their sizes and targets"),
        "inspect": Command("nearfar.compiler.cli.inspect", "show a bundle's model, sizes, kernels and costs"),
        "score": Command("nearfar.compiler.cli.score", "write the logits of a list of tokens"),
        "quality": Command(
            "nearfar.compiler.cli.quality", "compare bundles with the checkpoint that they were made from"
        ),
        "export": Command("nearfar.compiler.cli.export", "write a bundle's weights for llama.cpp or transformers"),
        "sign": Command("nearfar.compiler.cli.sign", "sign a bundle, or make a key to sign with"),
        "serve": Command(
            "nearfar.server_fallback.cli.serve", "answer OpenAI requests for models on this machine or others"
        ),
        "index": Command("nearfar.server_fallback.cli.index", "embed the documents of a folder into a store"),
        "node": Command(
            "nearfar.server_fallback.cli.node", "run a part of a vLLM that nearfar serve starts on several machines"
        ),
        "gateway": Command(
            "nearfar.server_fallback.cli.gateway", "answer OpenAI requests near or far, as a policy decides"
        ),
        "router": Command("nearfar.server_fallback.cli.router", "fit a policy for near and far to the answers of both"),
        "bench": Command("nearfar.server_fallback.cli.bench", "measure a server"),
    }
)


class Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The subcommands. The parser of a subcommand is created when its name is parsed."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name = values[0]
        if name in COMMANDS:
            del self._name_parser_map[name]
            importlib.import_module(COMMANDS[name].module).add_parser(self)
        super().__call__(parser, namespace, values, option_string)


def add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(action=Commands, metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary, add_help=False)


class ShowVersion(argparse.Action):
    """``--version``. It reads the version when it is used, because that takes longer than building the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"nearfar {version('nearfar')}")
        parser.exit()


def make_overview() -> str:
    """The text that `nearfar` alone prints, without the notes if they would make a line longer than WIDTH."""
    width = max(map(len, COMMANDS))
    examples = [(f"  {program()} {line}", note) for line, note in EXAMPLES]
    column = max(len(line) for line, _ in examples) + 2
    fits = all(column + len(note) <= WIDTH for _, note in examples)
    lines = [
        "nearfar: compile a language model once; run it near (browser, phone, laptop)",
        "and far (GPU server), with the same answers.",
        "",
        "Commands",
        *(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()),
        "",
        "Try these commands in this order; each runs without changes",
        *(f"{line:{column}}{note}" if fits else line for line, note in examples),
        "",
        "Options of a command: nearfar COMMAND --help",
    ]
    return "\n".join(lines)
