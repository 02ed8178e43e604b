"""Gemma 4: ``<|tool_call>call:name{key:value}<tool_call|>`` for each call, with strings between ``<|"|>``."""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="gemma4",
    marker="<|tool_call>",
    begin="",
    before_name="<|tool_call>call:",
    before_arguments="",
    after_arguments="<tool_call|>",
    separator="",
    end="",
    close="<tool_call|>",
    arguments="gemma",
    lead="",
    gap="",
    tokens=["<|tool_call>", "<tool_call|>", '<|"|>'],
)


def matches(template: str) -> bool:
    return "<|tool_call>call:" in template
