"""Logs: one line of JSON for each request and each event. No prompt, no answer and no key comes in: only what is named here."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Mapping
from typing import TextIO

from .errors import ApiError
from .exchange import Exchange

LOGGER = logging.getLogger("nearfar.server")


def configure_logs(stream: TextIO, level: int = logging.INFO) -> None:
    """Let this server's lines and uvicorn's go to ``stream``, each a line of JSON. Called by who runs a process, never by the app."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in ("nearfar", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level if name == "nearfar" else max(level, logging.WARNING))
        logger.propagate = False


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            line.update(_stack(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False, default=str)


def log_event(event: str, level: int = logging.INFO, **fields: object) -> None:
    LOGGER.log(level, event, extra={"fields": fields})


def log_failure(exchange: Exchange, error: BaseException, told: ApiError) -> None:
    """Note in the request's line why it failed. What is our own fault, or may be, gets a line with its stack."""
    exchange.log["error"] = told.code
    if told.code in ("internal_error", "unreadable_text"):
        log_event("bug", logging.ERROR, request_id=exchange.request_id, **_stack(error))


def _stack(error: BaseException) -> dict[str, object]:
    """Where it happened and what kind it is, without its message, which may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": type(error).__name__,
        "stack": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
