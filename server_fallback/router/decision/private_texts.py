"""Which values of a request are searched for private patterns: the texts that a person or a program wrote.

`PRIVATE_TEXTS` is the only definition. `schema.py` writes it for the browser's router, and
tests/conformance/private_texts.json requires the same texts of both. A value is described by what it is:

    "text"       a text
    "prompt"     a text that meets its neighbours in the prompt: it is searched together with them
    "url"        the address of an image, without its base64 bytes, in which a pattern would match only by chance
    "json"       any JSON: all of its texts, keys and numbers, because a number is as private as its digits
    "json_text"  JSON in a text: the text itself, and its strings and numbers, without escapes
    "none"       nothing to search: a parameter that selects, or a number that samples
    {...}        an object: its keys in the order of the prompt; "*" describes any other key and is searched with it

A list is described by its items. Several descriptions, in a list, are for values of several kinds (a text, an object),
or for all that one text is. A key that is not described, and a value of another kind, are not searched.

A number is searched as JavaScript writes it, and an integer also by all of its digits. A page has lost the last digits
of an integer above 2^53 before it asks, so only in Python are these its own; in a text both routers read them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

_JSON_FORM = ["json", "json_text"]
_FUNCTION = {"name": "prompt", "arguments": ["prompt", "json_text"], "*": "json"}
_PART = {
    "type": "none",
    "text": "prompt",
    "refusal": "prompt",
    "image_url": {"url": "url", "detail": "none", "*": "json"},
    "*": "json",
}
# Chat templates write a name before the content, and calls after it.
_MESSAGE = {
    "role": "none",
    "labels": "none",
    "name": "prompt",
    "reasoning_content": "prompt",
    "reasoning": "prompt",
    "content": ["prompt", _PART],
    "refusal": "prompt",
    "tool_call_id": "text",
    "tool_calls": {"id": "text", "type": "none", "index": "none", "function": _FUNCTION, "*": "json"},
    "function_call": _FUNCTION,
    "*": "json",
}
_TOOL_FUNCTION = {"name": "text", "description": "text", "parameters": "json", "strict": "none", "*": "json"}
_FORMAT = {
    "type": "none",
    "json_schema": {"name": "text", "description": "text", "schema": "json", "strict": "none", "*": "json"},
    "pattern": "text",
    "grammar": "text",
    "*": "json",
}
# Of all kinds of requests: chats, completions, embeddings, rankings.
PRIVATE_TEXTS: Mapping[str, Any] = {
    "messages": _MESSAGE,
    "prompt": "prompt",
    "input": "json",
    "query": "text",
    "documents": "json",
    "suffix": "text",
    "tools": {"type": "none", "function": _TOOL_FUNCTION, "*": "json"},
    "functions": _TOOL_FUNCTION,
    "function_call": {"name": "text", "*": "json"},
    "tool_choice": {"type": "none", "function": {"name": "text", "*": "json"}, "*": "json"},
    "response_format": _FORMAT,
    "structured_outputs": {
        "json": _JSON_FORM,
        "regex": "text",
        "choice": "text",
        "grammar": "text",
        "json_object": "none",
    },
    "guided_json": _JSON_FORM,
    "guided_regex": "text",
    "guided_choice": "text",
    "guided_grammar": "text",
    "chat_template_kwargs": "json",
    "stop": "text",
    "user": "text",
    "metadata": "json",
    "prediction": "json",
    "safety_identifier": "text",
    "prompt_cache_key": "text",
    "prompt_name": "text",
}

# A URL that only claims to be base64 is searched as text.
_BEFORE_BYTES = re.compile(r"data:[^,]*;base64,(?=[A-Za-z0-9+/]*={0,2}\Z)")
# A string of JSON, without its quotes, or a number. A string that does not end ends with the text, so that the time is
# linear.
_JSON_VALUE = re.compile(
    r'"([^"\\]*+(?:\\.[^"\\]*+)*+)(?:"|\\?\Z)|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL
)


def private_texts(request: Mapping[str, Any], description: Any = PRIVATE_TEXTS) -> Iterator[tuple[str, str]]:
    """The texts of a request's JSON that are searched, each with its kind: "prompt", or "text" if it meets no other."""
    kinds = description if isinstance(description, list) else [description]
    if "json" in kinds and not isinstance(request, str):
        yield from (("text", text) for text in within(request))
    elif isinstance(request, list | tuple):
        for item in request:
            yield from private_texts(item, description)
    elif isinstance(request, dict):
        for keys in (kind for kind in kinds if isinstance(kind, dict)):
            for key, inner in keys.items():
                if key in request and key != "*":
                    yield from private_texts(request[key], inner)
            if "*" in keys:
                others = {key: value for key, value in request.items() if key not in keys and value is not None}
                yield from (("text", text) for text in within(others))
    elif isinstance(request, str):
        kind = next((kind for kind in ("prompt", "text", "url", "json_text", "json") if kind in kinds), None)
        if kind is not None:
            yield "prompt" if kind == "prompt" else "text", without_bytes(request) if kind == "url" else request
        if "json_text" in kinds:
            yield from (("text", text) for text in within_text(request))


def within(value: Any) -> Iterator[str]:
    """All texts, keys and numbers of a JSON value of any depth."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for key, inner in value.items():
                pending += [inner, str(key)]
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from number_texts(value)


def within_text(text: str) -> Iterator[str]:
    """The strings and numbers of JSON in a text, without their escapes; of a text that is not JSON, what looks so."""
    for match in _JSON_VALUE.finditer(text):
        string, number = match.groups()
        if number is None:
            yield unescaped(string)
        else:
            yield number
            # Of other numbers this is what is written.
            if len(number) > 15 or number.startswith("0") or not number.isdigit():
                yield from number_texts(float(number))


def unescaped(string: str) -> str:
    """A string of JSON without its escapes, or as it is if they are not JSON's."""
    if "\\" not in string:
        return string
    try:
        return str(json.loads(f'"{string}"'))
    except ValueError:
        return string


def number_texts(value: float) -> Iterator[str]:
    """A number as JavaScript writes it (ECMA-262, Number::toString), and a large one by all of its digits."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    digits = repr(number)
    if math.isinf(number):
        yield "Infinity" if number > 0 else "-Infinity"
    elif number == 0:
        yield "0"
    elif 1e-6 <= abs(number) < 1e21:
        yield f"{Decimal(digits):f}".removesuffix(".0")
    else:
        yield re.sub(r"e([+-])0+", r"e\1", digits).replace(".0e", "e")
    if abs(value) > 2**53:
        # Unlike str, Decimal writes any number of digits; those of a number this large are an integer's.
        yield from (f"{Decimal(each):f}" for each in {value, number} if isinstance(each, int) or math.isfinite(each))


def without_bytes(url: str) -> str:
    head = _BEFORE_BYTES.match(url)
    return url if head is None else head.group()
