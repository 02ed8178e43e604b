"""Mistral from its tokenizer v11 on: ``[TOOL_CALLS]name[ARGS]{..}`` for each call.

v11 writes ``[CALL_ID]`` and an id of nine letters and digits after the name. Grammars allow it and do not require it.
"""

from __future__ import annotations

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="mistral_named",
    marker="[TOOL_CALLS]",
    begin="",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after_arguments="",
    separator="",
    end="",
    close="",
    arguments="json",
    lead="",
    gap="[CALL_ID]",
    tokens=["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
)


def matches(template: str) -> bool:
    return "[TOOL_CALLS]" in template and "[ARGS]" in template
