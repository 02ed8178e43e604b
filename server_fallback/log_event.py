"""Events of the server's log. `api/log.py` writes them as lines of JSON, with these fields."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("nearfar.server")


def log_event(event: str, level: int = logging.INFO, **fields: object) -> None:
    """Prompts, answers and keys are no fields."""
    LOGGER.log(level, event, extra={"fields": fields})


def log_output(program: str, line: str) -> None:
    """A line of another program's output, or about it: an event in a log of events, and otherwise a line for people."""
    if logging.getLogger("nearfar").handlers and not sys.stderr.isatty():
        log_event("program_output", program=program, line=line)
    else:
        print(f"{program} | {line}", file=sys.stderr, flush=True)
