"""Errors of upstreams become our errors."""

from __future__ import annotations

import pytest

from nearfar.server_fallback.executors.refusal import by_status, error_object


def test_the_upstreams_code_is_passed_on() -> None:
    error = by_status("http://far", 400, {"message": "too long", "code": "context_length_exceeded"}, None)
    assert error.details["code"] == "context_length_exceeded"


@pytest.mark.parametrize("code", [None, 7, "", "two words", "x" * 65, "line\n", "\ud800", ["a"]])
def test_texts_that_are_not_codes_are_dropped(code: object) -> None:
    assert "code" not in by_status("http://far", 400, {"message": "no", "code": code}, None).details


@pytest.mark.parametrize("body", ["{}", '{"error": {}}', '{"error": null}', "", " "])
def test_an_answer_without_words_is_named_by_its_status(body: str) -> None:
    assert str(by_status("http://far", 503, error_object(body), None)) == "http://far: status 503"


def test_a_rejected_key_names_the_options_of_every_command() -> None:
    message = str(by_status("http://far", 401, {"message": "key"}, None))
    for option in ("--upstream-api-key-env (serve)", "--far-api-key-env (gateway, router)", "--api-key-env (bench)"):
        assert option in message
