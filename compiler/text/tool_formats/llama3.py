"""Llama 3.1 and later: ``{"name": .., "parameters": ..}`` as the whole answer, after ``<|python_tag|>`` or not."""

from __future__ import annotations

import re

from ...bundle.entries import ToolFormatEntry

FORMAT = ToolFormatEntry(
    name="llama3",
    marker="",
    begin="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    separator=None,
    end="",
    close="",
    arguments="json",
    lead="<|python_tag|>",
    gap="",
    tokens=["<|python_tag|>"],
)


def matches(template: str) -> bool:
    # Command R7B names the parameters of its tools so, and writes calls between markers of its own.
    other = "<|START_ACTION|>" in template
    return "<|python_tag|>" in template or (re.search(r'"parameters\\?"', template) is not None and not other)
