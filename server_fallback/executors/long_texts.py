"""Runs work on a thread if its texts are long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ..text.text_size import is_longer

# Characters. Longer requests are read on a thread: a tokenizer needs most of a second for a megabyte of text.
INLINE_CHARACTERS = 16_384
Result = TypeVar("Result")


async def in_thread_if_long(given: object, work: Callable[[], Result]) -> Result:
    """Run ``work`` on a thread if the texts in ``given``, its input, are long."""
    return await asyncio.to_thread(work) if is_longer(given, INLINE_CHARACTERS) else work()
