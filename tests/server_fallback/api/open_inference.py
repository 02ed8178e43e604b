"""The Open Inference Protocol over HTTP as an OpenAPI document, which our own does not have.

Source: https://github.com/kserve/open-inference-protocol, specification/protocol/open_inference_rest.yaml, and Triton's
extensions "Generate" and "Model Repository".
"""

from __future__ import annotations

from typing import Any

ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATATYPES = ("BOOL", "UINT8", "UINT64", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES")


def document() -> dict[str, Any]:
    infer = _object(
        required=("inputs",),
        id={"type": "string"},
        parameters=PARAMETERS,
        inputs={"type": "array", "minItems": 1, "maxItems": 3, "items": _tensor("shape", "datatype", "data")},
        outputs={"type": "array", "maxItems": 2, "items": _tensor()},
    )
    generate = _object(required=("text_input",), text_input={"type": "string"}, parameters=PARAMETERS)
    repository = _object(parameters=PARAMETERS)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Inference Protocol", "version": "2"},
        "paths": {
            "/v2": {"get": _operation()},
            "/v2/models/{model}": {"get": _operation(None, "model")},
            "/v2/models/{model}/ready": {"get": _operation(None, "model", empty=True)},
            "/v2/models/{model}/config": {"get": _operation(None, "model")},
            "/v2/models/{model}/stats": {"get": _operation(None, "model")},
            "/v2/models/{model}/versions/{number}/stats": {"get": _operation(None, "model", "number")},
            "/v2/models/{model}/infer": {"post": _operation(infer, "model")},
            "/v2/models/{model}/versions/{number}/infer": {"post": _operation(infer, "model", "number")},
            "/v2/models/{model}/generate": {"post": _operation(generate, "model")},
            "/v2/models/{model}/generate_stream": {"post": _operation(generate, "model")},
            "/v2/repository/index": {"post": _operation(_object(ready={"type": "boolean"}))},
            "/v2/repository/models/{model}/load": {"post": _operation(repository, "model", empty=True)},
            "/v2/repository/models/{model}/unload": {"post": _operation(repository, "model", empty=True)},
        },
    }


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _tensor(*required: str) -> dict[str, Any]:
    return _object(
        required=("name", *required),
        name={"type": "string"},
        shape={"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        datatype={"enum": list(DATATYPES)},
        parameters=PARAMETERS,
        data={"type": "array", "items": {}, "maxItems": 4},
    )


def _operation(body: dict[str, Any] | None = None, *names: str, empty: bool = False) -> dict[str, Any]:
    """``empty``: answers have no body, unless they are errors."""
    anything: dict[str, Any] = {"application/json": {"schema": {}}, "text/event-stream": {"schema": {}}}
    error = {"description": "an error", "content": {"application/json": {"schema": ERROR}}}
    given = {} if body is None else {"requestBody": {"content": {"application/json": {"schema": body}}}}
    schema = {"type": "string", "minLength": 1}
    return {
        "parameters": [{"in": "path", "name": name, "required": True, "schema": schema} for name in names],
        "responses": {
            "200": {"description": "an answer", **({} if empty else {"content": anything})},
            # A model that is not ready is a 400 without a body.
            **{status: {"description": "an error"} if empty else error for status in ("400", "404", "405")},
            **dict.fromkeys(("408", "413", "415", "429", "503"), error),
        },
        **given,
    }
