"""Valid and invalid requests that schemathesis generates from the app's own OpenAPI document: the document declares
each response, and none is a server error. So the errors of each API have the form of that API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
import schemathesis
from fake_models import FakeExecutor, FakeModels
from hypothesis import HealthCheck, given, reject, settings, strategies
from hypothesis.errors import Unsatisfiable
from open_inference import document as open_inference
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from served_demo import WITH_FEW_KERNELS, Served, start
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.store import sources
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.exchange import TIMEOUT_HEADER
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.executor import Executor, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.stored_models import StoredModels

EXAMPLES, LIVE_EXAMPLES, MANY_EXAMPLES = 2, 50, 200
KEY = "sk-admin-12345678"
ONE_KEY = {"NEARFAR_API_KEYS": f"admin={KEY}"}
# The real models of a server, and the beginnings of the paths whose requests go to each. The first has all others, and
# is the only one that generates text, so that requests need not name it.
MODELS = {
    "demo": ("/",),
    "demo-ears": ("/v1/audio/",),
    "demo-encoder": (
        "/v1/embeddings",
        "/v2/embed",
        "/api/embed",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/v1/score",
    ),
    "demo-finder": ("/classify", "/v1/classify"),
}
# What these do with a body that is right would not end: it downloads a model, or serves a client that reads no more.
LEFT_OUT = ("/v1/nearfar/verify",)
# After these the server has no model to ask.
REMOVING = ("/sleep", "/v1/models/unload")
KSERVE = "/kserve.json"
OPERATIONS = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/infill"),
    ("POST", "/apply-template"),
    ("POST", "/generate"),
    ("POST", "/generate_stream"),
    ("POST", "/"),
    ("GET", "/info"),
    ("POST", "/completion"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("POST", "/slots/{id_slot}"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/models/load"),
    ("POST", "/v1/models/unload"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
)
STORE_OPERATIONS = (
    ("POST", "/api/show"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/blobs/{digest}"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
)
MODES = list(schemathesis.GenerationMode)
POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
load_all_checks()


def in_turn(operations: Sequence[tuple[str, str]]) -> list[Any]:
    """Each operation with valid requests or with invalid ones. The others are exhaustive: one test of the API's form of
    errors suffices, and `test_every_operation_gives_many_requests_an_answer_that_it_names` has hundreds of both.
    """
    return [
        pytest.param(*operation, mode, marks=[pytest.mark.exhaustive] * ((turn + number) % 2))
        for turn, operation in enumerate(operations)
        for number, mode in enumerate((POSITIVE, NEGATIVE))
    ]


@dataclass
class AnyModels(FakeModels):
    """Has a model of every name, so that generated requests reach one."""

    async def executor(self, name: str) -> FakeExecutor:  # noqa: ARG002
        return self.fake


@dataclass
class Opener:
    fake: Executor = field(default_factory=FakeExecutor)

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            return self.fake

        return Opening(name or model, 1000, open_it)


def document_of(models: Any, path: str = "/openapi.json") -> Any:
    app = create_app(models, ApiConfig(keys=read_keys(None, ONE_KEY)))
    return schemathesis.openapi.from_asgi(path, immortal(app))


def immortal(app: ASGIApp) -> ASGIApp:
    """The app without the end of its lifespan, which schemathesis would trigger after each request, and with the
    document of KServe's API.
    """

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        elif scope["path"] == KSERVE:
            await JSONResponse(open_inference())(scope, receive, send)
        else:
            await app(scope, receive, send)

    return called


@pytest.fixture(scope="module")
def document() -> Any:
    return document_of(AnyModels())


@pytest.fixture(scope="module")
def kserve_document() -> Any:
    return document_of(AnyModels(), KSERVE)


@pytest.fixture(scope="module")
def store_document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Of a server whose store has a model. Its hub has none."""

    def no_hub(*_: object) -> NoReturn:
        raise CheckpointError("the hub has no such model")

    store = Store(tmp_path_factory.mktemp("store"))
    store.pull("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_of_hub", no_hub)
        yield document_of(StoredModels(Registry(Opener()), store))


@strategies.composite
def generated(draw: strategies.DrawFn, operation: Any, mode: schemathesis.GenerationMode) -> schemathesis.Case[Any]:
    case: schemathesis.Case[Any]
    try:
        case = draw(operation.as_strategy(generation_mode=mode))
    except InvalidSchema:
        # Of mutations that cannot be combined.
        reject()
    return case


def check(operation: Any, mode: schemathesis.GenerationMode, examples: int, model: str | None = None) -> None:
    """``model`` takes the place of generated names of models."""

    @given(generated(operation, mode))
    @settings(
        max_examples=examples,
        derandomize=examples == EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def every_answer(case: schemathesis.Case[Any]) -> None:
        for part in (case.body, case.query):
            if model is not None and isinstance(part, dict) and isinstance(part.get("model"), str):
                part["model"] = model
        # The schema cannot express all rules, for example that stream_options require stream.
        answer = case.call(headers={"Authorization": f"Bearer {KEY}"})
        # 501 is llama.cpp's answer of a server without slots, a request may allow one millisecond, and a server without
        # a model is not ready. The document has to name them.
        is_late = TIMEOUT_HEADER in (case.headers or {})
        is_unready = operation.path.startswith("/health/")
        may_fail = answer.status_code == 501 or (answer.status_code == 503 and (is_late or is_unready))
        chosen = [not_a_server_error] if may_fail else []
        if case.query:
            # In an address an empty list is nothing, and a list of one name is the name.
            chosen.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=[positive_data_acceptance, *chosen])

    every_answer()


def check_all(
    document: Any,
    mode: schemathesis.GenerationMode,
    examples: int,
    model_of: Callable[[str], str | None] = lambda _: None,
    left_out: Sequence[str] = LEFT_OUT,
) -> None:
    """Raises `ExceptionGroup` with the failures of all operations, because a run takes minutes."""
    failures = []
    for operation in (found.ok() for found in document.get_all_operations()):
        if operation.path in left_out:
            continue
        try:
            check(operation, mode, examples, model_of(operation.path))
        except Unsatisfiable:
            pass  # Nothing is wrong with any request of an operation without parameters.
        except Exception as failure:
            failure.add_note(f"{operation.method.upper()} {operation.path}")
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{mode.value} requests", failures)


@pytest.mark.parametrize(("method", "path", "mode"), in_turn(OPERATIONS))
def test_every_answer_is_one_that_the_document_names(
    document: Any, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    check(document[path][method], mode, EXAMPLES)


@pytest.mark.parametrize(("method", "path", "mode"), in_turn(STORE_OPERATIONS))
def test_every_answer_about_the_store_is_one_that_the_document_names(
    store_document: Any, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    check(store_document[path][method], mode, EXAMPLES)


@pytest.mark.parametrize("mode", [POSITIVE, pytest.param(NEGATIVE, marks=pytest.mark.exhaustive)])
def test_every_answer_of_kserves_api_is_one_that_its_document_names(
    kserve_document: Any, mode: schemathesis.GenerationMode
) -> None:
    check_all(kserve_document, mode, EXAMPLES)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of", ["document", "store_document", "kserve_document"])
def test_every_operation_gives_many_requests_an_answer_that_it_names(
    request: pytest.FixtureRequest, of: str, mode: schemathesis.GenerationMode
) -> None:
    check_all(request.getfixturevalue(of), mode, MANY_EXAMPLES)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of real models."""
    server = start(*MODELS, folder=tmp_path_factory.mktemp("served"), env={**WITH_FEW_KERNELS, **ONE_KEY})()
    yield server
    server.end()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
def test_real_models_give_generated_requests_an_answer_that_the_document_names(
    served: Served, mode: schemathesis.GenerationMode
) -> None:
    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json", headers={"Authorization": f"Bearer {KEY}"})

    def model_of(path: str) -> str:
        return [model for model, begins in MODELS.items() if path.startswith(begins)][-1]

    check_all(document, mode, LIVE_EXAMPLES, model_of, LEFT_OUT + REMOVING)
    assert served.process.poll() is None
