"""Granite 3: ``<|tool_call|>`` and a JSON list of calls."""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="granite",
    marker="<|tool_call|>",
    begin="<|tool_call|>[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    end="]",
    close="",
    arguments="json",
    lead="",
    gap="",
    tokens=["<|tool_call|>"],
)


def matches(template: str) -> bool:
    return "<|tool_call|>" in template
