"""Failures: what `web/src/shared/router/failures.ts` reads of an error of a side."""

from __future__ import annotations

import sys
from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, Unavailable


def side_error(error: NearfarError) -> dict[str, Any]:
    """A SideError."""
    wait = error.details.get("retry_after_seconds")
    return {
        "error": error.code,
        **{name: error.details[name] for name in ("status", "code") if name in error.details},
        "retryable": isinstance(error, Unavailable),
        # JSON has no infinity.
        **({"retry_after_ms": min(wait * 1000, sys.float_info.max)} if isinstance(wait, int | float) else {}),
    }
