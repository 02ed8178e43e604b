"""The OpenAPI document: how routes name the errors that they answer, and what FastAPI writes otherwise.

A response with a "model" makes FastAPI build a validator of it twice for each route and status, although it never reads
one: five hundred validators of the same four errors took three quarters of the time to make an app. So errors are named
by reference, and their schemas are added when the document is read.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..schema.common import ErrorResponse
from ..schema.messages import AnthropicError
from ..schema.ollama import OllamaError
from ..schema.tgi import TgiError
from .exchange import TIMEOUT_HEADER

# The errors of the APIs, one form each.
ERRORS: tuple[type[BaseModel], ...] = (ErrorResponse, AnthropicError, OllamaError, TgiError)
REFERENCE = "#/components/schemas/{model}"


def in_json(error: type[BaseModel]) -> dict[str, Any]:
    """The part of a response that says that its body is this error, one of `ERRORS`."""
    return {"content": {"application/json": {"schema": {"$ref": REFERENCE.format(model=error.__name__)}}}}


def finished(document: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's document with the errors' schemas, with the header of deadlines, and without FastAPI's own answer to
    invalid requests (422): this server answers them with OpenAI's error and status 400.
    """
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            if "requestBody" in operation:
                header = {
                    "name": TIMEOUT_HEADER,
                    "in": "header",
                    "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
                }
                operation["parameters"] = [
                    *(p for p in operation.get("parameters", ()) if p["name"] != TIMEOUT_HEADER),
                    header,
                ]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    text = json.dumps(document["paths"])
    named = [error for error in ERRORS if json.dumps(REFERENCE.format(model=error.__name__)) in text]
    _, found = models_json_schema([(error, "serialization") for error in named], ref_template=REFERENCE)
    # FastAPI's own schemas leave out what is null, such as defaults.
    added = jsonable_encoder(found.get("$defs", {}), exclude_none=True)
    document["components"]["schemas"] = dict(sorted({**schemas, **added}.items()))
    return document
