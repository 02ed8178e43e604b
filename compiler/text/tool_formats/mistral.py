"""Mistral up to its tokenizer v7: ``[TOOL_CALLS]`` and a JSON list of calls, each with an optional id.

Source: the tokenizers v3 and v7 of mistral-common.
"""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="mistral",
    marker="[TOOL_CALLS]",
    begin="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    end="]",
    close="",
    arguments="json",
    lead="",
    gap="",
    tokens=["[TOOL_CALLS]"],
)


def matches(template: str) -> bool:
    return "[TOOL_CALLS]" in template
