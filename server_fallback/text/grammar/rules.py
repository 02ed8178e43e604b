"""Writes a source as rules that xgrammar compiles.

The rules are written by `web/src/shared/grammar`, so that schemas and patterns become the same ones as in the browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from .ebnf_check import check_ebnf
from .source import CallsOrForm, EbnfSource, GrammarSource, JsonSource, RegexSource, TagsSource

if TYPE_CHECKING:
    from .xgrammar_binding import CompiledGrammar, GrammarCompiler


@dataclass(frozen=True, slots=True)
class Rules:
    """A source in xgrammar's form.

    ``text`` is EBNF, or, for tags with a trigger and for calls beside a form, a structural tag in JSON. ``endings`` are
    texts that may complete an answer, the longest first. ``reserve`` is an upper bound of the tokens that one token can
    add to the shortest completion.
    """

    text: str
    endings: tuple[str, ...]
    reserve: int


def compile_source(compiler: GrammarCompiler, source: GrammarSource) -> tuple[CompiledGrammar, Rules]:
    """Compile a source. Raises RequestError, and RuntimeError if xgrammar refuses the rules."""
    rules = source_rules(source)
    if isinstance(source, CallsOrForm) or (isinstance(source, TagsSource) and source.trigger is not None):
        return compiler.compile_structural_tag(rules.text), rules
    return compiler.compile_grammar(rules.text), rules


def source_rules(source: GrammarSource) -> Rules:
    """Raises RequestError, and MemoryError for rules that need too much memory."""
    form = source.form if isinstance(source, CallsOrForm) else source
    if isinstance(form, EbnfSource):
        check_ebnf(form.grammar)
    try:
        answer = SharedScript.of_thread().ask("grammarRules", _shared_form(source))
    except RequestError as error:
        # Here, messages begin with a small letter.
        raise RequestError(error.message[0].lower() + error.message[1:], **error.details) from None
    return Rules(answer["text"], tuple(answer["endings"]), answer["reserve"])


def _shared_form(source: GrammarSource) -> dict[str, Any]:
    """The source as a ServerSource of `web/src/shared/grammar/rules.ts`."""
    match source:
        case JsonSource(schema):
            return {"kind": "json_schema", "schema": schema}
        case RegexSource(pattern):
            return {"kind": "regex", "pattern": pattern}
        case EbnfSource(grammar):
            return {"kind": "ebnf", "grammar": grammar}
        case TagsSource(tags):
            written = [{"begin": tag.begin, "middle": tag.middle, "schema": tag.schema, "end": tag.end} for tag in tags]
            form = {name: getattr(source, name) for name in ("separator", "begin", "end", "arguments", "gap")}
            trigger = {} if source.trigger is None else {"trigger": source.trigger}
            return {"kind": "tags", "tags": written, **form, **trigger}
        case CallsOrForm(calls, form):
            return {"kind": "calls_or_form", "calls": _shared_form(calls), "form": _shared_form(form)}
