"""Events of the server's log. `api/log.py` writes them as lines of JSON, with these fields."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("nearfar.server")


def log_event(event: str, level: int = logging.INFO, **fields: object) -> None:
    """Prompts, answers and keys are no fields."""
    LOGGER.log(level, event, extra={"fields": fields})
