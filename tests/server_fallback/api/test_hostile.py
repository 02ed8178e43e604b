"""Bodies that are valid by the OpenAPI document, but break underlying libraries: none is a server error, and the server
continues.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi import HI, ask_app, events, run
from fake_models import FakeExecutor, FakeModels
from fake_source import executor

from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors import local_opener
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry

CONFIG = ApiConfig(keys=read_keys(None, {"NEARFAR_API_KEYS": "admin=sk-admin-12345678"}))
ADMIN = {"authorization": "Bearer sk-admin-12345678"}
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
# It writes all parts of a message.
TEMPLATE = """{# tools: <tool_call> #}{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}
{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}[assistant]"""
ASKED = {"model": "fake", "max_tokens": 2}
HUGE = 10**400
MEGABYTE = "x" * 1_000_000


class PanicException(BaseException):
    """The exception that libraries in Rust raise; each has its own class."""


def after_call(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {**ASKED, "messages": [*HI["messages"], {"role": "assistant", "tool_calls": [call]}]}


def with_schema(schema: object) -> dict[str, Any]:
    return {
        **ASKED,
        "messages": HI["messages"],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }


MORE: list[dict[str, Any]] = [
    {"model": MEGABYTE},
    {MEGABYTE: 1},
    {"metadata": {MEGABYTE: 1}},
    {"messages": [{"role": "user", "content": "x", MEGABYTE: 1}]},
    {"tools": [{"type": "function", "function": {"name": MEGABYTE}}]},
    *(
        {name: HUGE}
        for name in ("max_tokens", "seed", "priority", "n", "top_k", "temperature", "top_p", "repetition_penalty")
    ),
    {"logit_bias": {"9" * 400: 1}},
    {"logit_bias": {"-1": 1}},
]
SCHEMAS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/" + "a/" * 100_000},
    {"allOf": [{"$ref": "#"}]},
    {"type": "integer", "minimum": HUGE},
    {"type": "string", "pattern": "(" * 2000 + ")" * 2000},
    {"type": {}, "properties": [], "anyOf": {}},
]
INPUTS: list[Any] = [[HUGE], [[2**63]], [-1], [[]], [""], [], ["\0"]]
HOSTILE: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, after_call(text)) for text in (
        '{"a": ' + "[" * 1500 + "]" * 1500 + "}",
        '{"a": ' * 1500 + "1" + "}" * 1500,
        '{"a": "\\ud800"}',
        '{"\\udc00": 1}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": NaN}',
        "[" * 1_000_000,
    )),
    ("/tokenize", {"model": "fake", "messages": after_call('{"a": ' + "[" * 1500 + "]" * 1500 + "}")["messages"]}),
    ("/tokenize", {"model": "fake", "messages": after_call('{"a": "\\ud800"}')["messages"]}),
    *((CHAT, {**ASKED, **HI, **more}) for more in MORE),
    *((path, {"model": "fake", name: value}) for path, name in ((COMPLETIONS, "prompt"), (EMBEDDINGS,
    "input")) for value in INPUTS),
    (EMBEDDINGS, {"model": "fake", "input": "x", "dimensions": HUGE}),
    *(("/detokenize", {"model": "fake", "tokens": tokens}) for tokens in ([HUGE], [2**64], [-1], [128, 255, 257, 259])),
]  # fmt: skip
PATHS = ("a\0b", "a" * 256, "~nosuchuser/model", "../" * 80, "/dev/null", "/proc/self/mem", "a\nb")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    models = FakeModels()
    models.fake = made = executor(tmp_path_factory.mktemp("hostile"), "hello", template=TEMPLATE)[0]  # type: ignore[assignment]
    yield create_app(models, CONFIG)
    asyncio.run(made.close())


# Schemas are compiled in a separate process, which takes seconds to start.
@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param(HOSTILE, id="texts"),
        pytest.param([(CHAT, with_schema(each)) for each in SCHEMAS], id="schemas", marks=pytest.mark.exhaustive),
    ],
)
def test_no_body_is_a_failure_of_the_server_which_answers_after_it(
    app: Any, bodies: list[tuple[str, dict[str, Any]]]
) -> None:
    for path, body in bodies:
        response = run(ask_app(app, "POST", path, body, **ADMIN))
        assert 200 <= response.status_code < 500, (path, str(body)[:200], response.text[:500])
        assert len(response.text) < 3000, (path, str(body)[:200])
    assert run(ask_app(app, "POST", CHAT, {**ASKED, **HI}, **ADMIN)).status_code == 200
    limiter = app.state.service.limits
    assert (limiter.running, limiter.body_bytes) == (0, 0)


def test_the_error_in_a_call_is_named(app: Any) -> None:
    for arguments in ('{"a": ' + "[" * 1500 + "]" * 1500 + "}", '{"a": "\\ud800"}'):
        error = run(ask_app(app, "POST", CHAT, after_call(arguments), **ADMIN)).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "messages[1].tool_calls[0].function.arguments")


@pytest.mark.parametrize(
    "path", ["/v1/models/%ED%A0%80", "/v1/models/%00", "/v1/models/" + "x" * 50_000, "/%ff", "/v1/models?a=%ff"]
)
def test_no_address_is_a_failure_of_the_server(app: Any, path: str) -> None:
    response = run(ask_app(app, "GET", path, **ADMIN))
    assert response.status_code in (200, 404)
    assert len(response.text) < 3000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", "Bearer \xff\xfe"),
        ("x-request-timeout-ms", "\xb2"),
        ("x-request-timeout-ms", "9" * 5000),
        ("content-length", "\xb2"),
        ("content-length", "9" * 5000),
        ("content-type", "application/json\xff"),
        ("x-request-id", "\xff" * 200),
        ("x-forwarded-for", "[::1, %s" % ("," * 50_000)),
        ("traceparent", "\xff"),
        ("host", "[::1"),
    ],
)
def test_no_header_is_a_failure_of_the_server(app: Any, name: str, value: str) -> None:
    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            headers = httpx.Headers({**ADMIN, "content-type": "application/json"}, encoding="latin-1")
            headers[name] = value
            return (await client.post(CHAT, content=json.dumps({**ASKED, **HI}), headers=headers)).status_code

    assert run(ask()) < 500


@pytest.mark.parametrize("path", PATHS)
def test_no_path_is_a_failure_of_the_server(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def compiled(*_: object) -> Path:
        raise CheckpointError("there is no such folder")

    monkeypatch.setattr(local_opener, "compiled", compiled)
    app = create_app(Registry(LocalOpener(LocalOptions())), CONFIG)
    for route, body in (("/v1/models/load", {"model": path}), ("/v1/models/unload", {"model": path})):
        response = run(ask_app(app, "POST", route, body, **ADMIN))
        assert 400 <= response.status_code < 500, response.text


@pytest.mark.parametrize("error", [PanicException("SECRET"), RecursionError("SECRET")])
def test_a_panic_of_a_library_is_an_answer(error: BaseException) -> None:
    models = FakeModels(FakeExecutor(error=error))
    app = create_app(models, ApiConfig())
    for body in (HI, {**HI, "stream": True}):
        response = run(ask_app(app, "POST", CHAT, body))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unreadable_text")
        assert "SECRET" not in response.text
    models.fake.error_at = 1
    assert events(run(ask_app(app, "POST", CHAT, {**HI, "stream": True})))[-1]["error"]["code"] == "unreadable_text"
    models.fake.error = None
    assert run(ask_app(app, "POST", CHAT, HI)).status_code == 200
    assert models.fake.open == 0
