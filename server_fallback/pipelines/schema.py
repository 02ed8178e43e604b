"""The JSON of a pipeline: steps, their inputs, and the name of what each puts out.

A request gives the values ``messages`` (the chat) and ``question`` (the text of its last message of the user); each
step adds the one that its ``output`` names. Texts such as ``system`` contain values by their names in braces:
``{best}``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nearfar.compiler.given_file import read_given
from nearfar.compiler.runtime.errors import RequestError, reason_of

from ..schema.common import ApiTemperature, Items, Request
from ..schema.models import Name

# Of a value, and of a store in the pipeline.
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Limit = Annotated[int, Field(ge=1, le=1000)]
MAX_STEPS = 64


class EmbedStep(Request):
    """A text to its vector, with the model's prompt for queries."""

    kind: Literal["embed"]
    output: Identifier
    model: Name
    input: Identifier


class SearchStep(Request):
    """A vector to the closest passages of a store."""

    kind: Literal["search"]
    output: Identifier
    store: Identifier
    input: Identifier
    limit: Limit = 10


class RerankStep(Request):
    """Passages to the most relevant ones to a text, by a reranker or an embedding model."""

    kind: Literal["rerank"]
    output: Identifier
    model: Name
    query: Identifier
    input: Identifier
    limit: Limit = 5


class ChatStep(Request):
    """Without ``prompt``, the model answers the chat of the request, with ``system`` as its first message. With it, the
    model answers the prompt alone. ``max_tokens`` and ``temperature`` are for requests that give none.
    """

    kind: Literal["chat"]
    output: Identifier
    model: Name
    system: str | None = None
    prompt: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: ApiTemperature | None = None


class PipelineStep(Request):
    """The answer of another pipeline, to the chat of the request or, with ``prompt``, to that."""

    kind: Literal["pipeline"]
    output: Identifier
    pipeline: str
    prompt: str | None = None


Step = Annotated[EmbedStep | SearchStep | RerankStep | ChatStep | PipelineStep, Field(discriminator="kind")]


class PipelineFile(Request):
    """``models`` are models to serve with the pipeline, by the names that its steps use: bundles, folders or names, as
    for `nearfar serve`. ``stores`` are files of `nearfar index`. Paths are relative to the file. ``output`` is that of
    the step whose answer is streamed.
    """

    name: Name
    models: dict[Name, Name] = Field(default_factory=dict)
    stores: dict[Identifier, str] = Field(default_factory=dict)
    steps: Annotated[Items[Step], Field(min_length=1, max_length=MAX_STEPS)]
    output: Identifier


def read_pipeline(path: Path) -> PipelineFile:
    """Raises RequestError, which names the place in the file."""
    try:
        value = json.loads(read_given(path))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise RequestError(f"{path}: is not JSON ({error})") from error
    try:
        return PipelineFile.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"{path}: {place or 'the file'}: {first['msg']}") from error


def relative_to(path: Path, name: str) -> Path:
    """A path in a pipeline's file."""
    return path.parent / Path(name).expanduser()
