"""How this program was started: the commands that it prints work when they are pasted into the same shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def program() -> str:
    """The words that start this program: "nearfar" if the shell finds it, otherwise its path, otherwise the interpreter
    with ``-m``.
    """
    started = shutil.which(sys.argv[0])
    if started is None or os.path.basename(started) != "nearfar":
        return f"{shlex.quote(sys.executable)} -m nearfar.compiler.cli"
    on_path = shutil.which("nearfar")
    return "nearfar" if on_path is not None and os.path.samefile(on_path, started) else shlex.quote(started)


def path_word(path: str) -> str:
    """A path as one word of a shell, which no command mistakes for an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)
