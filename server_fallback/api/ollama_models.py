"""Ollama's routes about models: they list those of this server, and change the store.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from importlib.metadata import version

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from nearfar.compiler.demo import DEMOS
from nearfar.compiler.formats.hub import hub_model
from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.compiler.runtime.text.reasoning import find_dialect
from nearfar.compiler.runtime.text.tool_formats import tool_format
from nearfar.compiler.store.model import Changes, StoredMessage, StoredModel, quantization_of
from nearfar.compiler.store.modelfile import write_modelfile
from nearfar.compiler.store.names import StoreName, UnknownModel
from nearfar.compiler.store.parameters import Parameters
from nearfar.compiler.store.sources import with_quantization
from nearfar.compiler.store.store import Store

from ..executors.executor import Abilities, Executor, ExecutorState
from ..executors.stored_models import StoredModels
from ..schema.models import ModelCard
from ..schema.ollama import (
    NamedModel,
    OllamaCopy,
    OllamaCreate,
    OllamaDetails,
    OllamaModel,
    OllamaModels,
    OllamaPull,
    OllamaShow,
    OllamaStatus,
    OllamaVersion,
)
from .errors import ApiError, api_error, loading_error
from .exchange import exchange_of
from .generation import JSON
from .log import log_failure
from .ollama import LINES, ollama_error
from .ollama_requests import abilities_of
from .ollama_uploads import created_from, uploads_router
from .route import OLLAMA, OllamaRoute, StoreRoute, keyed_router
from .service import Service

# Ollama's clients expect a time for models that stay loaded, too.
FOREVER = timedelta(days=100 * 365)
# Progress is reported at most this often.
REPORT_SECONDS = 0.1
Report = Callable[[str, int, int], None]
Work = Callable[[Report], Awaitable[None]]


def ollama_models_router(service: Service) -> APIRouter:
    router = keyed_router(OllamaRoute)

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def root() -> Response:
        return PlainTextResponse("nearfar is running")

    @router.head("/api/version", include_in_schema=False)
    @router.get("/api/version", response_model=OllamaVersion, responses=OLLAMA)
    async def get_version() -> Response:
        return _answer(OllamaVersion(version=version("nearfar")))

    @router.head("/api/tags", include_in_schema=False)
    @router.get("/api/tags", response_model=OllamaModels, responses=OLLAMA)
    async def tags() -> Response:
        return _answer(OllamaModels(models=await _listed(service)))

    @router.get("/api/ps", response_model=OllamaModels, responses=OLLAMA)
    async def ps() -> Response:
        return _answer(OllamaModels(models=await _loaded(service)))

    @router.post("/api/show", response_model=OllamaShow, responses=OLLAMA)
    async def show(body: NamedModel) -> Response:
        name = _name_of(body)
        stored = _stored(service, name)
        if stored is not None:
            return _answer(await asyncio.to_thread(_shown, stored))
        return _answer(_shown_served(_card(service, name), await service.models.executor(name)))

    return router


def ollama_store_router(service: Service) -> APIRouter:
    router = keyed_router(StoreRoute)
    router.include_router(uploads_router(service))

    @router.post("/api/pull", response_model=OllamaStatus, responses=OLLAMA)
    async def pull(body: OllamaPull, request: Request) -> Response:
        models, name = _models(service), _name_of(body)
        _require_public(name)

        async def work(report: Report) -> None:
            stored = await asyncio.to_thread(partial(models.store.pull, name, None, report, local=False))
            report("compiling", 0, 0)
            await models.registry.prepare(stored.name)

        return await _worked(work, request, models.store, stream=body.stream is not False, begin=f"pulling {name}")

    @router.post("/api/create", response_model=OllamaStatus, responses=OLLAMA)
    async def create(body: OllamaCreate, request: Request) -> Response:
        models, name = _models(service), _name_of(body)
        changes = Changes(
            system=body.system,
            template=body.template,
            parameters=body.parameters or Parameters(),
            messages=tuple(StoredMessage(role=each.role, content=each.content) for each in body.messages or ()),
            license=(body.license,) if isinstance(body.license, str) else tuple(body.license or ()),
            quantization=None if body.quantize is None else quantization_of(body.quantize),
        )
        if body.from_ is not None and models.store.find(body.from_) is None:
            _require_public(body.from_)

        async def work(report: Report) -> None:
            await asyncio.to_thread(partial(created_from, models.store, name, body, changes, report))

        return await _worked(work, request, models.store, stream=body.stream is not False, begin="creating the model")

    @router.post("/api/copy", responses=OLLAMA)
    async def copy(body: OllamaCopy) -> Response:
        models = _models(service)
        await asyncio.to_thread(models.store.copy, body.source, body.destination)
        return Response(status_code=200)

    @router.delete("/api/delete", responses=OLLAMA)
    async def delete(body: NamedModel) -> Response:
        models, name = _models(service), _name_of(body)
        models.store.get(name)
        await models.forget(name)
        await asyncio.to_thread(models.store.remove, name)
        return Response(status_code=200)

    @router.post("/api/push", responses=OLLAMA)
    async def push(body: OllamaPull) -> Response:
        raise ApiError(400, f"{_name_of(body)}: nothing is pushed from here; use nearfar publish", "not_supported")

    return router


def _models(service: Service) -> StoredModels:
    """Raises ApiError for a server of fixed models."""
    if not isinstance(service.models, StoredModels):
        raise ApiError(
            400,
            "this server serves the models that it was started with; start nearfar serve without a model to serve the "
            "store",
            "no_store",
        )
    return service.models


def _stored(service: Service, name: str) -> StoredModel | None:
    return service.models.store.find(name) if isinstance(service.models, StoredModels) else None


def _name_of(body: NamedModel) -> str:
    """Raises ApiError without a name, or with two."""
    names = {name for name in (body.model, body.name) if name is not None}
    if len(names) != 1:
        message = "'model' and 'name' differ; send 'model' alone" if names else "'model' must name the model"
        raise ApiError(400, message, "invalid_value" if names else "missing_required_parameter", "model")
    return names.pop()


def _require_public(name: str) -> None:
    """Only names of the hub and of demo models: nobody may read this machine's files, or its network, over HTTP. Raises
    RequestError.
    """
    place, _ = with_quantization(name)
    for host in ("hf.co/", "huggingface.co/"):
        place = place.removeprefix(host)
    if place not in DEMOS and hub_model(place) is None:
        raise RequestError(
            f"{name[:100]}: is not a name on the Hugging Face Hub, such as Qwen/Qwen3-0.6B; nearfar pull gets folders, "
            "files and addresses",
            param="model",
        )


# --- lists ---


async def _listed(service: Service) -> list[OllamaModel]:
    models = service.models
    stored = await asyncio.to_thread(models.store.models) if isinstance(models, StoredModels) else []
    names = {each.store_name for each in stored}
    cards = [card for card in models.cards() if StoreName.parse_or_none(card.id) not in names]
    return [*(_of_store(each) for each in stored), *[await _served(service, card) for card in cards]]


async def _loaded(service: Service) -> list[OllamaModel]:
    models, states = service.models, service.models.states()
    on_use = models.loaded() if isinstance(models, StoredModels) else []
    found = []
    for each in on_use:
        state = states.get(each.name)
        if state is not None and state.ready:
            now = datetime.now(UTC)
            left = each.keep_seconds if each.expires is None else each.expires - now.timestamp()
            expires = now + timedelta(seconds=min(left, FOREVER.total_seconds()))
            card = _card(service, each.name)
            found.append(_running(_of_store(each.stored), state, card.max_model_len, expires))
    others = [card for card in models.cards() if card.id == card.root and card.id not in {each.name for each in on_use}]
    return [
        *found,
        *[
            _running(await _served(service, card), states[card.id], card.max_model_len, datetime.now(UTC) + FOREVER)
            for card in others
            if card.id in states and states[card.id].ready
        ],
    ]


def _running(model: OllamaModel, state: ExecutorState, context: int | None, expires: datetime) -> OllamaModel:
    size = state.memory_bytes or 0
    return model.model_copy(
        update={
            "size": size,
            "size_vram": size if "cuda" in state.detail.lower() or "nvidia" in state.detail.lower() else 0,
            "context_length": context or 0,
            "expires_at": _time(expires),
            "modified_at": None,
            "device": state.detail,
        }
    )


def _of_store(stored: StoredModel) -> OllamaModel:
    details = stored.details
    return OllamaModel(
        name=stored.store_name.full,
        model=stored.store_name.full,
        modified_at=_time(stored.modified),
        size=stored.size_bytes,
        digest=stored.digest,
        details=_details(stored, details.num_parameters),
    )


def _details(stored: StoredModel, num_parameters: int | None) -> OllamaDetails:
    details = stored.details
    return OllamaDetails(
        parent_model=stored.parent or "",
        format=details.format,
        family=details.family,
        families=[details.family],
        parameter_size=_size(num_parameters),
        quantization_level=stored.quantization or details.quantization,
    )


async def _served(service: Service, card: ModelCard) -> OllamaModel:
    """A model that the server was started with. Ollama's command line prints the first 12 digits of each digest and
    ends with an error without them, so a model whose content is not known has a hash of its name.
    """
    executor = await service.answering(card.id)
    abilities = None if executor is None else abilities_of(executor)
    identity = None if abilities is None else abilities.identity
    return OllamaModel(
        name=card.id,
        model=card.id,
        modified_at=_time(datetime.fromtimestamp(card.created, UTC)),
        size=0,
        digest=identity or sha256(card.id.encode()).hexdigest(),
        details=OllamaDetails(parent_model=card.parent or "", format="bundle"),
    )


def _card(service: Service, name: str) -> ModelCard:
    """Raises UnknownModel."""
    for card in service.models.cards():
        if card.id == name:
            return card
    raise UnknownModel(f"the model {name[:100]!r} is not here", param="model")


def _size(num_parameters: int | None) -> str:
    """As Ollama writes it, such as "1.2B" and "869.50K"."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 2)):
        if num_parameters is not None and num_parameters >= size:
            return f"{num_parameters / size:.{digits}f}{unit}"
    return "" if num_parameters is None else str(num_parameters)


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- one model ---


def _shown(stored: StoredModel) -> OllamaShow:
    details = stored.details
    template = stored.template if stored.template is not None else details.template or ""
    licenses = stored.license or ((details.license,) if details.license is not None else ())
    return OllamaShow(
        modelfile=write_modelfile(stored),
        parameters=_parameter_lines(stored.parameters),
        template=template,
        system=stored.system,
        license="\n".join(licenses) or None,
        messages=[each.model_dump() for each in stored.messages] or None,
        details=_details(stored, details.num_parameters),
        model_info={
            "general.architecture": details.family,
            "general.parameter_count": details.num_parameters,
            "general.basename": stored.parent or stored.name,
            f"{details.family}.context_length": details.context,
            f"{details.family}.embedding_length": details.embedding_size,
        },
        capabilities=_capabilities(stored, template),
        modified_at=_time(stored.modified),
    )


def _capabilities(stored: StoredModel, template: str) -> list[str]:
    """In Ollama's words; rerankers, classifiers and transcribers are named by their task."""
    details = stored.details
    if details.task != "generate":
        return _task_ability(details.task)
    # Whether the markers are tokens is known when the tokenizer is loaded.
    abilities = {
        "completion": True,
        "tools": tool_format(template) is not None,
        "insert": stored.template is not None and ".Suffix" in stored.template,
        "vision": details.sees,
        "thinking": find_dialect(template, lambda _: 0) is not None,
    }
    return [name for name, has in abilities.items() if has]


def _task_ability(task: Task) -> list[str]:
    return ["embedding" if task == "embed" else task]


def _served_capabilities(abilities: Abilities | None) -> list[str]:
    if abilities is None:
        return ["completion"]
    if abilities.task != "generate":
        return _task_ability(abilities.task)
    found = {"completion": True, "tools": abilities.tools, "vision": abilities.vision, "thinking": abilities.thinks}
    return [name for name, has in found.items() if has]


def _shown_served(card: ModelCard, executor: Executor) -> OllamaShow:
    abilities = abilities_of(executor)
    return OllamaShow(
        modelfile=f"FROM {card.id}\n",
        parameters="",
        template="" if abilities is None else abilities.chat_template or "",
        details=OllamaDetails(format="bundle"),
        model_info={"general.architecture": "", "general.context_length": card.max_model_len},
        capabilities=_served_capabilities(abilities),
        modified_at=_time(datetime.fromtimestamp(card.created, UTC)),
    )


def _parameter_lines(parameters: Parameters) -> str:
    """As a Modelfile has them, without the word PARAMETER."""
    lines = []
    for name, value in parameters.given().items():
        for each in value if isinstance(value, list) else [value]:
            shown = json.dumps(each, ensure_ascii=False) if isinstance(each, str | bool) else each
            lines.append(f"{name:<30} {shown}")
    return "\n".join(lines)


# --- work with progress ---


async def _worked(work: Work, request: Request, store: Store, *, stream: bool, begin: str) -> Response:
    """Run a change of the store, which goes on if the client leaves. Streams report its progress in lines."""
    exchange, reports = exchange_of(request), asyncio.Queue[OllamaStatus]()
    loop = asyncio.get_running_loop()

    def report(phase: str, done: int, total: int) -> None:
        status = OllamaStatus(status=f"{phase}ing" if phase == "download" else phase, total=total, completed=done)
        loop.call_soon_threadsafe(reports.put_nowait, status)

    async def done() -> None:
        try:
            await work(report)
        except NearfarError as error:
            raise loading_error(without_paths(error, store)) from error

    task = asyncio.ensure_future(done())
    if not stream:
        await asyncio.shield(task)
        return _answer(OllamaStatus(status="success"))

    async def lines() -> AsyncIterator[bytes]:
        yield _line(OllamaStatus(status=begin))
        while not task.done() or not reports.empty():
            waiting = asyncio.ensure_future(reports.get())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                continue
            status = waiting.result()
            while not reports.empty():
                status = reports.get_nowait()
            yield _line(status)
            await asyncio.sleep(0 if task.done() else REPORT_SECONDS)
        error = task.exception()
        if error is None:
            yield _line(OllamaStatus(status="success"))
            return
        reported = api_error(error)
        log_failure(exchange, error, reported)
        yield ollama_error(reported) + b"\n"

    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return StreamingResponse(lines(), media_type=LINES.content_type)


def without_paths(error: NearfarError, store: Store) -> NearfarError:
    """The error with the names that a client gave its files, without the folders of this machine that have them."""
    folders = "|".join((re.escape(f"{store.folder}/"), r"/[^\s'\"]*/models--[^\s/]+/snapshots/"))
    message = re.sub(rf"(?:{folders})(?:[^\s/:,'\"]+/)*", "", error.message)
    return error if message == error.message else type(error)(message, **error.details)


def _line(status: OllamaStatus) -> bytes:
    return status.model_dump_json().encode() + b"\n"


def _answer(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type=JSON)
