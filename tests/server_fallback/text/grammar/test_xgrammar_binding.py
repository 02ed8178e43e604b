"""Our binding of xgrammar's library, against the package."""

from __future__ import annotations

import json
import threading
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from picking import END, SHAPES, TOKENS

from nearfar.compiler.runtime.errors import ToolError
from nearfar.server_fallback.text.grammar import xgrammar_binding as ours
from nearfar.server_fallback.text.grammar.rules import source_rules
from nearfar.server_fallback.text.grammar.source import JsonSource, Tag, TagsSource

PERSON = JsonSource(
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}'
)
CALL = TagsSource((Tag("<tool_call>", PERSON.schema, "</tool_call>"),), None, trigger="<tool_call>")


def test_it_compiles_matches_and_fails_as_the_package_does() -> None:
    import xgrammar as theirs

    tokenizer = ours.TokenizerInfo(TOKENS, [END])
    their_tokenizer = theirs.TokenizerInfo(TOKENS, theirs.VocabType.RAW, vocab_size=len(TOKENS), stop_token_ids=[END])
    compiler = ours.GrammarCompiler(tokenizer, max_threads=1)
    their_compiler = theirs.GrammarCompiler(their_tokenizer, max_threads=1, cache_enabled=False)
    assert theirs.get_serialization_version() in compiler.compile_grammar('root ::= "a"').serialize_json()
    for source in (PERSON, CALL):
        text = source_rules(source).text
        tags = isinstance(source, TagsSource)
        compiled = compiler.compile_structural_tag(text) if tags else compiler.compile_grammar(text)
        expected = their_compiler.compile_structural_tag(text) if tags else their_compiler.compile_grammar(text)
        assert compiled.serialize_json() == expected.serialize_json()
        assert compiled.memory_size_bytes == expected.memory_size_bytes
        again = ours.CompiledGrammar.deserialize_json(expected.serialize_json(), tokenizer)
        matcher, their_matcher = ours.GrammarMatcher(again), theirs.GrammarMatcher(expected)
        mask, their_mask = (np.zeros(len(SHAPES.plain), np.int32) for _ in range(2))
        for text in (*(["free <tool_call>"] if tags else []), '{"na', 'me": "\u00e9', "\n", '"', "}"):
            assert matcher.accept_string(text) == their_matcher.accept_string(text) == (text != "\n")
            matcher.fill_next_token_bitmask(mask)
            their_matcher.fill_next_token_bitmask(their_mask)
            assert mask.tolist() == their_mask.tolist()
            assert matcher.find_jump_forward_string() == their_matcher.find_jump_forward_string()
            assert matcher.is_completed() == their_matcher.is_completed()
        matcher.rollback(2)
        their_matcher.rollback(2)
        assert matcher.accept_token(ord('"')) == their_matcher.accept_token(ord('"'))
    for grammar in ("root ::= nothing", "root ::="):
        with pytest.raises(RuntimeError) as mine:
            compiler.compile_grammar(grammar)
        with pytest.raises(RuntimeError) as other:
            their_compiler.compile_grammar(grammar)
        # The line starts with the time.
        assert str(mine.value).split("] ")[1] == str(other.value).split("] ")[1]


def test_the_library_beside_the_binding_is_loaded_unless_the_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "__file__", str(tmp_path / "xgrammar_binding.py"))
    library = tmp_path / "xgrammar" / ours._LIBRARY
    library.parent.mkdir()
    library.write_bytes(b"not a library")
    # The test environment has the package.
    assert ours._library() != library
    monkeypatch.setattr(ours, "version", lambda _: "0.3.0")
    assert ours._library() == library
    monkeypatch.setattr(ours, "version", not_installed)
    assert ours._library() == library
    hint = r"install nearfar again, or run 'pip install --no-deps xgrammar==0\.2\.8'"
    with pytest.raises(ToolError, match=rf"needs {library}, which cannot be loaded: .*; {hint}"):
        ours._load()
    library.unlink()
    with pytest.raises(ToolError, match=rf"library of xgrammar 0\.2\.8: {library} is missing; {hint}"):
        ours._load()


def not_installed(_: str) -> str:
    raise PackageNotFoundError


def test_calls_release_the_gil() -> None:
    compiler = ours.GrammarCompiler(ours.TokenizerInfo(TOKENS, [END]), max_threads=1)
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(100)}}
    compiled = compiler.compile_grammar(source_rules(JsonSource(json.dumps(schema))).text)
    # It takes some tenths of a second, and copies the text at the end.
    thread = threading.Thread(target=compiled.serialize_json)
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10
