"""Fetches files of web servers, and of this disk (file:). A lost connection, or a later run, continues where it
stopped.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..runtime.errors import BundleError, RequestError, Unavailable, reason_of

ATTEMPTS = 5
# Before the second attempt; it doubles.
PAUSE_S = 0.25
TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 20
MAX_KERNEL_BYTES = 256 << 20


def continue_file(address: str, path: Path, start: int, size: int | None) -> int:
    """Append the bytes from ``start`` on, with retries. Returns the size. A server that offers another number of bytes
    than ``size``, or sends more, is a BundleError before the disk has them.
    """
    limit = MAX_KERNEL_BYTES if size is None else size
    with path.open("r+b" if path.is_file() else "wb") as file:
        file.truncate(start)
        file.seek(start)
        for attempt in range(ATTEMPTS):
            pause(attempt)
            try:
                with opened(address, file.tell()) as (response, offset):
                    expected = length_of(response)
                    if size is not None and expected is not None and offset + expected != size:
                        raise other_bytes(address, path)
                    file.seek(offset)
                    file.truncate()
                    while data := response.read(min(CHUNK_BYTES, limit - file.tell() + 1)):
                        if file.tell() + len(data) > limit:
                            raise other_bytes(address, path)
                        file.write(data)
                    complete = offset + expected if expected is not None else size
                    if complete is None or file.tell() == complete:
                        return file.tell()
            except (OSError, HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == 416:
                    raise other_bytes(address, path) from error
                if attempt == ATTEMPTS - 1 or not may_pass(error):
                    raise Unavailable(f"{address}: cannot be downloaded: {reason_of(error)}; try again") from error
    raise Unavailable(f"{address}: the connection was lost {ATTEMPTS} times; run the command again, which continues")


def fetch_unlisted(address: str, path: Path, progress: Callable[[int, int], None]) -> None:
    """Complete a file whose hash and size nobody states. What an earlier run left at ``path`` is continued only if the
    server says that the file is still the same (ETag, RFC 9110, 8.8.3). Raises Unavailable.
    """
    mark = path.with_name(f"{path.name}.etag")
    with path.open("r+b" if path.is_file() else "wb") as file:
        for attempt in range(ATTEMPTS):
            pause(attempt)
            etag = mark.read_text() if mark.is_file() else ""
            try:
                with opened(address, file.seek(0, 2) if etag else 0, etag) as (response, offset):
                    file.seek(offset)
                    file.truncate()
                    if not offset:
                        mark.write_text(strong_etag(response))
                    expected = length_of(response)
                    size = None if expected is None else offset + expected
                    while data := response.read(CHUNK_BYTES):
                        file.write(data)
                        progress(file.tell(), size or 0)
                    if size is None or file.tell() == size:
                        return
                file.flush()
            except (OSError, HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == 416:
                    mark.unlink(missing_ok=True)  # It is shorter than what is here.
                elif attempt == ATTEMPTS - 1 or not may_pass(error):
                    raise Unavailable(f"{address}: cannot be downloaded: {reason_of(error)}; try again") from error
    raise Unavailable(f"{address}: the connection was lost {ATTEMPTS} times; run the command again, which continues")


def strong_etag(response: Any) -> str:
    """Empty if the server has none that stands for the same bytes."""
    stated = response.headers.get("ETag") or ""
    return stated if stated.startswith('"') and stated.isascii() and len(stated) < 512 else ""


@contextmanager
def opened(address: str, offset: int, etag: str = "") -> Iterator[tuple[Any, int]]:
    """The response, and the offset of its first byte: 0 from a server without ranges, or if the file no longer has the
    ``etag``.
    """
    headers = {"Range": f"bytes={offset}-", **({"If-Range": etag} if etag else {})} if offset else {}
    if urlsplit(address).scheme not in ("http", "https", "file"):
        raise RequestError(f"{address}: is not an address of a web server or a file")
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S) as response:
        yield response, offset if response.status == 206 else 0


def length_of(response: Any) -> int | None:
    """None if the server does not say it, or says something else. The hashes decide in any case."""
    stated = response.headers.get("Content-Length") or ""
    return int(stated) if re.fullmatch(r"[0-9]{1,18}", stated) else None


def read_all(address: str, limit: int) -> bytes:
    """Raises BundleError for more bytes than the limit, Unavailable if it cannot be read."""
    for attempt in range(ATTEMPTS):
        pause(attempt)
        try:
            with opened(address, 0) as (response, _):
                data: bytes = response.read(limit + 1)
                expected = length_of(response)
        except (OSError, HTTPException) as error:
            if attempt == ATTEMPTS - 1 or not may_pass(error):
                advice = "check the address and the network"
                raise Unavailable(f"{address}: cannot be read: {reason_of(error)}; {advice}") from error
            continue
        if len(data) > limit:
            raise BundleError(f"{address}: has more than {limit:,} bytes; this is no such file")
        if expected is None or len(data) == expected:
            return data
    raise Unavailable(f"{address}: the connection was lost {ATTEMPTS} times; run the command again")


def may_pass(error: Exception) -> bool:
    """Whether another attempt may succeed: not if the server or the disk refuses."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500
    return not (isinstance(error, urllib.error.URLError) and isinstance(error.reason, FileNotFoundError))


def pause(attempt: int) -> None:
    if attempt > 0:
        time.sleep(PAUSE_S * 2 ** (attempt - 1))


def other_bytes(address: str, path: Path) -> BundleError:
    return BundleError(f"{address}: has other bytes than the manifest says; ask the owner of the site", file=path.name)
