"""Errors of upstreams become our errors."""

from __future__ import annotations

import pytest

from nearfar.server_fallback.executors.refusal import by_status


def test_the_upstreams_code_is_passed_on() -> None:
    error = by_status("http://far", 400, {"message": "too long", "code": "context_length_exceeded"}, None)
    assert error.details["code"] == "context_length_exceeded"


@pytest.mark.parametrize("code", [None, 7, "", "two words", "x" * 65, "line\n", "\ud800", ["a"]])
def test_texts_that_are_not_codes_are_dropped(code: object) -> None:
    assert "code" not in by_status("http://far", 400, {"message": "no", "code": code}, None).details
