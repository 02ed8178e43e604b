"""The overview: every command with its one-line summary, and what `nearfar` alone prints.

A command's parser is loaded when the command is called, so that `nearfar --help` imports neither numpy nor any command.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..runtime.errors import ToolError
from .parser import add_options
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
    """``room`` is a package with a module of the command's name, whose function ``run`` takes the command's options:
    the dataclass of its name in the module `options` of the room. A command with ``kinds`` has a function and a
    dataclass for each: ``run_fit`` and ``RouterFit`` for `nearfar router fit`. ``needs`` are the libraries of
    nearfar[serve] without which the module cannot be imported.
    """

    room: str
    summary: str
    needs: tuple[str, ...] = ()
    kinds: Mapping[str, Command] | None = None


NEAR, FAR = "nearfar.compiler.cli", "nearfar.server_fallback.cli"
SERVER = ("fastapi", "httpx", "uvicorn")
# The modules are named, not imported: the compiler does not depend on the server, and a start loads one command only.
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "compile": Command(NEAR, "compile a checkpoint into a bundle"),
        "run": Command(NEAR, "answer a prompt, or have a conversation in the terminal"),
        "create": Command(NEAR, "make a model of one's own, from a Modelfile"),
        "transcribe": Command(NEAR, "write down what is said in a sound file"),
        "demo": Command(NEAR, "show a bundle at work in headless Chromium, or serve its page"),
        "models": Command(NEAR, "show the models that compile, their sizes and targets"),
        "inspect": Command(NEAR, "show a bundle's model, sizes, kernels and costs"),
        "devices": Command(NEAR, "show what probes of users' devices predict of bundles there"),
        "score": Command(NEAR, "write the logits of tokens, or of a conversation"),
        "quality": Command(NEAR, "compare bundles with the checkpoint that they were made from"),
        "export": Command(NEAR, "write a bundle's weights for llama.cpp or transformers"),
        "sign": Command(NEAR, "sign a bundle, or make a key to sign with"),
        "publish": Command(NEAR, "make a site of a model's bundles, with its card and its license"),
        "pull": Command(NEAR, "get a model into the store, or a bundle of a published site"),
        "list": Command(NEAR, "list the models of the store"),
        "show": Command(NEAR, "show a model of the store: its source, parameters and license"),
        "cp": Command(NEAR, "give a model of the store another name, too"),
        "rm": Command(NEAR, "remove models from the store, with all files that no other needs"),
        "prune": Command(NEAR, "remove unused files and the bundles that were not used for longest"),
        "ps": Command(NEAR, "list the models that a server has loaded"),
        "serve": Command(FAR, "answer OpenAI's and Ollama's requests for models here or elsewhere", SERVER),
        "verify": Command(FAR, "check an answer's signed receipt, and compute the answer again"),
        "watermark": Command(
            FAR,
            "find out whether a text has a watermark",
            kinds={"detect": Command(FAR, "count the tokens of a text that a watermark prefers")},
        ),
        "index": Command(FAR, "embed the documents of a folder into a store"),
        "decide": Command(FAR, "answer typed questions about a text, with probabilities"),
        "node": Command(FAR, "run a part of a vLLM that nearfar serve starts on several machines", SERVER),
        "gateway": Command(FAR, "answer OpenAI requests near or far, as a policy decides", SERVER),
        "router": Command(
            FAR,
            "fit a policy for near and far to the answers of both",
            kinds={
                "log": Command(FAR, "send the same prompts to both sides", ("httpx",)),
                "fit": Command(FAR, "fit a policy to logged pairs"),
                "eval": Command(FAR, "compare a policy with others on logged pairs"),
            },
        ),
        "bench": Command(
            FAR,
            "measure a server",
            kinds={"serve": Command(FAR, "measure an OpenAI-compatible server under load", ("httpx",))},
        ),
        "simulate": Command(FAR, "predict latencies and throughput of workers and devices under load", ("httpx",)),
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """A command, by the words that call it."""

    words: tuple[str, ...]
    command: Command

    @property
    def owner(self) -> type[Any]:
        """The dataclass of its options."""
        module = importlib.import_module(f"{self.command.room}.options")
        owner: type[Any] = getattr(module, "".join(word.title() for word in self.words))
        return owner

    def run(self, options: Any) -> None:
        """Raises ToolError without a library that the command needs, and what the command raises."""
        for library in self.command.needs:
            if importlib.util.find_spec(library) is None:
                raise ToolError(f"nearfar {' '.join(self.words)} needs {library}: pip install 'nearfar[serve]'")
        module = importlib.import_module(f"{self.command.room}.{self.words[0]}")
        getattr(module, "_".join(["run", *self.words[1:]]))(options)


class Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The subcommands. The parser of a subcommand is created when its name is parsed."""

    words: tuple[str, ...] = ()
    commands: Mapping[str, Command] = COMMANDS

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values[0] in self.commands:
            self.build(values[0])
        super().__call__(parser, namespace, values, option_string)

    def build(self, name: str) -> argparse.ArgumentParser:
        """The parser of a command, whose help ends in the example of the dataclass's docstring."""
        call = Call((*self.words, name), self.commands[name])
        kinds, summary = call.command.kinds, call.command.summary
        owner = (Call((*call.words, next(iter(kinds))), call.command) if kinds else call).owner
        del self._name_parser_map[name]
        parser: argparse.ArgumentParser = self.add_parser(
            name,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=" ".join((owner.__doc__ or "").split()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if kinds:
            add_commands(parser, kinds, call.words)
        else:
            add_options(parser, owner)
            parser.set_defaults(call=call)
        return parser


def add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, Command] = COMMANDS, words: tuple[str, ...] = ()
) -> Commands:
    added = parser.add_subparsers(action=Commands, metavar="KIND" if words else "COMMAND", required=True)
    assert isinstance(added, Commands)
    added.words, added.commands = words, commands
    for name, command in commands.items():
        added.add_parser(name, help=command.summary, add_help=False)
    return added


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
