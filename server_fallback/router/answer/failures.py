"""Failures: what `web/src/shared/router/failures.ts` reads of an error of a side."""

from __future__ import annotations

from typing import Any

from nearfar.compiler.runtime.errors import NearfarError, Unavailable


def side_error(error: NearfarError) -> dict[str, Any]:
    """A SideError."""
    wait = error.details.get("retry_after_seconds")
    return {
        "error": error.code,
        **{name: error.details[name] for name in ("status", "code") if name in error.details},
        "retryable": isinstance(error, Unavailable),
        **({"retry_after_ms": wait * 1000} if isinstance(wait, int | float) else {}),
    }
