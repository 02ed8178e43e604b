"""Phi-4-mini: a JSON list of calls between ``<|tool_call|>`` and ``<|/tool_call|>``."""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="phi4_mini",
    marker="<|tool_call|>",
    begin="<|tool_call|>[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    separator=", ",
    end="]<|/tool_call|>",
    close="<|/tool_call|>",
    arguments="json",
    lead="",
    gap="",
    tokens=["<|tool_call|>", "<|/tool_call|>"],
)


def matches(template: str) -> bool:
    # The template writes the functions between <|tool|> and <|/tool|>; it has no calls of its own.
    return "<|tool|>" in template and "<|/tool|>" in template
