"""Compiling into the cache, in a process of its own: the compiler's libraries stay out of the server, and its work off
the event loop.

The child prints one JSON object a line: {"progress": [phase, done, total]}, and at the end {"bundle": path} or
{"error": ...}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pydantic import TypeAdapter

from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.bundle.new_folder import discard_partial
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import compile_any
from nearfar.compiler.pipeline.kernel_cache import VARIABLE
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.errors import NearfarError, OutputError, ToolError, reason_of

from .bundle_cache import bundle_path

Progress = Callable[[str, int, int], None]


async def compiled(model: str, options: CompileOptions, progress: Progress = lambda *_: None) -> Path:
    """The bundle of a checkpoint's folder or a hub's model, from the cache or compiled into it now.

    Several processes that need the same bundle wait for the first one. A cancelled compile leaves nothing behind.
    Raises the errors of `compile_any`.
    """
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        path = await asyncio.to_thread(bundle_path, folder, options)
        if is_bundle(path):
            return path
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, model, TypeAdapter(CompileOptions).dump_json(options).decode(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        # Ctrl-C must reach this process only; it ends the child below.
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    partial: Path | None = None
    try:
        async for line in child.stdout:
            message = json.loads(line)
            if "path" in message:
                partial = Path(message["path"])
            elif "progress" in message:
                progress(*message["progress"])
            elif "error" in message:
                raise error_of(message["error"])
            else:
                return Path(message["bundle"])
        raise ToolError(
            f"{model}: the compiler exited without a message (status {await child.wait()}); check that there is "
            "enough memory"
        )
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        if partial is not None:
            discard_partial(partial)


def main(model: str, options_json: str) -> None:
    """The child process."""
    options = TypeAdapter(CompileOptions).validate_json(options_json)
    try:
        emit(bundle=str(compile_once(model, options)))
    except NearfarError as error:
        emit(error=error.to_json())


def compile_once(model: str, options: CompileOptions) -> Path:
    from filelock import FileLock

    path = bundle_path(load(model, options.ignore_keys).path, options)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In a folder that cannot be written, the lock would wait forever.
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(
            f"{path.parent}: compiled models cannot be stored here: {reason_of(error)}; set {VARIABLE} to a "
            "writable folder"
        ) from error
    emit(path=str(path))
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not is_bundle(path):
            # A folder without a manifest is not a complete bundle.
            compile_any(
                model,
                path,
                replace(options, force=True),
                lambda phase, done, total: emit(progress=[phase, done, total]),
            )
    return path


def is_bundle(path: Path) -> bool:
    return (path / MANIFEST_FILE).is_file()


def emit(**message: Any) -> None:
    print(json.dumps(message, default=str), flush=True)


def error_of(message: dict[str, Any]) -> NearfarError:
    kind = next((kind for kind in leaves(NearfarError) if kind.code == message["code"]), NearfarError)
    return kind(message["message"], **message["details"])


def leaves(kind: type[NearfarError]) -> Iterator[type[NearfarError]]:
    for below in kind.__subclasses__():
        yield below
        yield from leaves(below)


if __name__ == "__main__":
    main(*sys.argv[1:])
