"""The licenses of models that are known, and what each asks of whoever publishes a model: `licenses.json`, as data.

A license that is not listed is unknown. Nothing is guessed: a text counts as a license only if its body is exactly that
of the license, or if its heading is the name of an agreement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

from ..bundle.entries import OriginEntry

# copy: recipients get the license. notice: this text is in a file NOTICE. display: these words are on the page. name:
# the model's name begins with this word. changes: files are marked as changed. keep: notices are passed on. use: uses
# are restricted. bound: large companies need another license. noncommercial: commercial use is not allowed.
Kind = Literal["copy", "notice", "display", "name", "changes", "keep", "use", "bound", "noncommercial"]
# The files of a checkpoint that state its terms, which are published with it.
LICENSE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "Notice*", "USE_POLICY*")
# The words at the start of a file in which an agreement's heading is.
HEADING_WORDS = 40


@dataclass(frozen=True, slots=True)
class Obligation:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Body:
    """The text from the words ``first`` to ``last``, whose normal form has this hash. A file with it has at most
    ``others`` more characters, for the names of authors.
    """

    first: str
    last: str
    sha256: str
    others: int

    def is_in(self, text: str) -> bool:
        start, end = text.find(self.first), text.find(self.last)
        if start < 0 or end < start:
            return False
        body = text[start : end + len(self.last)]
        return len(text) - len(body) <= self.others and sha256(body.encode()).hexdigest() == self.sha256


@dataclass(frozen=True, slots=True)
class License:
    """``id`` is the hub's name. ``url`` is the source of what is stated here. ``terms``: whoever publishes must accept
    terms that are more than a notice.
    """

    id: str
    title: str
    url: str
    aliases: Sequence[str]
    terms: bool
    obligations: Sequence[Obligation]
    body: Body | None
    heading: str | None

    def texts(self, kind: Kind) -> list[str]:
        return [each.text for each in self.obligations if each.kind == kind]

    def obligations_json(self) -> list[dict[str, str]]:
        return [{"kind": each.kind, "text": each.text} for each in self.obligations]

    def is_of(self, text: str) -> bool:
        """Whether this is the license of a file with this text."""
        if self.body is not None:
            return self.body.is_in(normal(text))
        return self.heading is not None and self.heading in normal(" ".join(text.split()[:HEADING_WORDS]))


@cache
def known_licenses() -> Mapping[str, License]:
    """By id."""
    table = json.loads((Path(__file__).parent / "licenses.json").read_text(encoding="utf-8"))
    return {
        row["id"]: License(
            **{
                **row,
                "obligations": tuple(Obligation(**each) for each in row["obligations"]),
                "body": None if row["body"] is None else Body(**row["body"]),
            }
        )
        for row in table
    }


def license_of(origin: OriginEntry | None) -> License | None:
    """The license that the files of a checkpoint name; None if they name none that is known."""
    if origin is None:
        return None
    names = [name.strip().lower() for name in (origin.license, origin.license_name) if name]
    for each in known_licenses().values():
        if any(name in (each.id, *each.aliases) for name in names):
            return each
    return None


def recognized(text: str) -> License | None:
    """The license of which this is the text."""
    return next((each for each in known_licenses().values() if each.is_of(text)), None)


def normal(text: str) -> str:
    """Without differences of case, spaces and quotation marks."""
    return " ".join(re.sub("[“”]", '"', text).upper().split())


def stated(origin: OriginEntry | None) -> str:
    """The license in words: its name, what the files say, or that it is unknown."""
    known = license_of(origin)
    if known is not None:
        return known.title
    words = None if origin is None else origin.license_name or origin.license
    return words or "unknown: the files of the checkpoint state none"
