"""The form of an answer: the grammar of response_format, of vLLM's structured_outputs and guided_*, or of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.bundle.entries import ToolFormatEntry
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tool_formats import FORMATS

from ..schema.chat import (
    ChatCompletionRequest,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
)
from ..schema.common import GenerationRequest, StructuredOutputs
from ..schema.completions import CompletionRequest
from ..schema.functions import Tool
from .grammar.source import CallsOrForm, EbnfSource, FormSource, GrammarSource, JsonSource, RegexSource, call_begins
from .json_structure import structure_error
from .tools import check_tools, tool_grammar

ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """``param`` is the parameter that requests the grammar.

    ``tools`` are the tools in the prompt, and ``calls`` is the format of their calls. With ``call_begins``, an answer
    has calls only if it begins with one of these texts; otherwise it is a message.
    """

    grammar: GrammarSource | None
    param: str
    tools: Sequence[Tool] | None
    calls: ToolFormatEntry | None
    call_begins: tuple[str, ...] | None = None


def answer_format(request: ChatCompletionRequest, form: ToolFormatEntry | None) -> AnswerFormat:
    """``form`` is the model's format of calls, None if it does not support tools.

    Raises RequestError if the request cannot be met.
    """
    tools, choice = request.tools or [], request.tool_choice or "auto"
    check_tools(tools, choice)
    requested, param = requested_grammar(request)
    if not tools or choice == "none":
        return AnswerFormat(requested, param, None, None)
    if form is None:
        raise RequestError(
            "this model's chat template has no tools, or writes calls in an unknown format (known: "
            f"{', '.join(FORMATS)}); leave the tools out",
            param="tools",
        )
    grammar = tool_grammar(form, tools, choice, request.parallel_tool_calls is not False, requested)
    if isinstance(grammar, CallsOrForm):
        return AnswerFormat(grammar, param, tools, form, call_begins(grammar.calls))
    return AnswerFormat(grammar, "tools", tools, form)


def requested_grammar(request: GenerationRequest) -> tuple[FormSource | None, str]:
    """The grammar that the request itself sets, and the name of the parameter that sets it.

    Raises RequestError for more than one such parameter, and for an invalid schema.
    """
    forms = structured_outputs(request)
    sources = [(name, _structured(form, name)) for name, form in forms]
    if isinstance(request, ChatCompletionRequest | CompletionRequest):
        sources.append(("response_format", _source(request.response_format)))
    given = [(name, source) for name, source in sources if source is not None]
    if len(given) > 1:
        raise RequestError(
            f"{given[0][0]} and {given[1][0]} both set the answer's form; use one of them", param=given[0][0]
        )
    return (given[0][1], given[0][0]) if given else (None, "response_format")


def structured_outputs(request: GenerationRequest) -> list[tuple[str, StructuredOutputs]]:
    """vLLM's parameters of the request by name. The older ones have the form of the newer one."""
    older = {
        "guided_json": StructuredOutputs.model_construct(json_=request.guided_json),
        "guided_regex": StructuredOutputs.model_construct(regex=request.guided_regex),
        "guided_choice": StructuredOutputs.model_construct(choice=request.guided_choice),
        "guided_grammar": StructuredOutputs.model_construct(grammar=request.guided_grammar),
    }
    named = [(name, form) for name, form in older.items() if getattr(request, name) is not None]
    return [
        *named,
        *([] if request.structured_outputs is None else [("structured_outputs", request.structured_outputs)]),
    ]


def _structured(form: StructuredOutputs, param: str) -> FormSource | None:
    """None if no key is set."""
    sources: list[FormSource] = []
    if form.json_ is not None:
        sources.append(JsonSource(_schema_text(_schema(form.json_, param), param)))
    if form.regex is not None:
        sources.append(RegexSource(form.regex))
    if form.choice is not None:
        sources.append(
            RegexSource("|".join(re.sub(r"[\\^$.*+?()\[\]{}|/]", r"\\\g<0>", choice) for choice in form.choice))
        )
    if form.grammar is not None:
        sources.append(EbnfSource(form.grammar))
    if form.json_object:
        sources.append(JsonSource(ANY_OBJECT))
    if len(sources) > 1:
        raise RequestError(f"{param} has {len(sources)} forms for the answer; use one of them", param=param)
    return sources[0] if sources else None


def _schema(given: dict[str, Any] | str, param: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if (wrong := structure_error(given.encode("utf-8", "surrogatepass"))) is not None:
        raise RequestError(f"{param} {wrong}", param=param)
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise RequestError(f"{param} must be a JSON schema: an object, or the JSON text of one", param=param)
    return schema


def _schema_text(schema: object, param: str) -> str:
    try:
        return json.dumps(schema)
    except RecursionError as error:
        raise RequestError("the JSON schema is nested too deep", param=param) from error


def _source(response_format: ResponseFormat | None) -> FormSource | None:
    match response_format:
        case JsonObjectFormat():
            return JsonSource(ANY_OBJECT)
        case JsonSchemaFormat(json_schema=described):
            if described.schema_ is None:
                raise RequestError(
                    "response_format of type json_schema needs json_schema.schema, an object",
                    param="response_format.json_schema.schema",
                )
            return JsonSource(_schema_text(described.schema_, "response_format.json_schema.schema"))
        case RegexFormat(pattern=pattern):
            return RegexSource(pattern)
        case GrammarFormat(grammar=grammar):
            return EbnfSource(grammar)
        case _:
            return None
