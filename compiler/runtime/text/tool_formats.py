"""The formats in which models write tool calls. A model's format is found in its chat template.

A format is data (`ToolFormatEntry`), which the manifest holds, so that runtimes need only the syntaxes of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...bundle.entries import ToolFormatEntry


def has_tools(template: str | None) -> bool:
    """Whether a chat template has a place for tools."""
    return template is not None and re.search(r"\b(xml_)?tools\b", template) is not None


def tool_format(template: str | None) -> ToolFormatEntry | None:
    """The format of a chat template; None if the template has no tools or writes calls in an unknown format."""
    if template is None or not has_tools(template):
        return None
    return next((FORMATS[name] for name, matches in TEMPLATES.items() if matches(template)), None)


def _is_llama3(template: str) -> bool:
    # Command R7B names the parameters of its tools so, and writes calls between markers of its own.
    other = "<|START_ACTION|>" in template
    return "<|python_tag|>" in template or (re.search(r'"parameters\\?"', template) is not None and not other)


# Which templates are of which format. The first one that matches is the model's. A format with fewer conditions comes
# later.
TEMPLATES: Mapping[str, Callable[[str], bool]] = {
    "gemma4": lambda template: "<|tool_call>call:" in template,
    "mistral_named": lambda template: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    "mistral": lambda template: "[TOOL_CALLS]" in template,
    "qwen3_coder": lambda template: "<tool_call>" in template and "<function=" in template,
    # GLM 4.5 writes <arg_key> elements between the same markers.
    "hermes": lambda template: "<tool_call>" in template and "<arg_key>" not in template,
    # The template writes the functions between <|tool|> and <|/tool|>; it has no calls of its own.
    "phi4_mini": lambda template: "<|tool|>" in template and "<|/tool|>" in template,
    "granite": lambda template: "<|tool_call|>" in template,
    "llama3": _is_llama3,
}


def _format(name: str, marker: str, **parts: Any) -> ToolFormatEntry:
    """A call is a JSON object with a name and arguments after the marker, as far as ``parts`` do not say otherwise."""
    written: dict[str, Any] = {
        "begin": "",
        "before_name": '{"name": "',
        "before_arguments": '", "arguments": ',
        "after_arguments": "}",
        "separator": ", ",
        "end": "",
        "close": "",
        "arguments": "json",
        "lead": "",
        "gap": "",
        "tokens": [marker],
    }
    return ToolFormatEntry(name=name, marker=marker, **{**written, **parts})


_ALL = (
    # Gemma 4: <|tool_call>call:name{key:value}<tool_call|> for each call, with strings between <|"|>.
    _format(
        "gemma4", "<|tool_call>", before_name="<|tool_call>call:", before_arguments="",
        after_arguments="<tool_call|>", separator="", close="<tool_call|>", arguments="gemma",
        tokens=["<|tool_call>", "<tool_call|>", '<|"|>'],
    ),
    # Mistral from its tokenizer v11 on: [TOOL_CALLS]name[ARGS]{..} for each call. v11 writes [CALL_ID] and an id of
    # nine letters and digits after the name. Grammars allow it and do not require it.
    _format(
        "mistral_named", "[TOOL_CALLS]", before_name="[TOOL_CALLS]", before_arguments="[ARGS]", after_arguments="",
        separator="", gap="[CALL_ID]", tokens=["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    ),
    # Mistral up to its tokenizer v7: [TOOL_CALLS] and a JSON list of calls, each with an optional id. Source: the
    # tokenizers v3 and v7 of mistral-common.
    _format("mistral", "[TOOL_CALLS]", begin="[TOOL_CALLS][", end="]"),
    # Qwen3-Coder: <function=name> with <parameter=key> elements between Hermes' markers. The value of a string
    # parameter is its text; every other value is JSON.
    _format(
        "qwen3_coder", "<tool_call>", before_name="<tool_call>\n<function=", before_arguments=">\n",
        after_arguments="</function>\n</tool_call>", separator="\n", close="</tool_call>", arguments="xml",
        tokens=["<tool_call>", "</tool_call>"],
    ),
    # Hermes: <tool_call>{"name": .., "arguments": ..}</tool_call> for each call. Qwen 2.5 and 3, Hermes 2 Pro and 3,
    # SmolLM3 and Granite 4 write it.
    _format(
        "hermes", "<tool_call>", before_name='<tool_call>\n{"name": "', after_arguments="}\n</tool_call>",
        separator="\n", close="</tool_call>", tokens=["<tool_call>", "</tool_call>"],
    ),
    # Phi-4-mini: a JSON list of calls between <|tool_call|> and <|/tool_call|>.
    _format(
        "phi4_mini", "<|tool_call|>", begin="<|tool_call|>[", end="]<|/tool_call|>", close="<|/tool_call|>",
        tokens=["<|tool_call|>", "<|/tool_call|>"],
    ),
    # Granite 3: <|tool_call|> and a JSON list of calls.
    _format("granite", "<|tool_call|>", begin="<|tool_call|>[", end="]"),
    # Llama 3.1 and later: {"name": .., "parameters": ..} as the whole answer, after <|python_tag|> or not.
    _format(
        "llama3", "", before_arguments='", "parameters": ', separator=None, lead="<|python_tag|>",
        tokens=["<|python_tag|>"],
    ),
)  # fmt: skip
FORMATS: Mapping[str, ToolFormatEntry] = {each.name: each for each in _ALL}
