"""new_folder: a folder is written beside its final place and renamed at the end, so a place holds a whole bundle or what it held before.

The folder beside it, `.NAME.partial`, is locked while its process lives. So two processes cannot write to one place, and what a killed
process left is found to be unlocked and removed by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import OutputError, reason_of
from .manifest import MANIFEST_FILE


@contextmanager
def new_folder(output: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into that becomes ``output`` when the block ends well, and is removed when it does not.

    If ``output`` is a link, the folder that it leads to is made or replaced, and the link stays. Raises OutputError if ``output`` exists
    (and ``force`` is not given, or it is not a bundle), if another process writes to it, if it cannot be written, or if the disk is full.
    """
    try:
        place = _place_of(output)
        _require_free(place, force=force)
        place.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(place) as partial:
            _restore_replaced(place)
            _require_free(place, force=force)
            yield partial
            _publish(partial, place, force=force)
    except OSError as error:
        raise OutputError(
            f"{output}: cannot be written: {reason_of(error)}; free space there or choose another -o"
        ) from error


def discard_partial(output: Path) -> None:
    """Remove what a killed process left beside ``output``, unless another process is writing there."""
    with suppress(OSError, OutputError):
        place = _place_of(output)
        if _beside(place, "partial").exists():
            _release(_lock(place), _beside(place, "partial"), remove=True)


def _place_of(output: Path) -> Path:
    try:
        return Path(os.path.realpath(output))
    except ValueError as error:
        raise OutputError(f"{output}: is not a valid path ({error}); choose another -o") from error


def _require_free(place: Path, *, force: bool) -> None:
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    if not force:
        raise OutputError(f"{place}: exists already; choose another -o, or replace it with --force")
    if not (place / MANIFEST_FILE).is_file():
        raise OutputError(f"{place}: exists and is not a bundle, so --force does not replace it; choose another -o")


def _publish(partial: Path, place: Path, *, force: bool) -> None:
    """Rename; this replaces an empty folder, and fails if anything else was made there meanwhile, unless it is a bundle to replace."""
    if force and (place / MANIFEST_FILE).is_file():
        replaced = _beside(place, "replaced")
        place.rename(replaced)
        try:
            partial.rename(place)
        except OSError:
            replaced.rename(place)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
        return
    try:
        partial.rename(place)
    except OSError as error:
        if place.exists():
            raise OutputError(f"{place}: was made by another program meanwhile; choose another -o") from error
        raise


def _restore_replaced(place: Path) -> None:
    """Undo what a process left that was killed while it replaced a bundle."""
    replaced = _beside(place, "replaced")
    if replaced.exists() and not place.exists():
        replaced.rename(place)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def _exclusive(place: Path) -> Iterator[Path]:
    """The locked, empty folder beside ``place``; removed after an exception."""
    lock, partial = _lock(place), _beside(place, "partial")
    try:
        for left in partial.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        yield partial
    except BaseException:
        _release(lock, partial, remove=True)
        raise
    # It has been renamed. A folder of that name is another process's by now.
    _release(lock, partial, remove=False)


def _lock(place: Path) -> int | None:
    """Make the folder beside ``place`` and lock it; None if the file system has no locks. Raises OutputError if a process holds it."""
    partial = _beside(place, "partial")
    while True:
        made = True
        try:
            partial.mkdir()
        except FileExistsError:
            made = False
        try:
            descriptor = _open_locked(partial)
        except FileNotFoundError:
            continue  # Its owner has just finished.
        except BlockingIOError as error:
            raise OutputError(
                f"{place}: another process is writing it; wait for that one, or choose another -o"
            ) from error
        except (ImportError, OSError) as error:
            if made:
                return None
            raise OutputError(f"{place}: another process may be writing it; if none is, remove {partial}") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), partial.stat()):
                return descriptor
        os.close(descriptor)  # Between opening and locking it, its owner renamed or removed it.


def _open_locked(folder: Path) -> int:
    import fcntl  # Windows has none.

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _release(lock: int | None, partial: Path, *, remove: bool) -> None:
    if remove:
        shutil.rmtree(partial, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _beside(place: Path, kind: str) -> Path:
    return place.with_name(f".{place.name}.{kind}")
