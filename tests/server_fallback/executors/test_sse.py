"""Parsing server-sent events from bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import DeviceError
from nearfar.server_fallback.executors import sse


def parse(*parts: bytes) -> list[str]:
    async def source() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def collect() -> list[str]:
        return [data async for data in sse.events(source())]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("data: a\n\n", ["a"]),
        ("data:a\r\n\r\ndata:  b\n\n", ["a", " b"]),
        (": comment\nevent: x\nid: 3\ndata: a\ndata: b\n\n\n\n", ["a\nb"]),
        (": keep-alive\n\n: keep-alive\n\ndata: a\n\n: keep-alive\n\ndata: b\n\n", ["a", "b"]),
        ("data: whole\n\ndata: cut short\n", ["whole"]),
        # JSON may contain these two unescaped, and they do not end a line.
        ('data: "\u2028\x0b"\n\n', ['"\u2028\x0b"']),
    ],
)
def test_the_data_of_complete_events_is_returned(text: str, expected: list[str]) -> None:
    assert parse(text.encode()) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1), max_size=5), st.data())
def test_events_do_not_depend_on_where_the_bytes_are_cut(values: list[str], data: st.DataObject) -> None:
    whole = "".join(f"data: {value}\n\n" for value in values).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert parse(*parts) == values


def test_an_event_without_an_end_is_an_error_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    with pytest.raises(DeviceError, match="an event of more than"):
        parse(b"data: ", *[b"x" * 50] * 3)
    assert len(parse(*[b"data: " + b"x" * 40 + b"\n\n"] * 10)) == 10


def test_bytes_that_are_not_utf8_are_an_error() -> None:
    with pytest.raises(DeviceError, match="not UTF-8"):
        parse(b"data: \xff\n\n")
