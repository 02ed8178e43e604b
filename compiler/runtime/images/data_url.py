"""The bytes of a picture that a message has in its URL (data:)."""

from __future__ import annotations

import base64
import binascii
import re

from ..errors import RequestError

# RFC 2397, with a type of images or none, and parameters, which nobody needs.
DATA_URL = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w.-]+=[\w.+-]*)*;base64,", re.ASCII | re.IGNORECASE)
# Of an error's message.
SHOWN_CHARACTERS = 80
CODE = "invalid_image_url"


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def read_data_url(url: str) -> bytes:
    """Raises RequestError."""
    start = DATA_URL.match(url)
    if start is None:
        raise wrong_url(f"{shown(url)} is not a data: URL of an image; write data:image/png;base64,...")
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise wrong_url(f"the data: URL of the image is not base64: {error}") from error


def shown(url: str) -> str:
    """A URL in a message."""
    return repr(url if len(url) <= SHOWN_CHARACTERS else f"{url[:SHOWN_CHARACTERS]}...")


def wrong_url(message: str) -> RequestError:
    return RequestError(message, code=CODE)
