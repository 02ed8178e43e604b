"""A source as a compiled grammar of xgrammar's."""

from __future__ import annotations

import json
from typing import Any

from .source import EbnfSource, GrammarSource, JsonSource, RegexSource, TagsSource


def compile_source(compiler: Any, source: GrammarSource) -> Any:
    match source:
        case JsonSource(schema):
            return compiler.compile_json_schema(schema)
        case RegexSource(pattern):
            return compiler.compile_regex(pattern)
        case EbnfSource(grammar):
            return compiler.compile_grammar(grammar)
        case TagsSource(tags, separator, trigger):
            written = [
                {
                    "type": "tag",
                    "begin": tag.begin,
                    "content": {"type": "json_schema", "json_schema": json.loads(tag.schema)},
                    "end": tag.end,
                }
                for tag in tags
            ]
            if trigger is not None:
                form: dict[str, Any] = {"type": "triggered_tags", "triggers": [trigger], "tags": written}
            elif separator is not None:
                form = {"type": "tags_with_separator", "tags": written, "separator": separator, "at_least_one": True}
            else:
                form = {"type": "or", "elements": written}
            return compiler.compile_structural_tag({"type": "structural_tag", "format": form})
