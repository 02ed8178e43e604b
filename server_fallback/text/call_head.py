"""Finds the start of a tool call in the text after its marker: the call's name, and where its arguments begin."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from nearfar.compiler.bundle.entries import ToolFormatEntry

from .argument_readers import JsonReader

_STRING = r'"(?:[^"\\]|\\.)*"'
_TYPE = r'(?:"type"\s*:\s*"function"\s*,\s*)?'
# A call that is a JSON object, up to the start of its arguments.
_OBJECT = re.compile(
    rf'\s*\{{\s*{_TYPE}"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)', re.DOTALL
)
_FIRST_KEY = re.compile(rf"\s*\{{\s*({_STRING})", re.DOTALL)
_OBJECT_OR_NOTHING = re.compile(r"\s*(\{|\Z)")
_KEYS = ("name", "type", "id", "arguments", "parameters")
_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_LONGEST_NAME = 64


class Head(NamedTuple):
    """``length`` characters precede the arguments. With ``arguments``, they include the whole call."""

    length: int
    name: str
    arguments: dict[str, Any] | None = None


class Wait:
    """More text is needed."""


WAIT: Final = Wait()


def find_head(form: ToolFormatEntry, text: str) -> Head | Wait | None:
    """The head at the start of ``text``; None if no continuation of ``text`` begins with a head."""
    return _object_head(text) if form.before_name.endswith('"') else _named_head(form, text)


def _object_head(text: str) -> Head | Wait | None:
    match = _OBJECT.match(text)
    name = None if match is None else _parsed(match[1])
    if match is not None and isinstance(name, str):
        return Head(match.end(), name)
    end = JsonReader().end(text) if _OBJECT_OR_NOTHING.match(text) else -1
    if end >= 0:
        call = _call(_parsed(text[:end]))
        return None if call is None else Head(end, *call)
    key = _FIRST_KEY.match(text)
    is_impossible = not _OBJECT_OR_NOTHING.match(text) or (key is not None and _parsed(key[1]) not in _KEYS)
    return None if is_impossible else WAIT


def _named_head(form: ToolFormatEntry, text: str) -> Head | Wait | None:
    at = len(text) - len(text.lstrip())
    before, after = form.before_name.removeprefix(form.marker).lstrip(), form.before_arguments.rstrip()
    if not text.startswith(before, at):
        return WAIT if before.startswith(text[at:]) else None
    match = _NAME.match(text, at + len(before))
    assert match is not None
    at, name = match.end(), match[0]
    if len(name) > _LONGEST_NAME:
        return None
    if at == len(text):
        return WAIT
    if not name:
        return None
    if form.gap and text.startswith(form.gap, at):
        at = text.find(after, at)
        if at < 0:
            return WAIT
    if not text.startswith(after, at):
        rest = text[at:]
        return WAIT if after.startswith(rest) or form.gap.startswith(rest) else None
    at += len(after)
    if form.arguments == "xml":
        return Head(at, name)
    begin = at + len(text[at:]) - len(text[at:].lstrip())
    if begin == len(text):
        return WAIT
    return Head(begin, name) if text[begin] == "{" else None


def _call(value: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
