"""The encoded form of retained pages, for files and for other machines.

It is a magic number, the sizes of the next two parts, a header in JSON, the token ids as 64-bit integers, the pages,
and the SHA-256 of all of this. Numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from .retained_pages import RetainedPages

# The last character is the version.
MAGIC = b"nearfarPrefix\0\0\1"
SIZES = struct.Struct("<QQ")
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What computed a prefix: the bundle's id, the dtype of its activations ("" for a framework's own), and a
    description of the device. Devices may differ: they round other last bits.
    """

    bundle: str
    activation: str
    device: str


def encode(pages: RetainedPages, key: PrefixKey) -> bytes:
    header = json.dumps({**asdict(key), "adapter": pages.adapter, "dead_pages": list(pages.dead_pages)}).encode()
    tokens = np.array(pages.token_ids, "<i8").tobytes()
    parts = [MAGIC, SIZES.pack(len(header), len(tokens)), header, tokens, pages.data]
    digest = sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def decode(data: bytes, key: PrefixKey) -> RetainedPages:
    """Raises RequestError for data that is damaged, or that another bundle computed, or the bundle with other
    activations.
    """
    header, tokens, pages = _parts(data)
    try:
        found = PrefixKey(header["bundle"], header["activation"], header["device"])
        adapter, dead_pages = str(header["adapter"]), [int(dead) for dead in header["dead_pages"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"its header is incomplete ({error!r})") from error
    if (found.bundle, found.activation) != (key.bundle, key.activation):
        raise RequestError(
            f"the prefix was computed by the bundle {found.bundle[:12]}... with {found.activation} activations on "
            f"{found.device}, and this is the bundle {key.bundle[:12]}... with {key.activation}; compute it again",
            cause="other model",
        )
    return RetainedPages(np.frombuffer(tokens, "<i8").tolist(), dead_pages, adapter, pages)


def _parts(data: bytes) -> tuple[Mapping[str, Any], bytes, bytes]:
    """The header, the tokens, and the pages."""
    start = len(MAGIC) + SIZES.size
    if data[: len(MAGIC)] != MAGIC:
        if data[: len(MAGIC) - 1] == MAGIC[:-1]:
            raise RequestError("the prefix is of another version of nearfar; compute it again", cause="other version")
        raise RequestError("these are not the pages of a prefix", cause="damaged")
    end = len(data) - DIGEST_BYTES
    if end < start or sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise _damaged("its SHA-256 is another one")
    header_bytes, token_bytes = SIZES.unpack_from(data, len(MAGIC))
    if header_bytes + token_bytes > end - start or token_bytes % 8 > 0:
        raise _damaged("its parts are longer than all of it")
    tokens = start + header_bytes
    pages = tokens + token_bytes
    try:
        header = json.loads(data[start:tokens])
    except ValueError as error:
        raise _damaged(f"its header is not JSON ({error})") from error
    return header, data[tokens:pages], data[pages:end]


def _damaged(why: str) -> RequestError:
    return RequestError(f"the prefix is damaged: {why}; compute it again", cause="damaged")
