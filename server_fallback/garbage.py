"""Garbage collection in processes that serve: rare, because a collection delays every answer."""

from __future__ import annotations

import gc


def collect_garbage_rarely() -> None:
    """Call once everything that stays in memory exists: it is not scanned any more.

    With Python's default thresholds, reading a large body makes the garbage collector scan all objects of the process
    several times, which takes 0.2 s, and an engine's step with 256 sequences starts three collections. Young objects
    are still scanned often, because the traceback of an error may hold a body.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)
