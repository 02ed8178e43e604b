"""Saved conversations: a JSON file of what was said, with the system prompt and the parameters. compiler/README.md
describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer

from ..runtime.errors import OutputError, RequestError, reason_of
from ..runtime.images.data_url import is_data_url
from ..store.parameters import Parameters
from .messages import read_json

# A conversation with pictures, which are base64.
MAX_BYTES = 256 << 20
FORMAT: Literal["nearfar-conversation-1"] = "nearfar-conversation-1"


class SavedConversation(BaseModel):
    """``messages`` are in the form of OpenAI's API, pictures as data: URLs, without the system prompt. ``model`` is the
    name by which the model was started, and ``saved`` a time in ISO 8601.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["nearfar-conversation-1"] = FORMAT
    model: str
    saved: str
    system: str | None = None
    parameters: Parameters = Parameters()
    messages: list[dict[str, Any]]

    @field_serializer("parameters")
    def _given(self, parameters: Parameters) -> dict[str, Any]:
        return parameters.given()

    @staticmethod
    def of(
        model: str, system: str | None, parameters: Parameters, messages: Sequence[Mapping[str, Any]]
    ) -> SavedConversation:
        saved = datetime.now(UTC).isoformat(timespec="seconds")
        return SavedConversation(
            model=model, saved=saved, system=system, parameters=parameters, messages=[dict(each) for each in messages]
        )

    def write(self, file: Path) -> None:
        """Raises OutputError for a file that cannot be written, or that exists and is no saved conversation."""
        if file.exists() and not _is_saved(file):
            raise OutputError(f"{file}: exists and is no saved conversation; choose another name")
        try:
            data = json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1).encode() + b"\n"
            partial = file.with_name(f".{file.name}.partial")
            partial.write_bytes(data)
            partial.replace(file)
        # A ValueError: half of a surrogate pair in a text, or a name that no file can have.
        except (OSError, ValueError) as error:
            raise OutputError(f"{file}: cannot be written: {reason_of(error)}") from error


def read_saved(file: Path) -> SavedConversation:
    """Raises RequestError for a file that is no saved conversation."""
    try:
        size = file.stat().st_size if file.is_file() else 0
    except OSError:
        size = 0
    if size > MAX_BYTES:
        raise RequestError(f"{file}: is larger than {MAX_BYTES >> 20} MiB, so it is no saved conversation")
    content = read_json(file, "")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RequestError(f'{file}: is no saved conversation: it has no "format": "{FORMAT}"')
    try:
        saved = SavedConversation.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestError(f"{file}: {place}: {first['msg'][:200]}") from error
    for index, message in enumerate(saved.messages):
        for part in message["content"] if isinstance(message.get("content"), list) else []:
            kind = part.get("type") if isinstance(part, dict) else None
            named = part.get(kind) if isinstance(part, dict) and isinstance(kind, str) else None
            url = named.get("url") if isinstance(named, dict) else None
            if isinstance(url, str) and not is_data_url(url):
                raise RequestError(f"{file}: messages[{index}] has the picture {url[:80]!r}; it needs a data: URL")
    return saved


def _is_saved(file: Path) -> bool:
    """Whether a file begins like a saved conversation."""
    try:
        with file.open("rb") as content:
            return FORMAT.encode() in content.read(200)
    except OSError:
        return False
