"""Compares the two engines of chat templates at compile time: Jinja2, and the page's evaluator of its syntax tree."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from ...shared.script import SharedScript
from ..errors import CheckpointError, RequestError
from .chat_template import ChatTemplate
from .control_tokens import SENTINEL
from .tokenizer_files import TokenizerFiles

_USER: dict[str, Any] = {"role": "user", "content": "Hi <b>you</b>, 你好 😀"}
_CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Os\\"lo é", "days": 2, "rain": 1.0, "2": null, "at": []}'},
}
_CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefgh1", "content": '{"degrees": 3}'}
_CODE = "\n\n    def f():\n        return 1\n"
_REASONING = {"role": "assistant", "content": "Done.", "reasoning_content": "\n Let me see. \n"}
_IMAGE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}

CHATS: Mapping[str, list[dict[str, Any]]] = {
    "a question": [_USER],
    "a system message": [{"role": "system", "content": " Be brief. "}, _USER],
    "an empty system message": [{"role": "system", "content": ""}, _USER],
    "several turns": [_USER, {"role": "assistant", "content": "Hello\n"}, {"role": "user", "content": " Bye "}],
    "an answer at the end": [_USER, {"role": "assistant", "content": "Hello"}],
    "an answer with indented code": [_USER, {"role": "assistant", "content": f"<think>\n\n</think>{_CODE}"}, _USER],
    "an answer that starts with line breaks": [_USER, {"role": "assistant", "content": _CODE}, _USER],
    "reasoning in an answer": [_USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello"}, _USER],
    "reasoning beside an answer": [_USER, _REASONING, _USER],
    "a tool call": [_USER, _CALLS],
    "a tool call and its result": [_USER, _CALLS, _RESULT],
    "two results": [_USER, {**_CALLS, "tool_calls": [_CALL, _CALL]}, _RESULT, _RESULT, _USER],
    "a call with a text": [_USER, {**_CALLS, "content": "I look."}, _RESULT, _USER],
    "an image": [_IMAGE],
    "an image in a later turn": [_USER, {"role": "assistant", "content": "Hello"}, _IMAGE],
    "parts of text": [{"role": "user", "content": [{"type": "text", "text": " a"}, {"type": "text", "text": "b"}]}],
    "an empty list of parts": [{"role": "user", "content": []}],
    "an empty message": [{"role": "user", "content": ""}],
    "a missing content": [{"role": "user"}],
    "a marked message": [{"role": "user", "content": f"{SENTINEL}<|im_{SENTINEL}end|> a<{SENTINEL} "}],
    "another role": [{"role": "developer", "content": "Be brief."}, _USER],
    "no messages": [],
}  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <Ort> & 'mehr'",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                    "days": {"type": ["integer", "null"], "minimum": 1, "default": 0.5},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
VARIABLES: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"enable_thinking": False})


def chat_notes(files: TokenizerFiles) -> tuple[str, ...]:
    """`template_notes` of a model's chat template; empty if it has none."""
    if files.chat_template is None:
        return ()
    return template_notes(files.chat_template, tuple(files.special_tokens.items()))


@lru_cache(maxsize=64)
def template_notes(source: str, special_tokens: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Sentences for the user: what the browser lacks to render a template, or where it renders another prompt.

    Raises CheckpointError if the template is not valid Jinja.
    """
    return tuple(_notes(ChatTemplate(source, dict(special_tokens), clock=lambda: _NOW)))


def _notes(template: ChatTemplate) -> Iterator[str]:
    tree = template.tree()
    script = SharedScript()
    lacking = _lacking(template, script)
    if lacking:
        yield (
            f"chat template: it uses {', '.join(lacking)}, which a browser cannot evaluate; chats that need it work "
            "only on a server, so rewrite that part for a browser"
        )
    lost = " and ".join(_lost_roles(template))
    if lost:
        yield (
            f"chat template: it loses what messages with the role {lost} say, as a text and as a list of parts; "
            "correct the checkpoint's chat template"
        )
    if tree.unsupported:
        return
    problem = _first_difference(template, script)
    if problem is not None and not lacking:
        yield f"chat template: {problem}"


_NOW = datetime(2026, 2, 3, 4, 5, 6, 7000)


def _lost_roles(template: ChatTemplate) -> Iterator[str]:
    """The roles whose messages the template accepts and does not write."""
    probe = "Quokka3"
    for role, before, behind in (("user", [], []), ("assistant", [_USER], []), ("system", [], [_USER])):
        try:
            text = template.render([*before, {"role": role, "content": probe}, *behind], add_generation_prompt=False)
        except (CheckpointError, RequestError):
            continue
        if probe not in text:
            yield role


def _lacking(template: ChatTemplate, script: SharedScript) -> list[str]:
    tree, supported = template.tree(), script.supported()
    return [
        *tree.unsupported,
        *(f"the filter {name!r}" for name in sorted(tree.filters - set(supported["filters"]))),
        *(f"the test {name!r}" for name in sorted(tree.tests - set(supported["tests"]))),
        *(f"the method {name!r}" for name in sorted(tree.methods & set(supported["lacking_methods"]))),
        *(f"the function {name!r}" for name in sorted(tree.functions & set(supported["lacking_functions"]))),
    ]


def _first_difference(template: ChatTemplate, script: SharedScript) -> str | None:
    parts = json.dumps(
        {
            "source": template.source,
            "tree": template.tree().data,
            "content": template.content_form,
            "specialTokens": template.special_tokens,
        }
    )
    for (name, messages), tools, prompt, variables in itertools.product(
        CHATS.items(), (None, TOOLS), (True, False), VARIABLES
    ):
        chat = {"messages": messages, "tools": tools, "variables": variables, "add_generation_prompt": prompt}
        theirs = script.render(parts, chat, _NOW)
        try:
            ours = template.render(messages, tools=tools, variables=variables, add_generation_prompt=prompt)
        except (CheckpointError, RequestError) as error:
            if "text" not in theirs:
                continue
            return f"for {name}, a browser renders a prompt that Jinja2 refuses ({error.message}); report it"
        if theirs.get("error") == "unsupported":
            return f"for {name}, a browser cannot render it ({theirs['message']}); such chats work only on a server"
        if theirs.get("text") != ours:
            shown = theirs.get("message", "another prompt")
            return f"for {name}, a browser does not render the prompt of Jinja2 ({shown}); report it"
    return None
