"""Logs: one line of JSON for each request and each event. Prompts, answers and keys are never logged, only the fields
listed here.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from nearfar.compiler.runtime.errors import NearfarError

from ..log_event import log_event
from .errors import ApiError
from .exchange import Exchange

# The exit code for errors of NearfarError's tree, as of all commands.
FAILED = 2
OURS, OTHERS = ("nearfar",), ("uvicorn", "py.warnings")


def configure_logs(stream: TextIO) -> None:
    """Write the log of this server and of uvicorn to ``stream``, each record as a line of JSON; warnings of libraries
    too, and an exception that ends the process. The command calls this, never the app.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for name in (*OURS, *OTHERS):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    set_level("info")
    logging.captureWarnings(True)
    sys.excepthook = _log_crash


def set_level(name: str) -> None:
    """ "debug", "info", "warning" or "error"; of other libraries, only warnings and errors are logged."""
    level = getattr(logging, name.upper())
    for logger in OURS:
        logging.getLogger(logger).setLevel(level)
    for logger in OTHERS:
        logging.getLogger(logger).setLevel(max(level, logging.WARNING))


@contextmanager
def errors_in_log(stream: TextIO) -> Iterator[None]:
    """An error that ends the server is a line of the log, unless a person reads it on a terminal. Raises SystemExit
    then, and otherwise the error.
    """
    try:
        yield
    except NearfarError as error:
        if stream.isatty():
            raise
        log_event("failed", logging.CRITICAL, error=error.code, message=error.message)
        raise SystemExit(FAILED) from error


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:  # noqa: ARG001
    """Python's own way would write lines that are not JSON, with a message that may quote a prompt."""
    if not isinstance(error, KeyboardInterrupt):
        log_event("crashed", logging.CRITICAL, **_stack(error))


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
