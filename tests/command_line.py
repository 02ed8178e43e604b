"""What a command line asks for, without running the command."""

from __future__ import annotations

from typing import Any

from nearfar.compiler.cli import parse
from nearfar.compiler.cli.option_file import make_with_file


def parsed(*arguments: str) -> Any:
    """The dataclass of the command's options."""
    call, given = parse(arguments)
    return make_with_file(call.owner, given)
