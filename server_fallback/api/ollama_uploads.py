"""Ollama's uploads, /api/blobs/DIGEST, and models that are created of them or of another model."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from nearfar.compiler.bundle.file_name import is_plain_name
from nearfar.compiler.formats.peft import CONFIG, WEIGHTS
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.store.model import Changes
from nearfar.compiler.store.store import Store

from ..executors.stored_models import StoredModels
from ..schema.ollama import OllamaCreate
from .errors import ApiError
from .route import OLLAMA, StoreRoute, keyed_router
from .service import Service

DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
# An upload may pause for this time, and must have begun this recently to be kept.
PAUSE_SECONDS = 60.0
# What a disk must have left after an upload.
SPARE_BYTES = 1 << 30


def uploads_router(service: Service) -> APIRouter:
    router = keyed_router(StoreRoute)

    @router.head("/api/blobs/{digest}", responses=OLLAMA)
    async def has(digest: str) -> Response:
        path = upload_path(_store(service), digest)
        return Response(status_code=200 if path.is_file() else 404)

    @router.post("/api/blobs/{digest}", responses=OLLAMA)
    async def upload(digest: str, request: Request) -> Response:
        path = upload_path(_store(service), digest)
        if not path.is_file():
            await _receive(request, path, sha256_in(digest))
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
    return store.folder / "downloads" / f"upload-{sha256_in(digest)}"


def created_from(
    store: Store, name: str, body: OllamaCreate, changes: Changes, progress: Callable[[str, int, int], None]
) -> None:
    """Create the model of a request. Raises RequestError for a request without a base, or with two."""
    if (body.from_ is None) == (not body.files):
        raise RequestError("create needs either 'from', a model, or 'files', uploaded files by name", param="from")
    if body.adapters:
        changes = replace(changes, adapter=_adapter_folder(store, body.adapters))
    if body.from_ is not None:
        store.create(name, body.from_, changes, progress)
        return
    files = {each: _uploaded(store, digest) for each, digest in _named(body.files or {}, "files").items()}
    store.create_of_files(name, files, changes, progress)


def _named(files: Mapping[str, str], param: str) -> Mapping[str, str]:
    for name in files:
        if not is_plain_name(name):
            raise RequestError(
                f"{param}: {name[:80]!r} is not a plain name; use letters, digits, '_', '-' and '.'", param=param
            )
    return files


def _uploaded(store: Store, digest: str) -> Path:
    path = upload_path(store, digest)
    if not path.is_file():
        raise RequestError(f"{digest}: was not uploaded; send it to POST /api/blobs/{digest} first", param="files")
    return path


def _adapter_folder(store: Store, files: Mapping[str, str]) -> Path:
    """A folder with an uploaded adapter in PEFT's format: the names of its files lead to the uploads."""
    if set(files) != {CONFIG, WEIGHTS}:
        raise RequestError(f"adapters: upload {CONFIG} and {WEIGHTS}, as PEFT writes them", param="adapters")
    named = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(files.items())).encode()).hexdigest()
    folder = store.folder / "downloads" / f"adapter-{named}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in files.items():
        (folder / name).unlink(missing_ok=True)
        os.link(_uploaded(store, digest), folder / name)
    return folder


async def _receive(request: Request, path: Path, sha256: str) -> None:
    """Write a body to a file that appears when all bytes have come and have this hash. Raises ApiError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, last = hashlib.sha256(), time.monotonic()
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
        finally:
            Path(file.name).unlink(missing_ok=True)


def _require_space(folder: Path) -> None:
    if not hasattr(os, "statvfs"):
        return
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < SPARE_BYTES:
        raise ApiError(507, "the disk of the store is nearly full; free space", "disk_full", kind="server_error")


def _store(service: Service) -> Store:
    if not isinstance(service.models, StoredModels):
        raise ApiError(400, "this server has no store; start nearfar serve without a model", "no_store")
    return service.models.store
