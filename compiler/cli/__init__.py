"""The command line: one file for each command, of which overview.py has the list."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

from ..runtime.errors import NearfarError, OutputError
from .option_file import make_with_file
from .overview import DESCRIPTION, Call, ShowVersion, add_commands, make_overview
from .parser import Parser

# The exit code for the user's mistakes. A bug of ours prints a traceback, and the exit code is 1.
USER_ERROR = 2
# The exit codes that shells give to processes that a signal ended.
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    as_json = False
    # A path may hold bytes that are not UTF-8.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not (sys.argv[1:] if arguments is None else arguments):
        print(make_overview())
        return 0
    try:
        call, given = parse(arguments)
        as_json = given.get("json") is True
        with ending_on_signals():
            options = make_with_file(call.owner, given)
            with options.config.naming_keys() if given.get("config") is not None else nullcontext():
                call.run(options)
            sys.stdout.flush()
    except NearfarError as error:
        return report_error(error, as_json=as_json)
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Flushing the buffer at the interpreter's end must not fail
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return report_error(OutputError(f"{where}the disk is full; free space and try again"), as_json=as_json)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def report_error(error: NearfarError, *, as_json: bool) -> int:
    from .output import print_error

    print_error(error, as_json=as_json)
    return USER_ERROR


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that half-written files are removed. A server sets its own
    handlers.

    Under nohup, SIGHUP is ignored, and it stays ignored.
    """

    def end(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.exit(128 + signal_number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    handled = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


def parse(arguments: Sequence[str] | None) -> tuple[Call, Mapping[str, Any]]:
    """The command and the values of its options, None for those that were not given."""
    parser = Parser(
        prog="nearfar",
        description=DESCRIPTION,
        epilog="example: nearfar compile ./Qwen3-0.6B -o qwen3 && nearfar run qwen3 'Why is the sky blue?'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    add_commands(parser)
    given = vars(parser.parse_args(arguments))
    return given["call"], given
