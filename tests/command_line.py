"""What a command line asks for, without running the command."""

from __future__ import annotations

from typing import Any

from nearfar.compiler.cli import parse
from nearfar.compiler.cli.parser import make


def parsed(*arguments: str) -> Any:
    """The dataclass of the command's options."""
    call, given = parse(arguments)
    return make(call.owner, given)
