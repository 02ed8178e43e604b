"""The command line: one file for each command.

``nearfar compile | inspect | sign | run | score | quality | demo | serve | gateway | bench | router``
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ..errors import NearfarError, OutputError
from .overview import DESCRIPTION, ShowVersion, add_commands, make_overview

# The exit code for the user's mistakes; a bug of ours is a traceback and 1.
USER_ERROR = 2
# As shells count what signals end.
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    as_json = False
    if not (sys.argv[1:] if arguments is None else arguments):
        print(make_overview())
        return 0
    try:
        options = make_parser().parse_args(arguments)
        as_json = getattr(options, "json", False) is True
        with ending_on_sigterm():
            options.run(options)
            sys.stdout.flush()
    except NearfarError as error:
        return refused(error, as_json=as_json)
    except BrokenPipeError:
        # Whoever read us has enough, as `head` has; what is left in the buffer may not fail again at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return refused(OutputError(f"{where}the disk is full; free space and try again"), as_json=as_json)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def refused(error: NearfarError, *, as_json: bool) -> int:
    from .output import print_error

    print_error(error, as_json=as_json)
    return USER_ERROR


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what is half written is taken away. A server has a handler of its own."""

    def end(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nearfar",
        description=DESCRIPTION,
        epilog="example: nearfar compile ./Qwen3-0.6B -o qwen3 && nearfar run qwen3 'Why is the sky blue?'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version and exit")
    add_commands(parser)
    return parser
