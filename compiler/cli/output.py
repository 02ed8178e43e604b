"""The output of commands: sizes and durations for people, JSON for scripts, errors for both."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.markup import escape

from ..runtime.errors import NearfarError


def new_console(*, stderr: bool = False, soft_wrap: bool = False, highlight: bool = True) -> Console:
    """Every console of a command. Names with colons, such as "demo:zzz", are no emoji."""
    return Console(stderr=stderr, soft_wrap=soft_wrap, highlight=highlight, emoji=False)


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_error(error: NearfarError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": error.to_json()}, ensure_ascii=False, default=str), file=sys.stderr)
        return
    console = new_console(stderr=True, soft_wrap=True)
    console.print(f"[bold red]error:[/] {shown(error.message, lines=True)}")


def print_note(text: str) -> None:
    new_console(stderr=True, soft_wrap=True).print(f"[bold yellow]note:[/] {shown(text, lines=True)}", highlight=False)


def megabytes(size_bytes: int) -> str:
    """A size such as "12.3 MB", in the decimal units of disks and downloads."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"


def shown(text: str, *, lines: bool = False) -> str:
    """For a console, without the control characters by which a text of somebody else, such as a name in a file, would
    write over what the terminal shows. ``lines``: the text may have several.
    """
    kept = "\n\t" if lines else ""
    return escape("".join(each if each.isprintable() or each in kept else "\N{REPLACEMENT CHARACTER}" for each in text))
