"""The bytes of a picture or a video that a message has in its URL (data:)."""

from __future__ import annotations

import base64
import binascii
import re

from ..errors import RequestError

# RFC 2397, with a type of images or videos or none, and parameters, which nobody needs.
DATA_URL = r"data:(?:{kind}/[\w.+-]+)?(?:;[\w.-]+=[\w.+,-]*)*;base64,"
PICTURE, VIDEO = "picture", "video"
# The type, and an example of it.
TYPES = {PICTURE: ("image", "image/png"), VIDEO: ("video", "video/mp4")}
# Of an error's message.
SHOWN_CHARACTERS = 80


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def read_data_url(url: str, what: str = PICTURE) -> bytes:
    """``what``: a picture or a video. Raises RequestError."""
    kind, example = TYPES[what]
    start = re.match(DATA_URL.format(kind=kind), url, re.ASCII | re.IGNORECASE)
    if start is None:
        raise wrong_url(f"{shown(url)} is not a data: URL of {article(kind)}; write data:{example};base64,...", kind)
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong_url(f"the data: URL of the {kind} is not base64: {error}", kind) from error


def article(kind: str) -> str:
    return f"an {kind}" if kind == "image" else f"a {kind}"


def shown(url: str) -> str:
    """A URL in a message."""
    return repr(url if len(url) <= SHOWN_CHARACTERS else f"{url[:SHOWN_CHARACTERS]}...")


def wrong_url(message: str, kind: str) -> RequestError:
    """``kind``: "image" or "video"."""
    return RequestError(message, code=f"invalid_{kind}_url")
