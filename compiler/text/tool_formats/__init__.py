"""The formats in which models write tool calls, one file each. A model's format is found in its chat template.

A format is data (`ToolFormatEntry`), which the manifest holds, so that runtimes need only the syntaxes of arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...bundle.entries import ToolFormatEntry
from . import gemma4, granite, hermes, llama3, mistral, mistral_named, phi4_mini, qwen3_coder

# The first one that matches is the model's. A format with fewer conditions comes later.
_MODULES = (gemma4, mistral_named, mistral, qwen3_coder, hermes, phi4_mini, granite, llama3)
FORMATS: Mapping[str, ToolFormatEntry] = {module.FORMAT.name: module.FORMAT for module in _MODULES}


def has_tools(template: str | None) -> bool:
    """Whether a chat template has a place for tools."""
    return template is not None and re.search(r"\b(xml_)?tools\b", template) is not None


def tool_format(template: str | None) -> ToolFormatEntry | None:
    """The format of a chat template; None if the template has no tools or writes calls in an unknown format."""
    if template is None or not has_tools(template):
        return None
    return next((module.FORMAT for module in _MODULES if module.matches(template)), None)
