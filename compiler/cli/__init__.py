"""The command line: ``nearfar compile | inspect | run | score | quality | demo | serve | gateway | bench | router``. One file a command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

from ..errors import NearfarError
from . import compile as compile_command
from . import demo, inspect, quality, run, score
from .output import print_error

COMMANDS = (compile_command, inspect, run, score, quality, demo)
# Commands of the layer above, found by name as targets are: the compiler imports nothing of it.
COMMANDS_ABOVE = tuple(f"nearfar.server_fallback.cli.{name}" for name in ("serve", "gateway", "bench", "router"))
# The exit code for the user's mistakes; a bug of ours is a traceback and 1.
USER_ERROR = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options = make_parser().parse_args(arguments)
    try:
        options.run(options)
    except NearfarError as error:
        print_error(error, as_json=getattr(options, "json", False))
        return USER_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nearfar",
        description="Compile a language model once; run it near (browser, phone, laptop) and far (GPU server), with the same answers.",
        epilog="example: nearfar compile ./Qwen3-0.6B -o qwen3 && nearfar run qwen3 'Why is the sky blue?'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nearfar {version('nearfar')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    for name in COMMANDS_ABOVE:
        importlib.import_module(name).add_parser(commands)
    return parser
