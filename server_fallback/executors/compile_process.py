"""Compiling into the cache, in a process of its own: the compiler's libraries stay out of the server, and its work off the event loop.

The child prints one JSON object a line: {"progress": [phase, done, total]}, and at the end {"bundle": path} or {"error": ...}.
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
from nearfar.compiler.errors import NearfarError, OutputError, ToolError, reason_of
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any

from .bundle_cache import VARIABLE, bundle_place

Progress = Callable[[str, int, int], None]


async def compiled(model: str, options: CompileOptions, progress: Progress = lambda *_: None) -> Path:
    """The bundle of a checkpoint's folder or a hub's model, from the cache or compiled into it now.

    Several processes that want the same one wait for the first. Cancelled, it leaves nothing. Raises as `compile_any`.
    """
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        place = await asyncio.to_thread(bundle_place, folder, options)
        if is_there(place):
            return place
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, model, TypeAdapter(CompileOptions).dump_json(options).decode(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        # Ctrl-C is for us; the child is ended below.
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    partial: Path | None = None
    try:
        async for line in child.stdout:
            told = json.loads(line)
            if "place" in told:
                partial = Path(told["place"])
            elif "progress" in told:
                progress(*told["progress"])
            elif "error" in told:
                raise error_of(told["error"])
            else:
                return Path(told["bundle"])
        raise ToolError(
            f"{model}: the compiler ended without a word (status {await child.wait()}); is there enough memory?"
        )
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        if partial is not None:
            discard_partial(partial)


def main(model: str, options_json: str) -> None:
    """The child."""
    options = TypeAdapter(CompileOptions).validate_json(options_json)
    try:
        say(bundle=str(compile_once(model, options)))
    except NearfarError as error:
        say(error=error.to_json())


def compile_once(model: str, options: CompileOptions) -> Path:
    from filelock import FileLock

    place = bundle_place(load(model).path, options)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # A lock would wait for ever in a folder that cannot be written.
        with TemporaryFile(dir=place.parent):
            pass
    except OSError as error:
        raise OutputError(
            f"{place.parent}: compiled models cannot be stored here: {reason_of(error)}; set {VARIABLE} to a folder that can be written"
        ) from error
    say(place=str(place))
    with FileLock(place.with_name(f"{place.name}.lock")):
        if not is_there(place):
            # What is there without a manifest is no bundle of ours.
            compile_any(
                model,
                place,
                replace(options, force=True),
                lambda phase, done, total: say(progress=[phase, done, total]),
            )
    return place


def is_there(place: Path) -> bool:
    return (place / MANIFEST_FILE).is_file()


def say(**told: Any) -> None:
    print(json.dumps(told, default=str), flush=True)


def error_of(told: dict[str, Any]) -> NearfarError:
    kind = next((kind for kind in leaves(NearfarError) if kind.code == told["code"]), NearfarError)
    return kind(told["message"], **told["details"])


def leaves(kind: type[NearfarError]) -> Iterator[type[NearfarError]]:
    for below in kind.__subclasses__():
        yield below
        yield from leaves(below)


if __name__ == "__main__":
    main(*sys.argv[1:])
