"""Failures: what `web/src/shared/router/failures.ts` reads of an error of a side, and errors that no side reports."""

from __future__ import annotations

import sys
from typing import Any, Literal

from nearfar.compiler.runtime.errors import NearfarError, Unavailable
from nearfar.compiler.shared.script import SharedScript

from ...schema.route import Side


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


def side_fault(name: Literal["stopped", "budgetSpent", "privateText"], side: Side) -> NearfarError:
    try:
        SharedScript.of_thread().ask("sideFault", name, side)
    except NearfarError as error:
        return error
    raise AssertionError(f"{name} is an error")
