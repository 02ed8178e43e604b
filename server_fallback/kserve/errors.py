"""The protocol's form of an error."""

from __future__ import annotations

import json

from ..api.errors import ApiError


def kserve_error(error: ApiError) -> bytes:
    return json.dumps({"error": error.body().error.message}).encode()
