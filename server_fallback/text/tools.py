"""Tools: checks the functions that a model may call, and makes the grammar of their calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nearfar.compiler.bundle.entries import ToolFormatEntry
from nearfar.compiler.runtime.errors import RequestError

from ..schema.functions import NamedToolChoice, Tool
from .grammar.source import CallsOrForm, FormSource, GrammarSource, Tag, TagsSource

ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


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
    form: ToolFormatEntry,
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
    separator = form.separator if parallel and named is None else None
    if choice == "auto":
        tags = tuple(_tag(form, tool, strict=tool.function.strict is True) for tool in tools)
        if message is not None:
            return CallsOrForm(_calls(form, tags, separator), message)
        # After a trigger, only functions that have a tag can be called, so each function has one.
        if not form.marker or not any(tool.function.strict for tool in tools):
            return None
        # Behind a list's marker, all calls of the list follow; other markers are triggers themselves.
        return _calls(form, tags, separator if form.begin else None, form.marker)
    return _calls(form, tuple(_tag(form, tool) for tool in tools if named in (None, tool.function.name)), separator)


def text_parameters(tools: Sequence[Tool]) -> Mapping[str, frozenset[str]]:
    """The parameters of each function that are strings, which some formats write without quotes."""
    return {tool.function.name: text_properties(tool.function.parameters or {}) for tool in tools}


def _calls(
    form: ToolFormatEntry, tags: tuple[Tag, ...], separator: str | None, trigger: str | None = None
) -> TagsSource:
    return TagsSource(tags, separator, trigger, form.begin, form.end, form.arguments, form.gap)


def _tag(form: ToolFormatEntry, tool: Tool, *, strict: bool = True) -> Tag:
    """Without ``strict``, any arguments are accepted."""
    parameters = _NO_PARAMETERS if tool.function.parameters is None else tool.function.parameters
    schema = parameters if strict else {"type": "object"}
    return Tag(
        f"{form.before_name}{tool.function.name}", json.dumps(schema), form.after_arguments, form.before_arguments
    )


def text_properties(schema: Any) -> frozenset[str]:
    """The properties whose own schemas allow only strings."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return frozenset()
    return frozenset(name for name, value in properties.items() if is_text(value))


def is_text(schema: Any) -> bool:
    """Whether every value of a schema is a string: by its type, or by its constants if it has no type."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return schema["type"] in ("string", ["string"])
    values = schema["enum"] if "enum" in schema else [schema.get("const")]
    return isinstance(values, list) and len(values) > 0 and all(isinstance(value, str) for value in values)
