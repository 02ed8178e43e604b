"""The honest requests: a fixed mixture of all features of the API, each with an answer that never changes.

Every request is greedy or has a seed, so the answer given alone is the answer given under load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MODEL, EMBEDDING = "soak", "embedding"
ADAPTERS = ("adapter-0", "adapter-1", "adapter-2")

CHAT, COMPLETIONS, EMBEDDINGS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"
QUESTIONS = (
    "what is 27 + 58?",
    "what is 9 times 6?",
    "tell me about the sea",
    "who are you?",
    "write a short story of a fox",
    "what is the capital of France?",
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["n"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "warm": {"type": "boolean"}},
        "required": ["city", "warm"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    {
        "anyOf": [
            {"type": "null"},
            {
                "type": "object",
                "properties": {"a": {"type": "number"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        ]
    },
)
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "add two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "the time"}},
)
# Invalid bodies, and the status that each must receive.
BAD: tuple[tuple[str, dict[str, Any], int], ...] = (
    (CHAT, {"model": MODEL, "messages": []}, 400),
    (CHAT, {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}, 404),
    (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": "hot"}, 400),
    (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 0}, 400),
    (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "word " * 2000}]}, 400),
    (COMPLETIONS, {"model": MODEL, "prompt": [5, 999_999], "max_tokens": 4}, 400),
    (COMPLETIONS, {"model": MODEL, "prompt": "x", "unknown": 1}, 400),
    (EMBEDDINGS, {"model": MODEL, "input": "no embeddings here"}, 400),
)


@dataclass(frozen=True, slots=True, eq=False)
class HonestRequest:
    """``kind`` groups times in the report."""

    kind: str
    path: str
    body: dict[str, Any]

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


def honest_requests() -> tuple[HonestRequest, ...]:
    return tuple(_asks())


def new_schema(number: int) -> tuple[HonestRequest, dict[str, Any]]:
    """A request with a schema that the server has not seen before, and the only answer that it allows."""
    value = {f"key{number}": f"value {number}"}
    properties = {name: {"const": text} for name, text in value.items()}
    schema = {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    held = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return _chat("new schema", "answer", response_format=held, temperature=0, max_tokens=64), value


def _asks() -> Iterator[HonestRequest]:
    for index, question in enumerate(QUESTIONS):
        yield _chat("chat", question, temperature=0)
        yield _chat(
            "chat streamed", question, temperature=0.9, seed=index, stream=True, stream_options={"include_usage": True}
        )
        yield _chat("adapter", question, model=ADAPTERS[index % 3], temperature=0, stream=index % 2 == 0)
        yield HonestRequest(
            "completion",
            COMPLETIONS,
            {"model": MODEL, "prompt": question, "max_tokens": 16, "temperature": 0.7, "seed": 40 + index},
        )
    for index, schema in enumerate(SCHEMAS):
        held = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        yield _chat("structured", QUESTIONS[index], response_format=held, temperature=0, max_tokens=64)
        yield _chat(
            "structured",
            QUESTIONS[index],
            response_format=held,
            temperature=1.0,
            seed=index,
            max_tokens=64,
            stream=True,
        )
    yield _chat(
        "structured", "a date", response_format={"type": "regex", "pattern": "[0-9]{4}-[01][0-9]"}, temperature=0
    )
    yield _chat(
        "structured",
        "yes or no",
        response_format={"type": "grammar", "grammar": 'root ::= "yes" | "no"'},
        temperature=0,
    )
    for index, choice in enumerate(("required", {"type": "function", "function": {"name": "add"}})):
        yield _chat("tools", QUESTIONS[index], tools=list(TOOLS), tool_choice=choice, temperature=0, max_tokens=96)
    yield _chat("stop strings", "tell me about the sea", stop=["e", " a"], temperature=0)
    yield _chat("stop strings", "tell me about a fox", stop=["th"], temperature=0, stream=True)
    yield _chat("several", "tell me about the sea", n=3, temperature=0.8, seed=5)
    yield _chat("several", "who are you?", n=2, temperature=0.8, seed=6, stream=True)
    yield _chat("logprobs", "what is 27 + 58?", logprobs=True, top_logprobs=2, temperature=0)
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "what is 1 + 1?"}]},
    ]
    yield HonestRequest("chat", CHAT, {"model": MODEL, "messages": turns, "max_tokens": 16, "temperature": 0})
    yield HonestRequest(
        "completion",
        COMPLETIONS,
        {"model": MODEL, "prompt": ["one", "two"], "max_tokens": 8, "temperature": 0, "stream": True},
    )
    yield HonestRequest("embedding", EMBEDDINGS, {"model": EMBEDDING, "input": ["a text", "another, longer text"]})
    yield HonestRequest(
        "tokenize", TOKENIZE, {"model": MODEL, "messages": [{"role": "user", "content": "what is 27 + 58?"}]}
    )


def _chat(kind: str, question: str, **more: Any) -> HonestRequest:
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 24, **more}
    return HonestRequest(kind, CHAT, body)
