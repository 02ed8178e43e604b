"""What the clients ask: greedy questions in five APIs, also with long prompts, which a prefill worker computes; and how
the text of an answer is read from each.

An answer is read strictly: a stream that lacks its end, or has two, is not an answer.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MODEL, ALIAS, EMBEDDING = "demo", "gpt", "demo-encoder"
# Models of the store. They differ in their context, so each has an engine of its own.
STORED = ("short", "middle", "long")
TEXTS = (
    "what is 27 + 58?",
    "what is 9 times 6?",
    "tell me about the sea",
    "who are you?",
    "write a short story of a fox",
    "what is the capital of France?",
)
MAX_TOKENS = 40
# Prompts of several pages, of which a prefill worker computes all but the last.
LONG_TEXTS = tuple(" ".join([*(f"{text} {number}." for number in range(6)), text]) for text in TEXTS)
# The server whose answers count, for one whose answers several processes make.
ALONE_AT = {"gateway": "models"}
# Of the numbers of an embedding, whose length is 1.
MOST_DIFFERENCE = 1e-4


class NotAnAnswer(Exception):
    """``code`` is that of the error that the body reports; "" for a body that breaks off or has another form."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """``server`` is the one that answers. ``read`` returns the text of a whole body, and raises NotAnAnswer. ``same``:
    whether two texts are the same answer. ``keeps``: the request may have a ``keep_alive``.
    """

    name: str
    server: str
    path: str
    body: dict[str, Any]
    read: Callable[[str], str]
    keeps: bool = False
    same: Callable[[str, str], bool] = operator.eq


def questions() -> tuple[Question, ...]:
    return tuple(_questions())


def _questions() -> Iterator[Question]:
    for place, text in enumerate(TEXTS):
        stream = place % 2 == 0
        common = {"temperature": 0, "stream": stream}
        for server, model, asked in (
            ("models", MODEL, text),
            ("models", ALIAS, text),
            ("store", STORED[place % 3], text),
            ("gateway", MODEL, LONG_TEXTS[place]),
        ):
            messages = [{"role": "user", "content": asked}]
            chat = {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, **common}
            response = {"model": model, "input": asked, "max_output_tokens": MAX_TOKENS, **common}
            read_chat = chat_stream if stream else chat_text
            yield Question("chat", server, "/v1/chat/completions", chat, read_chat)
            read_response = response_stream if stream else response_text
            yield Question("responses", server, "/v1/responses", response, read_response)
            read_message = message_stream if stream else message_text
            yield Question("messages", server, "/v1/messages", chat, read_message)
        body = {
            "model": STORED[(place + 1) % 3],
            "messages": [{"role": "user", "content": text}],
            "stream": stream,
            "options": {"temperature": 0, "num_predict": MAX_TOKENS},
        }
        yield Question("ollama", "store", "/api/chat", body, ollama_lines if stream else ollama_text, keeps=True)
    yield Question(
        "embeddings", "models", "/v1/embeddings", {"model": EMBEDDING, "input": TEXTS[0]}, vectors, same=are_close
    )


# --- whole answers ---


def chat_text(body: str) -> str:
    return str(_one(_read(body)["choices"])["message"]["content"])


def response_text(body: str) -> str:
    response = _read(body)
    if response["status"] not in ("completed", "incomplete"):
        raise NotAnAnswer(body[:500], (response.get("error") or {}).get("code", ""))
    return str(_one(_one(response["output"])["content"])["text"])


def message_text(body: str) -> str:
    return str(_one(_read(body)["content"])["text"])


def ollama_text(body: str) -> str:
    return str(_read(body)["message"]["content"])


def vectors(body: str) -> str:
    return json.dumps([each["embedding"] for each in _read(body)["data"]])


def are_close(text: str, other: str) -> bool:
    """Whether vectors are almost equal: the sum of a product depends on the texts that share its batch."""
    ours, theirs = ([number for each in json.loads(vectors) for number in each] for vectors in (text, other))
    return len(ours) == len(theirs) and all(abs(a - b) < MOST_DIFFERENCE for a, b in zip(ours, theirs, strict=True))


# --- streams ---


def chat_stream(body: str) -> str:
    *chunks, end = _events(body)
    if end != "[DONE]":
        raise NotAnAnswer(f"the last event is {end[:200]}", error_code(end))
    choices = [_one(chunk["choices"]) for chunk in map(_read, chunks)]
    _one([each for each in choices if each["finish_reason"] is not None])
    return "".join(each["delta"].get("content") or "" for each in choices)


def response_stream(body: str) -> str:
    *events, end = map(_read, _events(body))
    if end["type"] not in ("response.completed", "response.incomplete"):
        raise NotAnAnswer(f"the last event is {end}", (end.get("response", {}).get("error") or end).get("code", ""))
    _one([each for each in events if each["type"] == "response.created"])
    text = "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")
    whole = response_text(json.dumps(end["response"]))
    if text != whole:
        raise NotAnAnswer(f"the deltas are {text!r}, and the whole answer {whole!r}")
    return text


def message_stream(body: str) -> str:
    *events, end = map(_read, _events(body))
    if end["type"] != "message_stop":
        raise NotAnAnswer(f"the last event is {end}")
    _one([each for each in events if each["type"] == "message_start"])
    return "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta")


def ollama_lines(body: str) -> str:
    *lines, end = map(_read, body.splitlines())
    if not end.get("done"):
        raise NotAnAnswer(f"the last line is {end}")
    if any(each["done"] for each in lines):
        raise NotAnAnswer("two lines say that they are the last")
    return "".join(each["message"]["content"] for each in lines)


def _read(text: str) -> Any:
    """Raises NotAnAnswer for an error, also one in a stream."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise NotAnAnswer(f"not JSON: {text[:200]!r}") from error
    if isinstance(value, dict) and value.get("error") and "output" not in value:
        raise NotAnAnswer(text[:500], error_code(text))
    return value


def error_code(text: str) -> str:
    """The code of an error in any of these APIs, of Ollama's the message; "" for a text that is not one."""
    try:
        found = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    if isinstance(found, str):
        # Ollama's form has a text alone.
        return found
    details = found.get("details") or {}
    return str(found.get("code") or details.get("error_code") or found.get("type") or "")


def _events(body: str) -> list[str]:
    found = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    if not found:
        raise NotAnAnswer("no event")
    return found


def _one(values: Sequence[Any]) -> Any:
    if len(values) != 1:
        raise NotAnAnswer(f"{len(values)} instead of one: {str(values)[:200]}")
    return values[0]
