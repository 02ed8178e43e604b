"""Lenient requests: unknown keys are removed from a body, and listed in a header of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from .validation import dotted

IGNORED_HEADER = "X-Nearfar-Ignored"
# A header must fit the buffers of proxies.
MAX_NAMED = 16
MAX_NAME_CHARACTERS = 64


# Keys of objects and indexes of lists, from the outermost inwards.
Path = list[str | int]


@runtime_checkable
class Drops(Protocol):
    """A class of requests that may have other things than keys that this server lacks."""

    def drop_unsupported(self, body: Any) -> list[Path]:
        """Remove them from ``body``, and return their paths."""


def without_unknown(model: type[BaseModel], body: Any) -> list[Path]:
    """Remove the keys that ``model`` does not know from ``body``, at any depth, and what it drops, and return their
    paths.

    Of a body that is invalid in another way, no keys are removed: its error is reported as in strict mode.
    """
    dropped: list[Path] = model.drop_unsupported(body) if isinstance(model, Drops) else []
    try:
        read = model.model_validate(body, extra="allow")
    except ValidationError:
        return dropped
    return [*dropped, *_remove(read, body, [])]


def ignored_header(paths: list[Path]) -> str:
    """The paths ("messages[0].x"), at most 16, and the number of further ones. Characters that are not safe in a header
    become "?".
    """
    named = [re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", dotted(path)[:MAX_NAME_CHARACTERS]) for path in paths[:MAX_NAMED]]
    more = [f"and {len(paths) - MAX_NAMED} more"] if len(paths) > MAX_NAMED else []
    return ", ".join([*named, *more])


def _remove(read: object, value: Any, path: Path) -> Iterator[Path]:
    """``read`` is the validated form of ``value``."""
    if isinstance(read, BaseModel):
        for key in read.model_extra or ():
            del value[key]
            yield [*path, key]
        for name, field in type(read).model_fields.items():
            key = field.alias or name
            if key in value:
                yield from _remove(getattr(read, name), value[key], [*path, key])
    elif isinstance(read, list):
        for index, (inner, given) in enumerate(zip(read, value, strict=True)):
            if not isinstance(inner, BaseModel | list):
                # Lists of token ids or strings hold no keys.
                return
            yield from _remove(inner, given, [*path, index])
