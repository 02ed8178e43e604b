"""Parameters of the query that a route does not have: refused by name, as those of bodies are."""

from __future__ import annotations

from hashlib import sha256

from asgi import ask_app, run
from fake_models import FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys

KEYS = Keys((ApiKey("ops", sha256(b"key-of-ops").digest(), admin=True),))
KEY = {"authorization": "Bearer key-of-ops"}


def test_each_route_that_reads_its_query_refuses_what_it_does_not_know() -> None:
    app = create_app(FakeModels(), ApiConfig(keys=KEYS))
    paths = {path for path, methods in app.openapi()["paths"].items() if "security" in methods.get("get", {})}
    asked = {path for path in paths if not path.startswith("/v1/models")}
    assert {"/props", "/slots", "/info", "/is_sleeping", "/api/tags", "/v1/nearfar/about"} <= asked
    for path in asked:
        answer = run(ask_app(app, "GET", path + "?colour=red", None, **KEY))
        assert (answer.status_code, "Unknown parameter: 'colour'." in answer.text) == (400, True), path


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    answer = run(ask_app(create_app(FakeModels(), ApiConfig()), "GET", "/props?model=fake&model=other"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "repeated_parameter")


def test_clients_add_parameters_of_their_own_to_the_list_of_models() -> None:
    app = create_app(FakeModels(), ApiConfig())
    for path in ("/v1/models?limit=1000", "/v1/models?client_version=0.1", "/v1/models/fake?beta=true"):
        assert run(ask_app(app, "GET", path)).status_code == 200
    # Anthropic's client sends this with bodies.
    body = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    assert run(ask_app(app, "POST", "/v1/messages?beta=true", body)).status_code == 200


def test_a_lenient_server_names_what_it_ignores() -> None:
    app = create_app(FakeModels(), ApiConfig(lenient=True))
    answer = run(ask_app(app, "GET", "/props?colour=red"))
    assert (answer.status_code, answer.headers["x-nearfar-ignored"]) == (200, "colour")
