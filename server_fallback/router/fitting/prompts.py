"""Prompts to log, from a file of JSON lines: what an application's users ask, and how to recognise a right answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nearfar.compiler.given_file import MAX_DATA_BYTES, read_given_text
from nearfar.compiler.runtime.errors import RequestError, reason_of

Parsed = TypeVar("Parsed")
Json = TypeVar("Json", str, bytes)


class JsonLine(BaseModel):
    """One line of a file. An unknown key and a value of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, path: Path) -> list[Self]:
        """Read all lines of a file. Raises RequestError, which names the line, for one that cannot be read."""
        try:
            # str.splitlines would also end a line at U+2028, which JSON strings may contain.
            lines = read_given_text(path, MAX_DATA_BYTES, "utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"{path}: cannot be read: {reason_of(error)}; give a file of UTF-8 JSON lines"
            ) from error
        return [
            parse(cls.model_validate_json, line, f"{path}:{number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]


class Prompt(JsonLine):
    """``expected`` is the only right answer; or ``accepted`` is a regular expression that matches every right answer as
    a whole.

    Without either, it is not known what is right: the log then has null, for a judge to fill in. ``task`` names a kind
    of prompt, for the task oracle. Prompts with the same ``group``, such as those from one template, are held out of a
    fit together.
    """

    prompt: str = Field(min_length=1)
    expected: str | None = None
    accepted: str | None = None
    task: str | None = None
    group: str | None = None

    @field_validator("accepted")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    def is_right(self, answer: str) -> bool | None:
        """Whether an answer is right; None if that is not known. White space around answers does not count."""
        if self.accepted is not None:
            return re.fullmatch(self.accepted, answer.strip()) is not None
        return None if self.expected is None else answer.strip() == self.expected.strip()


def parse(
    validate: Callable[[Json], Parsed], data: Json, location: str, *, whole: str = "the line", advice: str = ""
) -> Parsed:
    """Raises RequestError, which names the place in the JSON, ``whole`` if there is none."""
    try:
        return validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{location}: {path or whole}: {first['msg']}{advice}") from error
