"""Tools: checks the functions that a model may call, and makes the grammar of their calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nearfar.compiler.errors import RequestError

from ..schema.chat import NamedToolChoice, Tool
from .grammar.source import CallsOrForm, FormSource, GrammarSource, Tag, TagsSource

# How a call is written. "hermes" (Qwen 2.5 and 3, Hermes): <tool_call>{"name": .., "arguments": ..}</tool_call>.
# "llama3" (Llama 3.1
# and on): {"name": .., "parameters": ..} as the whole answer.
ToolFormat = Literal["hermes", "llama3"]
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice

TOOL_CALL = "<tool_call>"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_format(chat_template: str | None) -> ToolFormat | None:
    """The format that a chat template uses; None if it does not support tools or uses another format."""
    if chat_template is None or not re.search(r"\btools\b", chat_template):
        return None
    if TOOL_CALL in chat_template:
        return None if "<function=" in chat_template or "<arg_key>" in chat_template else "hermes"
    return "llama3" if "<|python_tag|>" in chat_template or re.search(r'"parameters\\?"', chat_template) else None


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises RequestError for an invalid name, for two functions of one name, and for a choice that is not a tool."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise RequestError(
                f"tools[{index}].function.name must be of letters, digits, '_', '-' and '.', at most 64",
                param=f"tools[{index}].function.name",
            )
        if name in names:
            raise RequestError(
                f"tools[{index}]: there are two functions of the name '{name}'; give each its own",
                param=f"tools[{index}]",
            )
        names.add(name)
    if choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', but there are no tools", param="tool_choice")
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        raise RequestError(
            f"tool_choice names '{choice.function.name}', which is none of the tools", param="tool_choice"
        )


def tool_grammar(
    form: ToolFormat,
    tools: Sequence[Tool],
    choice: ToolChoice,
    parallel: bool = True,
    message: FormSource | None = None,
) -> GrammarSource | None:
    """The grammar of calls: of any tool for "required", of one tool for a named function.

    With ``parallel``, an answer may have several calls. For "auto" the model is free, but calls of ``strict`` functions
    must match their parameters once they have begun; the result is None if no function is strict. With ``message``, the
    answer to "auto" is either calls or such a message. The tools must have been checked.
    """
    if choice == "none":
        return None
    named = choice.function.name if isinstance(choice, NamedToolChoice) else None
    separator = "\n" if parallel and named is None and form == "hermes" else None
    if choice == "auto" and message is not None:
        return CallsOrForm(TagsSource(_auto_tags(form, tools), separator), message)
    if choice == "auto":
        # After a trigger, only functions that have a tag can be called, so each function has one.
        if form != "hermes" or not any(tool.function.strict for tool in tools):
            return None
        return TagsSource(_auto_tags(form, tools), separator=None, trigger=TOOL_CALL)
    tags = tuple(_tag(form, tool) for tool in tools if named in (None, tool.function.name))
    return TagsSource(tags, separator)


def _auto_tags(form: ToolFormat, tools: Sequence[Tool]) -> tuple[Tag, ...]:
    """Functions that are not strict accept any arguments."""
    return tuple(_tag(form, tool, schema=None if tool.function.strict else {"type": "object"}) for tool in tools)


def _tag(form: ToolFormat, tool: Tool, schema: Mapping[str, Any] | None = None) -> Tag:
    begin, key, end = (f"{TOOL_CALL}\n", "arguments", "\n</tool_call>") if form == "hermes" else ("", "parameters", "")
    parameters = tool.function.parameters
    if schema is None:
        schema = _NO_PARAMETERS if parameters is None else parameters
    return Tag(f'{begin}{{"name": {json.dumps(tool.function.name)}, "{key}": ', json.dumps(schema), f"}}{end}")
