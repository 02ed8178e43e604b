"""JSON, and text that only looks like it; bodies that are too large, too slow, or incomplete."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Message

from nearfar.server_fallback.api.errors import ApiError
from nearfar.server_fallback.api.json_body import MAX_KEYS, check_inner_json, parse_json, read_json_body
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.text.json_structure import MAX_DEPTH, MAX_PARTS, MAX_VALUES, JsonStructure, structure_error

TOO_MANY_PARTS = [
    b"{" + b",".join(b'"k%d":0' % number for number in range(MAX_PARTS)) + b"}",
    b'[{"a\\\\":"\\""},' + b",".join([b'"\\"\\\\"'] * MAX_PARTS) + b"]",
    b"[" + b",".join([b"[]"] * MAX_PARTS) + b"]",
    b"[" + b",".join([b"{}"] * MAX_PARTS) + b"]",
    b"[" + b",".join([b"1.5"] * MAX_PARTS) + b"]",
    b"[" + b",".join([b"1e5"] * MAX_PARTS) + b"]",
]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(JSON_VALUES)
@settings(max_examples=30)
def test_json_round_trips_unchanged(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_number_without_a_fraction_is_an_integer_however_it_is_written() -> None:
    # Gson writes each number of a map as 64.0.
    assert repr(parse_json(b"[64.0, 1e3, -2.0, 9007199254740992.0]")) == "[64, 1000, -2, 9007199254740992]"
    assert repr(parse_json(b"[0.5, 1e300, 9007199254740994.0]")) == "[0.5, 1e+300, 9007199254740994.0]"
    request = parse_json(b'{"model": "m", "prompt": "", "max_tokens": 64.0, "temperature": 1.0}')
    read = CompletionRequest.model_validate(request)
    assert (read.max_tokens, read.temperature) == (64, 1)
    with pytest.raises(ValidationError, match="max_tokens"):
        CompletionRequest.model_validate(parse_json(b'{"model": "m", "prompt": "", "max_tokens": 64.5}'))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "line 1 column 2"),
        (b'{"a": 1} x', "not JSON"),
        (b'"\xff"', "not UTF-8 (byte 1)"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e999]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "too many digits"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' appears twice"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\uDC00x": 1}', "surrogate"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nests deeper"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nests deeper"),
        (b"[" * 50_000, "nests deeper"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "more than 327,680 values"),
        (b"{" + b",".join(b'"%d":1' % number for number in range(MAX_KEYS + 1)) + b"}", f"{MAX_KEYS + 1} keys"),
        *((each, "strings, objects, arrays and fractions") for each in TOO_MANY_PARTS),
    ],
)
def test_bodies_that_are_not_json_are_refused(body: bytes, says: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_json(body)
    assert refused.value.status == 400
    assert refused.value.code == "invalid_json"
    assert says in refused.value.message


@pytest.mark.parametrize("body", TOO_MANY_PARTS)
def test_a_body_with_too_many_parts_is_refused_before_it_is_parsed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(ApiError, match="65,536"):
        parse_json(body)
    with pytest.raises(ApiError, match=r"'messages\[0\].x' has more than 65,536"):
        check_inner_json(body.decode(), "messages[0].x")


@given(JSON_VALUES)
@settings(max_examples=30, phases=[Phase.generate])
def test_marks_inside_strings_are_not_parts_of_the_structure(value: object) -> None:
    text = json.dumps(value).encode()
    # As a string of itself, all of its marks are text.
    quoted = json.dumps(text.decode() * (MAX_PARTS // len(text) + 1) + "[{." * MAX_PARTS).encode()
    assert structure_error(quoted) is None
    assert structure_error(quoted.join([b"[" * MAX_DEPTH, b"]" * MAX_DEPTH])) is None
    assert structure_error(quoted.join([b"[" * (MAX_DEPTH + 1), b"]" * (MAX_DEPTH + 1)])) is not None


@given(JSON_VALUES, st.randoms(use_true_random=False))
@settings(max_examples=30, phases=[Phase.generate])
def test_structure_is_the_same_in_pieces(value: object, random: Random) -> None:
    text = json.dumps([value, '\\"[{', "\\", "[{"]).encode()
    for depth in (1, MAX_DEPTH - 1, MAX_DEPTH + 1):
        whole = b"[" * depth + text + b"]" * depth
        structure, at, is_refused = JsonStructure(), 0, False
        while at < len(whole):
            size = random.randrange(1, 12)
            is_refused = structure.error_of(whole[at : at + size]) is not None or is_refused
            at += size
        assert is_refused is (structure_error(whole) is not None)
        assert is_refused or depth <= MAX_DEPTH


def test_requests_at_the_limits_are_accepted() -> None:
    assert len(parse_json(b"[" + b",".join([b'""'] * (MAX_PARTS - 1)) + b"]")) == MAX_PARTS - 1
    assert len(parse_json(b"[" + b"1," * (MAX_VALUES - 1) + b"1]")) == MAX_VALUES
    siblings = b",".join([b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)] * 100)
    assert len(parse_json(b"[" + siblings + b"]")) == 100
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    parse_json(b"{" + b",".join(b'"%d":1' % number for number in range(MAX_KEYS)) + b"}")
    assert parse_json(b'"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"


def read(
    parts: Sequence[bytes], max_bytes: int = 10, headers: Sequence[tuple[str, str]] = (), *, endless: bool = False
) -> object:
    """Read a body that arrives in these parts; an ``endless`` one never ends."""
    messages: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        if endless:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": b"", "more_body": False}

    given = [
        (name.encode(), value.encode())
        for name, value in (*headers, ("content-type", "Application/JSON; charset=utf-8"))
    ]
    request = Request({"type": "http", "method": "POST", "headers": given, "path": "/"}, receive)
    return parse_json(asyncio.run(read_json_body(request, max_bytes, 0.05)))


@pytest.mark.parametrize("body", [*TOO_MANY_PARTS, b"[" * 1000, b"[" + b"1," * MAX_VALUES])
def test_a_body_with_too_much_structure_is_refused_before_its_end(body: bytes) -> None:
    parts = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    with pytest.raises(ApiError) as refused:
        read(parts, 1 << 30, endless=True)
    assert refused.value.status == 400
    # The connection discards the rest, so the client may read this answer.
    assert "Connection" not in refused.value.headers


def test_a_body_of_the_most_bytes_is_read_and_of_one_more_is_not() -> None:
    assert read([b'"1234567', b'8"']) == "12345678"
    with pytest.raises(ApiError) as refused:
        read([b'"1234567', b'89"'])
    assert refused.value.status == 413
    assert refused.value.headers["Connection"] == "close"


def test_a_lie_about_the_length_does_not_help() -> None:
    with pytest.raises(ApiError) as refused:
        read([b"[", b"1," * 1000, b"1]"], headers=[("content-length", "4")])
    assert refused.value.status == 413


def test_a_body_that_is_too_large_is_not_kept() -> None:
    part = bytes(1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            read([part] * 30)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413


def test_a_body_that_would_never_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ApiError) as refused:
        read([bytes(1 << 20)] * 65, endless=True)
    assert refused.value.status == 413
    with pytest.raises(ApiError) as refused:
        read([], headers=[("content-length", "999999999999")], endless=True)
    assert refused.value.status == 413


def test_a_client_that_waits_for_permission_to_send_is_refused_at_once() -> None:
    with pytest.raises(ApiError) as refused:
        read([], headers=[("content-length", "11"), ("expect", "100-continue")], endless=True)
    assert refused.value.status == 413


def test_a_body_that_does_not_arrive_is_a_408() -> None:
    with pytest.raises(ApiError) as refused:
        read([b"["], endless=True)
    assert refused.value.status == 408


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_another_content_type_is_a_415(content_type: str) -> None:
    request = Request(
        {"type": "http", "method": "POST", "headers": [(b"content-type", content_type.encode())], "path": "/"}
    )
    with pytest.raises(ApiError) as refused:
        asyncio.run(read_json_body(request, 10, 1.0))
    assert refused.value.status == 415


@pytest.mark.parametrize("encoding", ["gzip", "identity, br"])
def test_a_compressed_body_is_a_415(encoding: str) -> None:
    with pytest.raises(ApiError) as refused:
        read([gzip.compress(b"{}")], headers=[("content-encoding", encoding)])
    assert refused.value.status == 415
    assert read([b"{}"], headers=[("content-encoding", "Identity")]) == {}
