"""Read the arguments of a tool call from the text of an answer, and write them as JSON while they come.

There is one reader for each syntax of `ToolFormatEntry`. A reader looks at the text that is not read yet, and returns
how many characters it has read, the JSON that they add, and whether the arguments are complete. All JSON that it
returns, in order, does not depend on how the text is divided into pieces. web/src/text/argument_readers.ts does the
same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple, NoReturn, Protocol

_QUOTE = '<|"|>'
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_FUNCTION_END = re.compile(r"\s*</function>")
_VALUE_END = "</parameter>"
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class Read(NamedTuple):
    length: int
    json: str
    done: bool


class ArgumentReader(Protocol):
    def read(self, text: str) -> Read: ...


class JsonReader:
    """Follows JSON text until its first object ends. With ``depth`` 1, the object has already begun."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def read(self, text: str) -> Read:
        end = self.end(text)
        length = len(text) if end < 0 else end
        return Read(length, text[:length], end >= 0)

    def end(self, text: str) -> int:
        """The index after the object's closing brace; -1 if ``text`` does not contain it."""
        for position, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
        return -1


class GemmaReader:
    """``{key:<|"|>text<|"|>,other:[1,true]}``. Words that are not JSON become strings."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = False
        # A key, a number or a constant that has not ended.
        self._word = ""
        self._is_key = False

    def read(self, text: str) -> Read:
        at, parts = 0, list[str]()
        while at < len(text):
            if self._in_string:
                end = text.find(_QUOTE, at)
                stop = len(text) - overlap(text[at:], _QUOTE) if end < 0 else end
                if self._is_key:
                    self._word += text[at:stop]
                else:
                    parts.append(_escaped(text[at:stop]))
                at = stop
                if end < 0:
                    break
                self._in_string = False
                at += len(_QUOTE)
                if not self._is_key:
                    parts.append('"')
                continue
            character = text[at]
            if character == "<" and _QUOTE.startswith(text[at : at + len(_QUOTE)]):
                if len(text) - at < len(_QUOTE):
                    break
                at += len(_QUOTE)
                self._in_string = True
                if not self._is_key:
                    parts.append(f'{self._flushed()}"')
                continue
            at += 1
            parts.append(self._structure(character))
            if not self._open:
                return Read(at, "".join(parts), True)
        return Read(at, "".join(parts), False)

    def _structure(self, character: str) -> str:
        if character in "{[":
            self._open.append(character)
            self._is_key = character == "{"
            return character
        if character in "}]":
            flushed = "" if self._is_key else self._flushed()
            self._open.pop()
            self._is_key, self._word = False, ""
            return flushed + character
        if character == ",":
            flushed = self._flushed()
            self._is_key = self._open[-1] == "{"
            return flushed + character
        if character == ":" and self._is_key:
            key, self._word, self._is_key = self._word.strip(), "", False
            return json.dumps(key, ensure_ascii=False) + character
        self._word += character
        return ""

    def _flushed(self) -> str:
        word, self._word = self._word.strip(), ""
        return "" if not word else json_value(word)


class XmlReader:
    """``<parameter=key>`` elements up to ``</function>`` or ``close``.

    The values of ``texts`` are strings; every other value is JSON, or a string if it is not JSON.
    """

    def __init__(self, texts: Collection[str], close: str) -> None:
        self._texts, self._close = texts, close
        self._key: str | None = None
        self._count = -1

    def read(self, text: str) -> Read:
        at, parts = 0, list[str]()
        if self._count < 0:
            self._count = 0
            parts.append("{")
        while True:
            rest = text[at:]
            if self._key is not None:
                end = rest.find(_VALUE_END)
                if end < 0:
                    return Read(at, "".join(parts), False)
                parts.append(self._member(self._key, rest[:end]))
                self._key = None
                at += end + len(_VALUE_END)
                continue
            begin, ended = _PARAMETER.match(rest), _FUNCTION_END.match(rest)
            if begin is not None:
                self._key = begin[1]
                at += begin.end()
            elif ended is not None or rest.lstrip().startswith(self._close):
                return Read(at + (0 if ended is None else ended.end()), "".join([*parts, "}"]), True)
            elif _may_follow(rest.lstrip(), self._close):
                return Read(at, "".join(parts), False)
            else:
                # Text between the elements has no meaning.
                following = rest.find("<", len(rest) - len(rest.lstrip()) + 1)
                at += len(rest) if following < 0 else following

    def _member(self, key: str, raw: str) -> str:
        value = raw.removeprefix("\n").removesuffix("\n")
        written = json.dumps(value, ensure_ascii=False) if key in self._texts else json_value(value)
        self._count += 1
        return f"{',' if self._count > 1 else ''}{json.dumps(key, ensure_ascii=False)}:{written}"


def json_value(text: str) -> str:
    """The JSON of a value: the text itself if it is JSON, or else a string. Python's constants are also read."""
    stripped = text.strip()
    stripped = _PYTHON_CONSTANTS.get(stripped, stripped)
    try:
        json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return stripped


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of ``text`` that is a start of ``tag``."""
    longest = min(len(text), len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if tag.startswith(text[-length:])), 0)


def _may_follow(rest: str, close: str) -> bool:
    """Whether more text may make ``rest`` the start of an element or of an end."""
    return any(tag.startswith(rest) for tag in ("<parameter=", "</function>", close)) or (
        rest.startswith("<parameter=") and ">" not in rest and "\n" not in rest
    )


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
