"""Ollama's uploads, /api/blobs/DIGEST, and models that are created of them or of another model."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from nearfar.compiler.bundle.file_name import is_plain_name
from nearfar.compiler.bundle.new_folder import reported
from nearfar.compiler.formats.peft import CONFIG, WEIGHTS
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.store.blobs import link_or_copy
from nearfar.compiler.store.model import Changes
from nearfar.compiler.store.store import Store

from ..executors.stored_models import StoredModels
from ..schema.ollama import OllamaCreate
from .errors import ApiError
from .route import OLLAMA, StoreRoute, keyed_router
from .service import Service

DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
# An upload may pause for this time.
PAUSE_SECONDS = 60.0
# What a disk must have left after an upload.
SPARE_BYTES = 1 << 30


def uploads_router(service: Service) -> APIRouter:
    router = keyed_router(StoreRoute)

    @router.head("/api/blobs/{digest}", responses=OLLAMA)
    async def has(digest: str) -> Response:
        return Response(status_code=200 if _is_here(_store(service), digest) else 404)

    @router.post("/api/blobs/{digest}", responses=OLLAMA)
    async def upload(digest: str, request: Request) -> Response:
        store = _store(service)
        if not _is_here(store, digest):
            await _receive(request, upload_path(store, digest), sha256_in(digest))
        return Response(status_code=201)

    return router


def sha256_in(digest: str) -> str:
    """The hexadecimal digits of "sha256:HEX". Raises RequestError."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        raise RequestError(f"{digest[:80]!r} is not a digest; write sha256: and 64 hexadecimal digits", param="digest")
    return found[1]


def upload_path(store: Store, digest: str) -> Path:
    """Where an upload is until a model is created of it. Raises RequestError."""
    return _downloads(store) / f"upload-{sha256_in(digest)}"


def created_from(
    store: Store, name: str, body: OllamaCreate, changes: Changes, progress: Callable[[str, int, int], None]
) -> None:
    """Create the model of a request, which then has its own files: the uploads are removed. Raises RequestError for a
    request without a base, or with two.
    """
    if (body.from_ is None) == (not body.files):
        raise RequestError("create needs either 'from', a model, or 'files', uploaded files by name", param="from")
    adapters, files = body.adapters or {}, _named(body.files or {}, "files")
    if adapters and set(adapters) != {CONFIG, WEIGHTS}:
        raise RequestError(f"adapters: upload {CONFIG} and {WEIGHTS}, as PEFT writes them", param="adapters")
    with TemporaryDirectory(prefix=".create-", dir=_downloads(store)) as folder:
        # Links of its own: another creation of the same files removes the uploads when it ends.
        uploads = dict[str, Path]()
        for digest in (*adapters.values(), *files.values()):
            if digest not in uploads:
                uploads[digest] = _uploaded(store, digest, Path(folder, str(len(uploads))))
        if adapters:
            adapter = Path(folder, "adapter")
            adapter.mkdir()
            for each, digest in adapters.items():
                shutil.copyfile(uploads[digest], adapter / each)
            changes = replace(changes, adapter=adapter)
        if body.from_ is not None:
            store.create(name, body.from_, changes, progress, local=False)
        else:
            store.create_of_files(name, {each: uploads[digest] for each, digest in files.items()}, changes, progress)
    for digest in uploads:
        upload_path(store, digest).unlink(missing_ok=True)


def _named(files: Mapping[str, str], param: str) -> Mapping[str, str]:
    for name in files:
        if not is_plain_name(name):
            raise RequestError(
                f"{param}: {name[:80]!r} is not a plain name; use letters, digits, '_', '-' and '.'", param=param
            )
    return files


def _is_here(store: Store, digest: str) -> bool:
    """Whether a file need not be sent: it was uploaded, or a model of the store has it. Raises RequestError."""
    return upload_path(store, digest).is_file() or store.blobs.path(sha256_in(digest)).is_file()


def _uploaded(store: Store, digest: str, target: Path) -> Path:
    """``target``, as another name of a file that is here. Raises RequestError."""
    with suppress(FileNotFoundError):
        link_or_copy(upload_path(store, digest), target)
        return target
    if not store.blobs.place(sha256_in(digest), target):
        raise RequestError(f"{digest}: was not uploaded; send it to POST /api/blobs/{digest} first", param="files")
    return target


async def _receive(request: Request, path: Path, sha256: str) -> None:
    """Write a body to a file that appears when all bytes have come and have this hash. Raises ApiError."""
    digest, last = hashlib.sha256(), 0.0
    with NamedTemporaryFile(dir=path.parent, prefix=".upload-", delete=False) as file:
        try:
            stream = aiter(request.stream())
            while True:
                async with asyncio.timeout(PAUSE_SECONDS):
                    part = await anext(stream, None)
                if part is None:
                    break
                await asyncio.to_thread(file.write, part)
                digest.update(part)
                if time.monotonic() - last > 1:
                    last = time.monotonic()
                    _require_space(path.parent)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
            if digest.hexdigest() != sha256:
                raise ApiError(
                    400, f"the body has SHA-256 {digest.hexdigest()}, not {sha256}; send it again", "wrong_digest"
                )
            Path(file.name).replace(path)
        except TimeoutError:
            raise ApiError(408, f"no bytes came for {PAUSE_SECONDS:g} s; send it again", "body_timeout") from None
        except ClientDisconnect:
            raise ApiError(499, "the client disconnected during the upload", "client_disconnected") from None
        except OSError as error:
            # Between two looks at the free space, another program may have used it up.
            message = f"the upload cannot be written: {reason_of(error)}; free space on the disk of the store"
            raise ApiError(507, message, "disk_full", kind="server_error") from error
        finally:
            Path(file.name).unlink(missing_ok=True)


def _require_space(folder: Path) -> None:
    if not hasattr(os, "statvfs"):
        return
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < SPARE_BYTES:
        raise ApiError(507, "the disk of the store is nearly full; free space", "disk_full", kind="server_error")


def _downloads(store: Store) -> Path:
    """Raises OutputError."""
    folder = store.folder / "downloads"
    with reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _store(service: Service) -> Store:
    if not isinstance(service.models, StoredModels):
        raise ApiError(400, "this server has no store; start nearfar serve without a model", "no_store")
    return service.models.store
