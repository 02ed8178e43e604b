"""Patterns of private texts, compiled for the library regex, which searches without the interpreter's lock and within a
time limit. `web/src/shared/decision/pattern.ts` defines and reads them.
"""

from __future__ import annotations

from functools import lru_cache

import regex

from nearfar.compiler.shared.script import SharedScript


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, *, ignore_case: bool, boundaries: bool = False) -> regex.Pattern[str]:
    """With ``boundaries``, a match may continue over a `readings.BOUNDARY`, and every assertion (^, $, \\b and \\B)
    holds there. ``pattern`` is one of a policy that was read.
    """
    source = SharedScript.of_thread().ask("patternSource", pattern, ignore_case, boundaries)
    return regex.compile(source, regex.ASCII)
