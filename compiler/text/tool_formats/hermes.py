"""Hermes: ``<tool_call>{"name": .., "arguments": ..}</tool_call>`` for each call.

Qwen 2.5 and 3, Hermes 2 Pro and 3, SmolLM3 and Granite 4 write it.
"""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="hermes",
    marker="<tool_call>",
    begin="",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    separator="\n",
    end="",
    close="</tool_call>",
    arguments="json",
    lead="",
    gap="",
    tokens=["<tool_call>", "</tool_call>"],
)


def matches(template: str) -> bool:
    # GLM 4.5 writes <arg_key> elements between the same markers.
    return "<tool_call>" in template and "<arg_key>" not in template
