"""What an answer may be: response_format and tools flow in, a grammar and how tool calls are read flow out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from nearfar.compiler.errors import RequestError

from ..schema.chat import (
    ChatCompletionRequest,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
    Tool,
)
from .grammar.source import EbnfSource, GrammarSource, JsonSource, RegexSource
from .tools import ToolFormat, check_tools, tool_grammar


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """``param`` is what asked for the grammar. ``tools`` are those that the prompt names; their calls are written in ``calls``."""

    grammar: GrammarSource | None
    param: str
    tools: Sequence[Tool] | None
    calls: ToolFormat | None


def answer_format(request: ChatCompletionRequest, form: ToolFormat | None) -> AnswerFormat:
    """``form`` is how the model writes calls, None where it knows no tools. Raises RequestError for what cannot be."""
    tools, choice = request.tools or [], request.tool_choice or "auto"
    check_tools(tools, choice)
    asked = _source(request.response_format)
    if not tools or choice == "none":
        return AnswerFormat(asked, "response_format", None, None)
    if form is None:
        raise RequestError("tools need a chat template that knows tools, which this model lacks; leave them out", param="tools")
    if asked is not None:
        raise RequestError("response_format and tools cannot be given together", param="response_format")
    grammar = tool_grammar(form, tools, choice, request.parallel_tool_calls is not False)
    return AnswerFormat(grammar, "tools", tools, form)


def _schema_text(schema: object) -> str:
    try:
        return json.dumps(schema)
    except RecursionError as error:
        raise RequestError("the JSON schema is nested too deep", param="response_format.json_schema.schema") from error


def _source(response_format: ResponseFormat | None) -> GrammarSource | None:
    match response_format:
        case JsonObjectFormat():
            return JsonSource('{"type": "object"}')
        case JsonSchemaFormat(json_schema=described):
            if described.schema_ is None:
                raise RequestError(
                    "response_format of type json_schema needs json_schema.schema, an object", param="response_format.json_schema.schema"
                )
            return JsonSource(_schema_text(described.schema_))
        case RegexFormat(pattern=pattern):
            return RegexSource(pattern)
        case GrammarFormat(grammar=grammar):
            return EbnfSource(grammar)
        case _:
            return None
