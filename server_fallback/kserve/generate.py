"""/v2/models/NAME/generate and generate_stream: Triton's extension "Generate", with the fields of its vLLM backend."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from nearfar.compiler.runtime.errors import RequestError

from ..api.generation import Kind, answered
from ..api.route import KeyedRoute
from ..api.service import Service
from ..api.sse import EventForm, data_event
from ..api.validation import validation_error
from ..schema.completions import Completion, CompletionChunk, CompletionRequest
from ..schema.fold import CompletionFold
from ..schema.kserve import GenerateRequest
from .errors import kserve_error
from .http_routes import check_version
from .model_tensors import VERSION

# Parameters of /v1/completions for which an answer of this form has no place.
WITHOUT_PLACE = (
    "best_of",
    "echo",
    "logprobs",
    "model",
    "n",
    "prompt",
    "prompt_logprobs",
    "receipt",
    "return_token_ids",
    "stream_options",
    "suffix",
)
# Triton ends its streams without an event. A comment, which readers skip, marks a complete one.
EVENTS = EventForm(done=b": end\n\n")


def generate_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=KeyedRoute, include_in_schema=False)

    @router.post("/v2/models/{model:path}/generate")
    @router.post("/v2/models/{model:path}/versions/{number}/generate")
    async def generate(body: GenerateRequest, request: Request, model: str, number: str = VERSION) -> Response:
        check_version(model, number)
        return await _answered(service, request, model, body, stream=False)

    @router.post("/v2/models/{model:path}/generate_stream")
    @router.post("/v2/models/{model:path}/versions/{number}/generate_stream")
    async def generate_stream(body: GenerateRequest, request: Request, model: str, number: str = VERSION) -> Response:
        check_version(model, number)
        return await _answered(service, request, model, body, stream=True)

    return router


async def _answered(service: Service, request: Request, model: str, body: GenerateRequest, *, stream: bool) -> Response:
    asked, with_input = read_request(model, body, stream=stream)
    named: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if body.id is not None:
        named["id"] = body.id

    def written(text: str) -> bytes:
        value = {**named, "text_output": text}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def event(chunk: CompletionChunk) -> bytes | None:
        """None for the end of the answer and the usage, which the form does not have."""
        text = "".join(choice.text for choice in chunk.choices)
        return data_event(written(text)) if text else None

    before = body.text_input if with_input else ""
    kind: Kind[CompletionRequest, CompletionChunk, Completion] = Kind(
        request.url.path,
        CompletionRequest,
        CompletionRequest,
        Completion,
        lambda asked: asked,
        lambda _: event,
        lambda _: CompletionFold(),
        lambda answer: written(before + answer.choices[0].text),
        EVENTS,
        kserve_error,
    )
    return await answered(kind, service, asked, request)


def read_request(model: str, body: GenerateRequest, *, stream: bool) -> tuple[CompletionRequest, bool]:
    """The completion, and whether the answer begins with the input: by default, unless it is a stream.

    Raises ApiError and RequestError for parameters that are not known, or that this form has no place for.
    """
    given = dict(body.parameters)
    exclude, streams = given.pop("exclude_input_in_output", None), given.pop("stream", stream)
    for name, value in (("exclude_input_in_output", exclude), ("stream", streams)):
        if value is not None and not isinstance(value, bool):
            raise RequestError(f"the parameter {name!r} must be true or false", param=f"parameters.{name}")
    if streams is not None and streams != stream:
        raise RequestError(
            f"'stream' is {str(streams).lower()}; use /{'generate_stream' if streams else 'generate'}",
            param="parameters.stream",
        )
    if stream and exclude is False:
        raise RequestError("a stream has the answer alone; leave it out", param="parameters.exclude_input_in_output")
    for name in WITHOUT_PLACE:
        if name in given:
            raise RequestError(
                f"the parameter {name!r} is not supported here; use /v1/completions", param=f"parameters.{name}"
            )
    try:
        asked = CompletionRequest.model_validate({**given, "model": model, "prompt": body.text_input, "stream": stream})
    except ValidationError as error:
        found = [{**each, "loc": ("body", "parameters", *each["loc"])} for each in error.errors(include_url=False)]
        raise validation_error(found, {"parameters": given}) from None
    return asked, not stream and not exclude
