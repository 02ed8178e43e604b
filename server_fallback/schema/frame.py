"""A frame: two integers of 32 bits (little endian), which are the sizes of a header and of a payload; the header as
JSON; and the payload. The answers of /v1/nearfar/pages and /v1/nearfar/prefill are sequences of frames.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

SIZES = struct.Struct("<II")


def frame(header: Mapping[str, object], payload: bytes = b"") -> bytes:
    """A frame up to its payload, which is sent after it."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return SIZES.pack(len(text), len(payload)) + text
