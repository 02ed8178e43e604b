"""Logs: one line of JSON for each request and each event. Prompts, answers and keys are never logged, only the fields
listed here.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Mapping
from typing import TextIO

from ..log_event import log_event
from .errors import ApiError
from .exchange import Exchange


def configure_logs(stream: TextIO, level: int = logging.INFO) -> None:
    """Write the log of this server and of uvicorn to ``stream``, each record as a line of JSON. The command calls this,
    never the app.
    """
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
            "pid": record.process,
            "event": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            line.update(_stack(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False, default=str)


def log_failure(exchange: Exchange, error: BaseException, reported: ApiError) -> None:
    """Record in the request's log line why it failed. An error that is, or may be, a bug of the server gets a line with
    its stack.
    """
    exchange.log["error"] = reported.code
    if reported.code in ("internal_error", "unreadable_text"):
        log_event("bug", logging.ERROR, request_id=exchange.request_id, **_stack(error))


def _stack(error: BaseException) -> dict[str, object]:
    """The error's type and stack, without its message, which may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": type(error).__name__,
        "stack": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
