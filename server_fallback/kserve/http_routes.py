"""/v2: the protocol over HTTP, with Triton's extension for binary tensors and its model configuration."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..api.drain import SHUTTING_DOWN
from ..api.errors import ApiError
from ..api.exchange import Exchange, exchange_of
from ..api.json_body import parse_json, printable, read_body
from ..api.route import AdminRoute, KeyedRoute
from ..api.service import Service
from ..api.validation import validation_error
from ..executors.executor import Call, UnknownModel
from ..schema.kserve import RepositoryIndexRequest, RepositoryRequest
from ..text.json_structure import JsonStructure
from .model_tensors import PLATFORM, VERSION, ModelForm, encoder_of, form_of, infer
from .repository import index, load, unload
from .statistics import statistics
from .tensors import Tensor, flattened, from_bytes, from_values

Body = TypeVar("Body", bound=BaseModel)
HEADER_LENGTH = "Inference-Header-Content-Length"
OCTETS = "application/octet-stream"
OTHER_METHODS = ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
EXTENSIONS = ["binary_tensor_data", "generate", "model_configuration", "model_repository", "statistics"]
ACCEPTED = {"binary_data_output", "priority", "timeout", "truncate"}


def kserve_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=KeyedRoute, include_in_schema=False)

    def is_ready(name: str, number: str) -> bool:
        with suppress(UnknownModel):
            check_version(name, number)
            return service.is_ready(name)
        return False

    def names() -> set[str]:
        return {card.id for card in service.models.cards()}

    # A model's name may contain slashes, so the longer patterns come first: of two decorators, the lower one.
    @router.get("/v2")
    async def server() -> dict[str, object]:
        return {"name": "nearfar", "version": version("nearfar"), "extensions": EXTENSIONS}

    @router.post("/v2/models/{model:path}/infer")
    @router.post("/v2/models/{model:path}/versions/{number}/infer")
    async def infer_model(request: Request, model: str, number: str = VERSION) -> Response:
        return await _infer(service, request, model, number)

    @router.get("/v2/models/{model:path}/ready")
    @router.get("/v2/models/{model:path}/versions/{number}/ready")
    async def ready(model: str, number: str = VERSION) -> Response:
        return Response(status_code=200 if is_ready(model, number) else 400)

    @router.get("/v2/models/{model:path}/stats")
    @router.get("/v2/models/{model:path}/versions/{number}/stats")
    async def model_statistics(model: str, number: str = VERSION) -> dict[str, object]:
        check_version(model, number)
        return {"model_stats": statistics(service, model)}

    @router.get("/v2/models/stats")
    async def all_statistics() -> dict[str, object]:
        return {"model_stats": statistics(service)}

    @router.post("/v2/repository/index")
    async def repository_index(request: Request) -> list[dict[str, str]]:
        return index(service, only_ready=(await _body(service, request, RepositoryIndexRequest)).ready)

    @router.get("/v2/models/{model:path}/config")
    @router.get("/v2/models/{model:path}/versions/{number}/config")
    async def config(request: Request, model: str, number: str = VERSION) -> dict[str, object]:
        check_version(model, number)
        return _config(model, form_of(await service.executor(model, exchange_of(request))))

    @router.get("/v2/models/{model:path}")
    @router.get("/v2/models/{model:path}/versions/{number}")
    async def metadata(request: Request, model: str, number: str = VERSION) -> dict[str, object]:
        try:
            executor = await service.executor(model, exchange_of(request))
        except UnknownModel as error:
            raise wrong_address(names(), model) or error from None
        check_version(model, number)
        form = form_of(executor)
        return {"name": model, "versions": [VERSION], "platform": PLATFORM, **_tensors(form)}

    @router.api_route("/v2/models/{model:path}", methods=OTHER_METHODS)
    async def other_method(model: str) -> Response:
        raise wrong_address(names(), model) or unknown_action()

    return router


def repository_router(service: Service) -> APIRouter:
    """For admins: load and unload models."""
    router = APIRouter(route_class=AdminRoute, include_in_schema=False)

    @router.post("/v2/repository/models/{model:path}/load")
    async def load_model(request: Request, model: str) -> Response:
        body = await _body(service, request, RepositoryRequest)
        await load(service, exchange_of(request), model, body.parameters)
        return Response(status_code=200)

    @router.post("/v2/repository/models/{model:path}/unload")
    async def unload_model(request: Request, model: str) -> Response:
        body = await _body(service, request, RepositoryRequest)
        await unload(service, exchange_of(request), model, body.parameters)
        return Response(status_code=200)

    return router


def kserve_health_router(service: Service) -> APIRouter:
    """Needs no key, as /health."""
    router = APIRouter(include_in_schema=False)

    @router.get("/v2/health/live")
    async def live() -> Response:
        return Response(status_code=200)

    @router.get("/v2/health/ready")
    async def ready() -> Response:
        return Response(status_code=200 if server_is_ready(service) else 503)

    return router


def server_is_ready(service: Service) -> bool:
    """Whether every model is ready, as in Triton. Those that their first request loads need not be loaded."""
    if service.drain.started or service.loading is not None:
        return False
    states = service.models.states().values()
    return (bool(states) or service.loads_others()) and all(state.ready for state in states)


def check_version(model: str, number: str) -> None:
    """Raises UnknownModel: each model has one version. "" means any."""
    if number not in ("", VERSION):
        raise UnknownModel(f"the model {model[:100]!r} has no version {number[:20]!r}; it has {VERSION}")


async def begin_inference(service: Service, exchange: Exchange, model: str) -> None:
    """Count a request as one answer of a model. Raises ApiError, UnknownModel."""
    exchange.log["model"] = printable(model)
    if service.drain.started:
        raise Unavailable(SHUTTING_DOWN)
    assert exchange.admission is not None
    capacity = service.models.answers_at_once(model) or service.config.max_concurrent_requests
    await exchange.admission.answers(1, capacity, "inputs")


def inference_call(
    service: Service, exchange: Exchange, model: str, parameters: Mapping[str, Any]
) -> tuple[Call, bool]:
    """The call, and whether texts may be shortened to the context. ``timeout`` is in microseconds, as in Triton.

    Raises RequestError for unknown parameters and for wrong values.
    """
    for name in parameters:
        if name not in ACCEPTED:
            raise RequestError(f"the parameter {name[:100]!r} is not supported; remove it", param=name)
    timeout, priority, truncate = (parameters.get(name) for name in ("timeout", "priority", "truncate"))
    for name, value, kind in (("timeout", timeout, int), ("priority", priority, int), ("truncate", truncate, bool)):
        if value is not None and type(value) is not kind:
            raise RequestError(f"the parameter {name!r} must be of type {kind.__name__}", param=name)
    if timeout:
        exchange.deadline = min(exchange.deadline, time.monotonic() + timeout / 1e6)

    async def expect_tokens(prompt_tokens: int, _: float) -> None:
        await exchange.reserve(prompt_tokens)
        service.metrics.count(model, prompt_tokens, 0, exchange)

    call = Call(
        exchange.request_id,
        exchange.priority(priority),
        exchange.deadline,
        exchange.passed_on,
        exchange.client,
        expect_tokens=expect_tokens,
    )
    return call, bool(truncate)


async def _infer(service: Service, request: Request, model: str, number: str) -> Response:
    exchange = exchange_of(request)
    header, binary = await _read(service, request, exchange)
    check_version(model, number)
    executor = encoder_of(await service.executor(model, exchange), model)
    await begin_inference(service, exchange, model)
    parameters = _object(header, "parameters")
    call, truncate = inference_call(service, exchange, model, parameters)
    inputs = read_inputs(header, binary)
    exchange.log["texts"] = inputs[0].shape[0]
    wanted = _wanted(header, form_of(executor))
    work = infer(executor, inputs, call, truncate=truncate, max_texts=service.config.max_inputs)
    output = await service.drain.run(work, request.receive, exchange.deadline)
    answer: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if isinstance(header.get("id"), str):
        answer["id"] = header["id"]
    entry: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
    answer["outputs"] = [entry]
    as_bytes = parameters.get("binary_data_output") is True if wanted is None else wanted
    if not as_bytes:
        assert not isinstance(output.data, list)
        entry["data"] = output.data.ravel().tolist()
        return JSONResponse(answer)
    raw = output.to_bytes()
    entry["parameters"] = {"binary_data_size": len(raw)}
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(text + raw, media_type=OCTETS, headers={HEADER_LENGTH: str(len(text))})


async def _body(service: Service, request: Request, kind: type[Body]) -> Body:
    """The body of a request about the repository, which Triton's client sends without a type. It may be missing."""
    exchange = exchange_of(request)
    sizes = request.headers.get("content-length"), request.headers.get("transfer-encoding")
    given: dict[str, Any] = {} if sizes in ((None, None), ("0", None)) else (await _read(service, request, exchange))[0]
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise validation_error(found, given) from None


async def _read(service: Service, request: Request, exchange: Exchange) -> tuple[dict[str, Any], bytes]:
    """The JSON of a request, and the bytes after it."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Triton's client sends no type. A browser does so for pages of other sites too, but not without their origin.
    if given not in ("application/json", OCTETS) and (given or "origin" in request.headers):
        raise ApiError(415, f"send application/json or {OCTETS}", "unsupported_content_type")
    assert exchange.admission is not None
    config = service.config
    length = request.headers.get(HEADER_LENGTH)
    structure = JsonStructure() if length is None else None
    limits = (config.max_body_bytes, config.body_timeout_seconds)
    body = await read_body(request, *limits, exchange.admission.body, structure)
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) < 12 and int(length) <= len(body)):
            raise ApiError(400, f"the header {HEADER_LENGTH} must be a number up to {len(body)}", "invalid_header")
        end = int(length)
    header = await service.parsed(parse_json, body[:end], exchange.client)
    if not isinstance(header, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_type")
    return header, body[end:]


def read_inputs(header: Mapping[str, Any], binary: bytes) -> list[Tensor]:
    """The inputs of a request in JSON. Raises RequestError."""
    given, found, at = header.get("inputs"), list[Tensor](), 0
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise RequestError("inputs must be a list with at least one object", param="inputs")
    for each in given:
        name, datatype, shape = each.get("name"), each.get("datatype"), each.get("shape")
        if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
            raise RequestError("an input needs a name, a datatype and a shape", param="inputs")
        if not all(type(size) is int for size in shape):
            raise RequestError(f"input {name[:100]!r}: the shape must be integers", param="inputs")
        size = _object(each, "parameters").get("binary_data_size")
        if size is None:
            found.append(from_values(name, datatype, shape, flattened(name, each.get("data"))))
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - at or "data" in each:
            raise RequestError(
                f"input {name[:100]!r}: binary_data_size must be a number of bytes that follow the JSON, without data",
                param="inputs",
            )
        found.append(from_bytes(name, datatype, shape, binary[at : at + size]))
        at += size
    if at != len(binary):
        raise RequestError(f"{len(binary) - at} bytes after the JSON belong to no input", param="inputs")
    return found


def _wanted(header: Mapping[str, Any], form: ModelForm | None) -> bool | None:
    """Whether the output was requested as bytes; None if outputs are not named. Raises RequestError."""
    outputs = header.get("outputs")
    if not outputs:
        return None
    assert form is not None
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise RequestError("outputs must be a list of objects", param="outputs")
    check_outputs([str(each.get("name")) for each in outputs], form)
    parameters = _object(outputs[0], "parameters")
    if unknown := [name for name in parameters if name != "binary_data"]:
        raise RequestError(f"the parameter {unknown[0][:100]!r} of an output is not supported", param="outputs")
    return parameters.get("binary_data") is True


def check_outputs(names: list[str], form: ModelForm) -> None:
    """Raises RequestError for an output that the model does not have."""
    if unknown := [name for name in names if name != form.output.name]:
        raise RequestError(f"unknown output {unknown[0][:100]!r}; this model has {form.output.name}", param="outputs")
    if len(names) > 1:
        raise RequestError(f"the output {form.output.name} is requested twice", param="outputs")


def _object(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise RequestError(f"{key} must be an object", param=key)
    return found


def _tensors(form: ModelForm | None) -> dict[str, object]:
    if form is None:
        return {"inputs": [], "outputs": []}
    return {
        kind: [{"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in forms]
        for kind, forms in (("inputs", form.inputs), ("outputs", (form.output,)))
    }


def _config(model: str, form: ModelForm | None) -> dict[str, object]:
    """Triton's model configuration: ``max_batch_size`` 0 means that shapes include the batch."""

    def entries(key: str) -> list[dict[str, object]]:
        found = _tensors(form)[key]
        assert isinstance(found, list)
        return [
            {"name": each["name"], "data_type": data_type(each["datatype"]), "dims": each["shape"]} for each in found
        ]

    return {
        "name": model,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": entries("inputs"),
        "output": entries("outputs"),
    }


def data_type(datatype: str) -> str:
    """Triton's name of a datatype in configurations."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


# What a model's address may end with, and the method. A model's name may contain slashes, so a pattern for it matches
# the address of an unknown action too, and only the loaded models say where the name ends.
ACTIONS = {
    "infer": "POST",
    "generate": "POST",
    "generate_stream": "POST",
    "ready": "GET",
    "config": "GET",
    "stats": "GET",
}
VERSIONED = re.compile(r"(.+)/versions/[^/]*", re.DOTALL)


def wrong_address(models: Collection[str], path: str) -> ApiError | HTTPException | None:
    """The error of a request for /v2/models/``path`` with a method that this address does not have, or for an action
    that models do not have. None if the path may be the name of a model that is not loaded.
    """
    if _model_of(path) in models:
        return HTTPException(405, headers={"Allow": "GET"})
    name, _, action = path.rpartition("/")
    if name and action in ACTIONS:
        return HTTPException(405, headers={"Allow": ACTIONS[action]})
    return unknown_action() if _model_of(name) in models else None


def unknown_action() -> ApiError:
    return ApiError(
        404,
        f"this address does not exist; a model has {', '.join(f'/{each}' for each in ACTIONS)} and /versions/{VERSION}",
        "unknown_url",
    )


def _model_of(path: str) -> str:
    versioned = VERSIONED.fullmatch(path)
    return path if versioned is None else versioned[1]
