"""Relayed events of another server: the same as if each were parsed, however the bytes are split."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from fake_openai import USAGE, chunk, text_chunks
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError, Unavailable
from nearfar.server_fallback.api.generation import chunk_json
from nearfar.server_fallback.executors.event_template import MARK
from nearfar.server_fallback.executors.relay import Relay
from nearfar.server_fallback.executors.upstream import make_upstream
from nearfar.server_fallback.executors.upstream_bounds import Bounds
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.completions import CompletionChunk
from nearfar.server_fallback.text.output import NO_ENDS, Chunks

UPSTREAM = make_upstream("http://127.0.0.1:9", None)
STYLES = [
    lambda value: f"data: {json.dumps(value, separators=(',', ':'), ensure_ascii=False)}\n\n",
    lambda value: f"data: {json.dumps(value)}\n\n",
    lambda value: f": ping\r\nevent: x\r\ndata:{json.dumps(value, ensure_ascii=False)}\r\n\r\n",
]
# Texts that JSON escapes, that occur in the bytes of other events, or that take several bytes.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["\n", '"', '"}}]}\n\n', '\\"}', "\u2028", "é", "😀", "content", MARK, '"},"finish_reason":null}]}', " a b"]
)


def encoded(value: ChatCompletionChunk) -> bytes | None:
    data = chunk_json(value, True)
    return None if data is None else b"data: " + data + b"\n\n"


class Counted:
    """Relays an answer, and counts the parsed events. It is the output of its `Relay`."""

    has_room = True

    def __init__(self, bounds: Bounds = Bounds()) -> None:  # noqa: B008
        self.parsed = 0
        self.encode = encoded
        self.relay = Relay[ChatCompletionChunk](ChatCompletionChunk, "ours", bounds, self, self._read)
        self.texts: list[frozenset[int]] = []
        self.ends: dict[int, str] = {}
        self.usage: Any = None
        self.sent: list[bytes] = []

    async def room(self) -> None: ...

    def text(self, *_: object) -> None:
        raise AssertionError

    def chunk(self, chunk: ChatCompletionChunk) -> None:
        self.ends |= {each.index: each.finish_reason for each in chunk.choices if each.finish_reason is not None}
        self.usage = chunk.usage or self.usage
        self.sent.append(encoded(chunk) or b"")

    def block(
        self, sent: bytes, texts: Collection[int], ends: Mapping[int, str] = NO_ENDS, usage: object = None
    ) -> None:
        assert not ends
        assert usage is None
        self.texts.append(frozenset(texts))
        self.sent.append(sent)

    def _read(self, data: str) -> dict[str, Any]:
        self.parsed += 1
        return UPSTREAM.event_object(data)

    def answer(self, parts: Sequence[bytes]) -> list[Any]:
        """The objects that the client receives. Raises the error that ended the answer."""
        for part in parts:
            if not self.relay.is_over:
                self.relay.add(part)
        if self.relay.failure is not None:
            raise self.relay.failure
        self.relay.end()
        return self.objects()

    def objects(self) -> list[Any]:
        return objects(b"".join(self.sent))


def objects(sent: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in sent.split(b"\n\n")[:-1]]


def one_by_one(values: Sequence[Any], bounds: Bounds) -> list[Any]:
    """The same answer, each chunk by itself."""
    chunks: list[ChatCompletionChunk] = []
    relay = Relay(ChatCompletionChunk, "ours", bounds, Chunks(chunks.append), UPSTREAM.event_object)
    for value in values:
        if not relay.is_over:
            relay.add(events([value], done=b""))
    relay.end()
    return objects(b"".join(encoded(chunk) or b"" for chunk in chunks))


def cut(whole: bytes, offsets: Sequence[int]) -> list[bytes]:
    offsets = sorted(offset % (len(whole) + 1) for offset in offsets)
    return [whole[start:stop] for start, stop in zip([0, *offsets], [*offsets, len(whole)], strict=True)]


def events(values: Sequence[Any], style: int = 0, done: bytes = b"data: [DONE]\n\n") -> bytes:
    return "".join(STYLES[style](value) for value in values).encode() + done


def call_part(text: str, index: int) -> dict[str, Any]:
    value = chunk(index=index)
    value["choices"][0]["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    return value


def reasoning_part(text: str, index: int) -> dict[str, Any]:
    value = chunk(index=index)
    value["choices"][0]["delta"] = {"reasoning": text}
    return value


def piece(kind: str, text: str, index: int) -> dict[str, Any]:
    if kind == "call":
        return call_part(text, index)
    return reasoning_part(text, index) if kind == "reasoning" else chunk(text, index=index)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["text"] * 6 + ["call", "reasoning"]), TEXTS, st.integers(0, 2)), max_size=24),
    st.integers(0, len(STYLES) - 1),
    st.lists(st.integers(0, 1 << 16), max_size=6),
    st.sampled_from([None, 0, 3, 12]),
    st.booleans(),
    st.booleans(),
)
def test_the_events_are_those_of_chunks_parsed_one_by_one(
    pieces: list[tuple[str, str, int]], style: int, offsets: list[int], tokens: int | None, counts: bool, ends: bool
) -> None:
    values = [chunk(role="assistant"), *(piece(*each) for each in pieces)]
    if ends:
        values += [chunk(finish="stop"), chunk(finish="length", index=1), chunk("late")]
    values.append({**chunk(), "choices": [], "usage": USAGE})
    bounds = Bounds(choices=2, tokens=tokens, counts_pieces=counts)
    counted = Counted(bounds)
    expected = one_by_one(values, bounds)
    assert counted.answer(cut(events(values, style), offsets)) == expected
    assert counted.usage is not None
    assert counted.usage.model_dump(mode="json", exclude_none=True) == expected[-1]["usage"]
    choices = [choice for value in expected for choice in value["choices"]]
    finished = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None}
    assert counted.ends == finished


def test_texts_are_neither_parsed_nor_changed_after_the_first() -> None:
    values = text_chunks("first", *("x" * 500), usage=USAGE)
    counted = Counted()
    answer = counted.answer([events(values)])
    texts = [each["choices"][0]["delta"].get("content", "") for each in answer if each["choices"]]
    assert "".join(texts) == "first" + "x" * 500
    # The role, the first text, the end and the usage.
    assert counted.parsed == 4
    assert (counted.texts, counted.ends) == ([frozenset([0])], {0: "stop"})


def test_choices_calls_and_reasoning_have_templates_of_their_own() -> None:
    kinds = ["text", "call", "reasoning"]
    values = [piece(kind, f"w{number}", index) for number in range(50) for kind in kinds for index in (0, 1)]
    counted = Counted(Bounds(choices=2))
    assert len(counted.answer([events(values)])) == 301
    assert counted.parsed == 6


def test_escapes_reach_the_client_unchanged_and_count_as_the_characters_that_they_encode() -> None:
    # A limit of one token admits four words.
    words = b"".join(STYLES[1](chunk(text)).encode() for text in ("w", "\n", "w", "\n", "\u00e9", "\t", "w"))
    counted = Counted(Bounds(tokens=1))
    counted.answer([words])
    assert rb"\u00e9" in b"".join(counted.sent)
    counted = Counted(Bounds(tokens=1))
    answer = counted.answer([words, STYLES[1](chunk("\n")).encode(), STYLES[1](chunk("w")).encode()])
    assert [value["choices"][0]["finish_reason"] for value in answer if value["choices"]] == [None] * 8 + ["length"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (rb'a"b', "expected a JSON object"),
        (b"a\\", "expected a JSON object"),
        (rb"\x41", "expected a JSON object"),
        (b"a\x01b", "expected a JSON object"),
        (rb"\ud83d", "expected a JSON object"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_bytes_that_are_not_text_end_the_answer_after_the_events_before_them(text: bytes, message: str) -> None:
    whole = events([chunk("a"), chunk("b"), chunk("c"), chunk("TEXT"), chunk("d")]).replace(b"TEXT", text)
    counted = Counted()
    with pytest.raises(DeviceError, match=message):
        counted.answer([whole])
    assert [each["choices"][0]["delta"]["content"] for each in counted.objects()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [({"message": "out of memory", "code": 500}, DeviceError), ({"message": "too long", "code": 400}, RequestError)],
)
def test_an_error_in_the_middle_is_raised_after_the_events_before_it(
    error: dict[str, Any], kind: type[NearfarError]
) -> None:
    counted = Counted()
    with pytest.raises(kind, match=error["message"]):
        counted.answer([events([chunk("a"), chunk("b"), {"error": error}, chunk("c")])])
    assert [each["choices"][0]["delta"]["content"] for each in counted.objects()] == ["a", "b"]


def test_no_part_of_an_event_is_sent_before_its_end() -> None:
    whole = events([chunk("a"), chunk("b")])
    counted = Counted()
    for offset in range(len(whole)):
        counted.relay.add(whole[offset : offset + 1])
        assert all(sent.endswith(b"}\n\n") for sent in counted.sent)
    assert [sent.count(b"\n\n") for sent in counted.sent] == [1, 1]


def test_an_answer_without_a_chunk_is_no_answer() -> None:
    with pytest.raises(Unavailable, match="without any output"):
        Counted().answer([b": ping\n\n", b"data: [DONE]\n\n"])


def test_log_probabilities_are_parsed_each() -> None:
    values = [chunk(text) for text in "abcdef"]
    for value in values:
        value["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": 0.0}]}
    counted = Counted(Bounds(tokens=4))
    answer = counted.answer([events(values)])
    assert counted.parsed == 6
    assert [value["choices"][0]["finish_reason"] for value in answer if value["choices"]] == [None] * 4 + ["length"]


def test_chunks_are_relayed_too() -> None:
    def part(text: str, end: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": end, "stop_reason": None}
        return {"id": "c", "object": "text_completion", "created": 1, "model": "there", "choices": [choice]}

    read = 0

    def counted(data: str) -> dict[str, Any]:
        nonlocal read
        read += 1
        return UPSTREAM.event_object(data)

    chunks: list[CompletionChunk] = []
    relay = Relay[CompletionChunk](CompletionChunk, "ours", Bounds(), Chunks(chunks.append), counted)
    relay.add(events([part("a"), *[part("b")] * 20, part("", "stop")]))
    relay.end()
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "a" + "b" * 20
    assert {chunk.model for chunk in chunks} == {"ours"}
    assert read == 22
