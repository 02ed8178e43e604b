"""What the values of Ollama's templates are: their types, the fields of each, and where a Jinja template finds them.

Facts of https://github.com/ollama/ollama/blob/main/docs/template.mdx and api/types.go. A type is a word; that of a list
starts with "[", and that of an object with any keys with "{". "integer of a text" is the length of a text, which Go
counts in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TEXT, INTEGER, BOOLEAN, ANY, NULL, LENGTH = "text", "integer", "boolean", "any", "null", "integer of a text"
# The types of a property: "string", or several; a list in Jinja.
TYPES = "types"
MESSAGES, TOOLS, ARGUMENTS, PROPERTIES = "[message", "[tool", "{argument", "{property"
ROOT, MESSAGE, CALL, CALLED = "root", "message", "call", "called function"
TOOL, FUNCTION, PARAMETERS, PROPERTY = "tool", "function", "parameters", "property"


@dataclass(frozen=True, slots=True)
class Member:
    """A field: its key, and its type."""

    key: str
    type: str


MEMBERS: Mapping[str, Mapping[str, Member]] = MappingProxyType(
    {
        MESSAGE: {
            "Role": Member("role", TEXT),
            "Content": Member("content", TEXT),
            "Thinking": Member("thinking", TEXT),
            "ToolCalls": Member("tool_calls", f"[{CALL}"),
            "ToolName": Member("tool_name", TEXT),
            "ToolCallID": Member("tool_call_id", TEXT),
        },
        CALL: {"ID": Member("id", TEXT), "Function": Member("function", CALLED)},
        CALLED: {"Name": Member("name", TEXT), "Arguments": Member("arguments", ARGUMENTS)},
        TOOL: {"Type": Member("type", TEXT), "Function": Member("function", FUNCTION)},
        FUNCTION: {
            "Name": Member("name", TEXT),
            "Description": Member("description", TEXT),
            "Parameters": Member("parameters", PARAMETERS),
        },
        PARAMETERS: {
            "Type": Member("type", TEXT),
            "Required": Member("required", f"[{TEXT}"),
            "Properties": Member("properties", PROPERTIES),
            "Defs": Member("$defs", ANY),
            "Items": Member("items", ANY),
        },
        PROPERTY: {
            "Type": Member("type", TYPES),
            "Description": Member("description", TEXT),
            "Enum": Member("enum", f"[{ANY}"),
            "Items": Member("items", ANY),
        },
    }
)
# The root's fields, by what the template is rendered for: all messages; one round of a conversation, whose question and
# answer the template gets as `.Prompt` and `.Response`; the last round, whose answer is to be written; or the text
# between a prompt and a suffix. A field that Ollama leaves out of one is empty there.
_THINKING = {
    "Think": ("(enable_thinking | default(false))", BOOLEAN),
    "IsThinkSet": ("(enable_thinking is defined)", BOOLEAN),
    "ThinkLevel": ("(reasoning_effort | default(''))", TEXT),
}
_EMPTY = {
    **dict.fromkeys(("System", "Prompt", "Suffix", "Response"), ("''", TEXT)),
    "Messages": ("[]", MESSAGES),
    "Tools": ("[]", TOOLS),
    **_THINKING,
}
ROOTS: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "messages": {
            **_EMPTY,
            "System": ("chat.system", TEXT),
            "Messages": ("chat.messages", MESSAGES),
            "Tools": ("(tools or [])", TOOLS),
        },
        "round": {**_EMPTY, "System": ("system", TEXT), "Prompt": ("question", TEXT), "Response": ("answer", TEXT)},
        "last": {
            **_EMPTY,
            "System": ("now.system", TEXT),
            "Prompt": ("now.question", TEXT),
            "Response": ("now.answer", TEXT),
        },
        "between": {**_EMPTY, "Prompt": ("prompt", TEXT), "Suffix": ("suffix", TEXT)},
    }
)
# Fields that Ollama had, or has for other purposes, and what to do.
GONE: Mapping[str, str] = MappingProxyType(
    {
        "First": "Ollama no longer sets it; test .System instead",
        "Images": "pictures are placed by the model's own chat template; remove TEMPLATE",
        "Query": "rerankers have no template here",
        "Document": "rerankers have no template here",
        "Instruction": "rerankers have no template here",
    }
)
# Types whose values Ollama writes as JSON.
WRITTEN_AS_JSON = frozenset((TOOL, FUNCTION, PARAMETERS, TOOLS, ARGUMENTS))


def member(owner: str, owner_type: str, name: str) -> tuple[str, str] | None:
    """The Jinja expression of a field, and its type; None if the type has no such field. A missing one is empty."""
    found = MEMBERS.get(owner_type, {}).get(name)
    if found is None:
        return None
    value = f"{owner}['{found.key}']"
    if found.type == ANY:
        return value, ANY
    if found.type == TYPES:
        return f"(([{value}] if {value} is string else {value}) or [])", TYPES
    empty = "''" if found.type == TEXT else "[]" if found.type.startswith("[") else "{}"
    return f"({value} or {empty})", found.type


def element(type: str) -> str | None:
    """The type of a list's elements, or of an object's values; None for other types."""
    if type == TYPES:
        return TEXT
    inner = type[1:]
    return None if type[0] not in "[{" else ANY if inner == "argument" else inner


def in_words(type: str) -> str:
    """A type in words."""
    if type == ROOT:
        return "the template's values"
    if type.startswith("["):
        return f"a list of {type[1:]}s" if type[1:] != ANY else "a list"
    if type.startswith("{"):
        return f"an object of {type[1:]}s" if type != PROPERTIES else "an object of properties"
    return f"an {type}" if type[0] in "aeiou" else f"a {type}"
