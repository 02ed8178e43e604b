"""Writes a file under a temporary name and renames it at the end, so the final path always holds a complete file,
even after a loss of power.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputError, reason_of
from .durable import rename_durably


@contextmanager
def new_file(output: Path, *, force: bool) -> Iterator[Path]:
    """A path to write to, `.NAME.partial.PID`. It becomes ``output`` if the block succeeds, and is removed if the block
    raises.

    If ``output`` is a link, the file that it points to is created or replaced. Raises OutputError if ``output`` exists
    (without ``force``, or if it is not a file), cannot be written, or if the disk is full.
    """
    try:
        path = Path(os.path.realpath(output))
        _require_free(output, path, force=force)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial.{os.getpid()}")
        try:
            yield partial
            _require_free(output, path, force=force)
            rename_durably(partial, path)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
    except OSError as error:
        raise OutputError(
            f"{output}: cannot be written: {reason_of(error)}; free space there or choose another -o"
        ) from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise OutputError(f"{output}: is not a valid path ({error}); choose another -o") from error


def _require_free(output: Path, path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise OutputError(f"{output}: is a folder; choose another -o, the name of a file")
    if path.exists() and not force:
        raise OutputError(f"{output}: exists already; choose another -o, or replace it with --force")
