"""Reads a body of multipart/form-data (RFC 7578): texts by their names, and one file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ApiError
from .json_body import printable

MAX_PARTS = 64
MAX_TEXT_BYTES = 64 << 10
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Form:
    """``texts`` by name, in order; a name that ends in [] has a list. ``file``: the content of the part "file", and its
    name.
    """

    texts: dict[str, str | list[str]]
    file: bytes
    file_name: str


def boundary_of(content_type: str) -> bytes:
    """Raises ApiError (415) for a body of another type."""
    kind, _, parameters = content_type.partition(";")
    match = _BOUNDARY.search(parameters)
    if kind.strip().lower() != "multipart/form-data" or match is None:
        given = f"is {printable(content_type)!r}" if content_type else "is missing"
        raise ApiError(
            415, f"the Content-Type {given}; send multipart/form-data with a boundary", "unsupported_content_type"
        )
    return (match[1] or match[2]).encode("latin-1", "replace")


def parse_form(body: bytes, boundary: bytes) -> Form:
    """Raises ApiError (400) for a body that is no form, two parts of a name, a text that is not UTF-8 or too long, and
    a missing file.
    """
    texts: dict[str, str | list[str]] = {}
    file: tuple[bytes, str] | None = None
    for name, file_name, content in _parts(body, boundary):
        if name == "file":
            if file is not None:
                raise _bad("the form has two files", "file")
            file = content, file_name or "file"
            continue
        if len(content) > MAX_TEXT_BYTES:
            raise _bad(f"'{printable(name)}' has {len(content):,} bytes; at most {MAX_TEXT_BYTES:,} fit", name)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise _bad(f"'{printable(name)}' is not UTF-8", name) from None
        if name.endswith("[]"):
            own = texts.setdefault(name[:-2], [])
            if isinstance(own, list):
                own.append(text)
                continue
        if name.removesuffix("[]") in texts:
            raise _bad(f"the form has '{printable(name)}' twice", name)
        texts[name] = text
    if file is None:
        raise ApiError(400, "Missing required parameter: 'file'.", "missing_required_parameter", "file")
    return Form(texts, *file)


def _parts(body: bytes, boundary: bytes) -> list[tuple[str, str | None, bytes]]:
    """The name, the name of the file if there is one, and the content of each part."""
    line = b"--" + boundary
    # What precedes the first boundary is not read.
    pieces = (b"\r\n" + body).split(b"\r\n" + line)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _bad("the body is not the form that its Content-Type declares, or it is cut off")
    if len(pieces) - 2 > MAX_PARTS:
        raise _bad(f"the form has {len(pieces) - 2} parts; at most {MAX_PARTS} are supported")
    parts = []
    for piece in pieces[1:-1]:
        head, separator, content = piece.partition(b"\r\n\r\n")
        disposition = next(
            (header for header in head.split(b"\r\n") if header.lower().startswith(b"content-disposition:")), b""
        )
        found = {key.lower(): value for key, value in _PARAMETER.findall(disposition)}
        if not separator or b"name" not in found:
            raise _bad("a part of the form has no name")
        name, file_name = (
            None if found.get(key) is None else found[key].decode("utf-8", "replace") for key in (b"name", b"filename")
        )
        parts.append((name or "", file_name, content))
    return parts


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_value", None if param is None else printable(param))
