"""Compiling into the cache, in a process of its own: the compiler's libraries stay out of the server, and its work off
the event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.bundle.new_folder import discard_partial
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import compile_any
from nearfar.compiler.pipeline.options import CompileOptions
from nearfar.compiler.runtime.errors import OutputError, ToolError, reason_of
from nearfar.compiler.store.bundles import (
    bundle_path,
    evict_bundles,
    is_bundle,
    limit_bytes,
    mark_used,
    note_source,
)
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.opening import compile_fields
from nearfar.compiler.store.place import VARIABLE, cache_folder
from nearfar.compiler.store.store import Store

from ..processes.worker import WorkerEnded, WorkerProcess
from ..processes.worker_loop import Send, serve
from .devices import default_arch, default_target

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class CompileJob:
    model: str
    options: CompileOptions


@dataclass(frozen=True, slots=True)
class Compiling:
    """The bundle will be at ``path``."""

    path: Path


async def compiled(model: str, options: CompileOptions, progress: Progress = lambda *_: None) -> Path:
    """The bundle of a checkpoint's folder, a GGUF file or a hub's model, from the cache or compiled into it now.

    Several processes that need the same bundle wait for the first one. A cancelled compile leaves nothing behind.
    Raises the errors of `compile_any`.
    """
    checkpoint = Path(os.path.expanduser(model))
    # For impossible file names, the functions of os.path return False, whereas those of Path raise.
    if os.path.exists(checkpoint):
        path = await asyncio.to_thread(bundle_path, checkpoint, options)
        if is_bundle(path):
            mark_used(path)
            return path
    partial: Path | None = None

    def receive(message: Compiling | tuple[str, int, int]) -> None:
        nonlocal partial
        if isinstance(message, Compiling):
            partial = message.path
        else:
            progress(*message)

    process = WorkerProcess(__name__, None)
    try:
        bundle: Path = await process.call(CompileJob(model, options), math.inf, receive)
        return bundle
    except WorkerEnded as ended:
        raise ToolError(
            f"{model}: the compiler exited without a message (status {ended.status}); check that there is enough memory"
        ) from ended
    finally:
        process.close()
        if partial is not None:
            await asyncio.to_thread(discard_partial, partial)


def default_options(ignore_keys: tuple[str, ...] = ()) -> CompileOptions:
    """The options that `nearfar serve` and `nearfar run` compile with when their user gives no others: they share the
    bundle in the cache.
    """
    target = default_target()
    return CompileOptions(target=target, arch=default_arch(target), ignore_keys=ignore_keys)


def default_bundle(
    model: str, ignore_keys: tuple[str, ...], progress: Progress, stored: StoredModel | None = None
) -> Path:
    """The bundle of a checkpoint, from the store or compiled into it now; ``stored``: the model that sets options.
    Raises as `compile_any`.
    """
    options = default_options(ignore_keys)
    options = replace(options, **compile_fields(stored, Store.of_user(), asdict(options)))
    return asyncio.run(compiled(model, options, progress))


def main() -> None:
    """The child process."""

    def open_worker(send: Send) -> Callable[[object], Path]:
        def compile_job(job: object) -> Path:
            assert isinstance(job, CompileJob)
            return compile_once(job.model, job.options, send)

        return compile_job

    serve(open_worker)


def compile_once(model: str, options: CompileOptions, send: Send = lambda _: None) -> Path:
    """Sends `Compiling`, and then the arguments of `Progress`."""
    from filelock import FileLock

    checkpoint = load(model, options.ignore_keys).path
    path, limit = bundle_path(checkpoint, options), limit_bytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In a folder that cannot be written, the lock would wait forever.
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OutputError(
            f"{cache_folder()}: compiled models cannot be stored here: {reason_of(error)}; set {VARIABLE} to a "
            "writable folder"
        ) from error
    send(Compiling(path))
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not is_bundle(path):
            # A folder without a manifest is not a complete bundle.
            compile_any(
                model,
                path,
                replace(options, force=True),
                lambda *progress: send(progress),
            )
            note_source(path, checkpoint)
            Store.of_user().blobs.share(path, open_any(path).hashes())
    mark_used(path)
    evict_bundles(limit)
    return path
