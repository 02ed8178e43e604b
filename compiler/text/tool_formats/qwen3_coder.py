"""Qwen3-Coder: ``<function=name>`` with ``<parameter=key>`` elements between Hermes' markers.

The value of a string parameter is its text; every other value is JSON.
"""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="qwen3_coder",
    marker="<tool_call>",
    begin="",
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    after_arguments="</function>\n</tool_call>",
    separator="\n",
    end="",
    close="</tool_call>",
    arguments="xml",
    lead="",
    gap="",
    tokens=["<tool_call>", "</tool_call>"],
)


def matches(template: str) -> bool:
    return "<tool_call>" in template and "<function=" in template
