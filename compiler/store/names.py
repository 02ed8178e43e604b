"""The names of stored models: MODEL, OWNER/MODEL or HOST/OWNER/MODEL, with a tag such as a quantization after a colon.

A name without a tag is the one with the tag "latest", as in Ollama. Names that differ only in case are the same name,
because some file systems cannot tell them apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from ..runtime.errors import RequestError

LATEST = "latest"
# Characters of a name. In a file's name, a slash and a colon take three each, and file systems allow 255 bytes.
MAX_NAME = 200
_PART = r"[A-Za-z0-9_][\w.-]*"
_NAME = re.compile(rf"({_PART}(?:/{_PART}){{0,2}})(?::(\w[\w.-]*))?", re.ASCII)


class UnknownModel(RequestError):
    """No model has this name. Over HTTP it is a 404."""

    code = "model_not_found"


@dataclass(frozen=True, slots=True)
class StoreName:
    model: str
    tag: str = LATEST

    @classmethod
    def parse(cls, text: str) -> StoreName:
        """Raises RequestError for a text that cannot be a name."""
        found = cls.parse_or_none(text)
        if found is None:
            raise RequestError(
                f"{text[:80]!r} is not a name of a stored model; write MODEL, OWNER/MODEL or MODEL:TAG with letters, "
                f"digits, '_', '-' and '.', at most {MAX_NAME} characters",
                param="model",
            )
        return found

    @classmethod
    def parse_or_none(cls, text: str) -> StoreName | None:
        match = _NAME.fullmatch(text) if len(text) <= MAX_NAME else None
        return None if match is None else cls(match[1], match[2] or LATEST)

    def __str__(self) -> str:
        return self.model if self.tag == LATEST else self.full

    @property
    def full(self) -> str:
        """The name with its tag, also with "latest"."""
        return f"{self.model}:{self.tag}"

    @property
    def file(self) -> str:
        """The name of the record's file, different for each name."""
        return f"{quote(self.full.lower(), safe='')}.json"
