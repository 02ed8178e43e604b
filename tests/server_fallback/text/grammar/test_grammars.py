"""The compiler's process: valid and refused grammars, and failures that the server survives."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from picking import END, SHAPES, TOKENS, Grammar, pick
from some_grammars import NULL, SLOW, VOCABULARY, one, run

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.processes.frames import read_frame, write_frame
from nearfar.server_fallback.processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from nearfar.server_fallback.text.grammar import worker
from nearfar.server_fallback.text.grammar.bounded import BoundedConstraint
from nearfar.server_fallback.text.grammar.constraint import GrammarConstraint
from nearfar.server_fallback.text.grammar.grammar_compiler import GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.grammar.matcher import allowed_ids
from nearfar.server_fallback.text.grammar.messages import Compiled
from nearfar.server_fallback.text.grammar.source import (
    EbnfSource,
    GrammarSource,
    JsonSource,
    RegexSource,
    Tag,
    TagsSource,
)
from nearfar.server_fallback.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(GrammarCompiler(), lambda: VOCABULARY)
    yield grammars
    grammars.close()


CALL = Tag(
    '<tool_call>\n{"name": "f", "arguments": ',
    '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}',
    "}\n</tool_call>",
)


def test_each_kind_of_source_makes_its_texts(grammars: Grammars) -> None:
    assert one(grammars, NULL) == "null"
    assert one(grammars, RegexSource("(ab){2}")) == "abab"
    assert one(grammars, EbnfSource('root ::= "x" tail\ntail ::= "y"')) == "xy"
    call = one(grammars, TagsSource((CALL,), None)) or ""
    assert call.startswith(CALL.begin)
    assert json.loads(call[len(CALL.begin) : -len(CALL.end)])["a"] in (1, 2)
    several = one(grammars, TagsSource((CALL,), "\n"), seed=3) or ""
    assert several.endswith(CALL.end)


def test_with_a_trigger_text_is_free_until_a_call_begins(grammars: Grammars) -> None:
    [constraint] = run(grammars.constraints(TagsSource((CALL,), None, trigger="<tool_call>"), 1, "tools"))
    # The trigger may consist of several tokens, or be one token.
    *pieces, trigger = (*b"any {text} <tool", *b"_call", TOKENS.index(b"<tool_call>"))
    for token in (*pieces, ord(" "), trigger, *b'\n{"name": "'):
        constraint.accept(token)
    with pytest.raises(RequestError, match="does not continue"):
        constraint.accept(ord("g"))
    for byte in b'f", "arguments": {"a": 2}}\n</tool_call>':
        constraint.accept(byte)
    assert not constraint.finished


def test_with_a_trigger_a_call_begins_only_if_its_end_fits(grammars: Grammars) -> None:
    source = TagsSource((CALL,), None, trigger="<tool_call>")
    trigger = TOKENS.index(b"<tool_call>")

    def begins(max_tokens: int) -> bool:
        [constraint] = run(grammars.constraints(source, 1, "tools", max_tokens))
        constraint.accept(ord("x"))
        return trigger in allowed_ids(constraint.mask(), len(TOKENS))

    fits = [max_tokens for max_tokens in range(2, 100) if begins(max_tokens)]
    assert fits == list(range(fits[0], 100))
    [constraint] = run(grammars.constraints(source, 1, "tools", fits[0]))
    constraint.accept(ord("x"))
    # Until few tokens are left, any text is allowed, including quotes and spaces, but no token that begins a call.
    free = set(allowed_ids(constraint.mask(), len(TOKENS)).tolist())
    assert set(range(0x20, 0x7F)) <= free
    constraint.accept(trigger)
    out = b""
    for _ in range(fits[0] - 2):
        token_id = int(allowed_ids(constraint.mask(), len(TOKENS))[-1])
        constraint.accept(token_id)
        out += TOKENS[token_id]
    call = json.loads(out.decode().removesuffix("\n</tool_call>"))
    assert (call["name"], call["arguments"]["a"] in (1, 2)) == ("f", True)
    # A call whose trigger consists of several tokens does not begin later.
    [late] = run(grammars.constraints(source, 1, "tools", fits[0]))
    for byte in b"any <tool_call":
        late.accept(byte)
    assert ord(">") not in allowed_ids(late.mask(), len(TOKENS))


def test_the_error_for_a_grammar_that_does_not_fit_states_the_required_tokens(grammars: Grammars) -> None:
    source = RegexSource("[0-9]{20}")
    with pytest.raises(RequestError, match="has 20 tokens, and there is room for 19") as error:
        run(grammars.constraints(source, 1, "response_format", 19))
    assert error.value.details == {"param": "max_tokens", "needed": 20, "max_tokens": 19}
    [constraint] = run(grammars.constraints(source, 1, "response_format", 20))
    assert len(pick(constraint, 0) or "") == 20


def test_a_mask_allows_the_end_if_the_text_is_complete(grammars: Grammars) -> None:
    [constraint] = run(grammars.constraints(RegexSource("ab?"), 1, "response_format"))

    def allowed(token: int) -> bool:
        return bool(constraint.mask()[token >> 5] >> (token & 31) & 1)

    assert (allowed(ord("a")), allowed(END), constraint.finished) == (True, False, False)
    with pytest.raises(RequestError, match="does not continue"):
        constraint.accept(ord("b"))
    constraint.accept(ord("a"))
    before = constraint.mask()
    assert (allowed(ord("b")), allowed(END), constraint.finished) == (True, True, False)
    constraint.accept(ord("b"))
    assert (allowed(ord("b")), allowed(END), constraint.finished) == (False, True, True)
    assert before[ord("b") >> 5] != 0, "a mask that was handed out must not change"


def test_a_grammar_is_compiled_once_and_its_answers_do_not_share_their_state(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[GrammarSource] = []
    compile_source = grammars._compile

    async def count(source: GrammarSource, client: str) -> Any:
        compiled.append(source)
        return await compile_source(source, client)

    monkeypatch.setattr(grammars, "_compile", count)
    source = RegexSource("[0-9]{3}")

    async def ask() -> None:
        first, second = await asyncio.gather(*(grammars.constraints(source, 2, "x") for _ in range(2)))
        first[0].accept(ord("1"))
        assert second[0].mask().tolist() == first[1].mask().tolist()
        await grammars.constraints(source, 1, "x")

    run(ask())
    assert compiled == [source]


def test_a_client_that_leaves_does_not_end_the_compilation_for_others(grammars: Grammars) -> None:
    source = RegexSource("left{2}")

    async def ask() -> None:
        leaving = asyncio.create_task(grammars.constraints(source, 1, "x"))
        staying = asyncio.create_task(grammars.constraints(source, 1, "x"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert len(await staying) == 1
        assert leaving.cancelled()

    run(ask())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (EbnfSource("root ::= nothing"), 'Rule "nothing" is not defined'),
        (EbnfSource("root ::="), "line 1"),
        (EbnfSource("root ::= [^\\U00000000-\\U0010ffff]"), "no token"),
        (EbnfSource('root ::= root "a" | "a"'), "left-recursive: root -> root"),
        (EbnfSource('root ::= "\ud800"'), "surrogates"),
        (EbnfSource("root ::= " + "(" * 20_000), "Nest layer"),
        (RegexSource("a(b"), "not a regular expression"),
        (RegexSource("a{100000}"), "too large"),
        (JsonSource('{"enum": []}'), "allows no value at all"),
        (JsonSource('{"a":' * 30_000), "not JSON"),
        (TagsSource((Tag("a", '{"type": "wurst"}', "b"),), None), "wurst"),
    ],
)
def test_a_wrong_grammar_is_refused_and_names_the_parameter(
    grammars: Grammars, source: GrammarSource, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as error:
        run(grammars.constraints(source, 1, "response_format"))
    assert error.value.details["param"] == "response_format"


@pytest.mark.parametrize("message", ["std::bad_alloc", f"[12:00:00] /x/pool.h:74: {os.strerror(errno.EAGAIN)}"])
def test_refused_memory_is_not_a_wrong_grammar(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(worker, "compile_source", refuse)
    with pytest.raises(MemoryError):
        worker._answer(Grammar().compiler, SHAPES, NULL)


@pytest.mark.parametrize(("status", "fault"), [(1, True), (127, True), (3, False)])
def test_a_process_that_ends_for_want_of_memory_ends_by_its_own_fault(
    status: int, fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text(f"import os\n\ndef main():\n    os._exit({status})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = WorkerProcess("ending", WorkerLimits(2**30, 2**30, 10))
    with pytest.raises(WorkerEnded) as ended:
        run(process.start())
    assert ended.value.fault == fault
    process.close()


def test_a_process_killed_from_outside_is_unavailable_and_the_next_request_starts_another(grammars: Grammars) -> None:
    async def ask() -> None:
        asking = asyncio.create_task(grammars.constraints(SLOW, 1, "response_format"))
        await asyncio.sleep(0.3)
        pid = grammars._compiler.lanes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="process was ended; send the request again"):
            await asking

    assert one(grammars, NULL) == "null"
    run(ask())
    assert one(grammars, RegexSource("again")) == "again"


def test_a_model_without_an_end_token_or_without_bytes_has_no_grammars() -> None:
    for vocabulary, message in (
        (Vocabulary((b"a",), frozenset(), (), None), "no token that ends"),
        (Vocabulary((b"a", b"b"), frozenset(), (1,), "WordPiece"), "WordPiece"),
    ):
        grammars = Grammars(GrammarCompiler(), lambda vocabulary=vocabulary: vocabulary)  # type: ignore[misc]
        with pytest.raises(RequestError, match=message):
            run(grammars.constraints(NULL, 1, "response_format"))
        grammars.close()


def test_a_grammar_whose_masks_take_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar, source = Grammar(), RegexSource("[a-z]{9}")
    assert worker._is_fast(grammar.constraint(source))
    monkeypatch.setattr(worker, "MAX_MASK_SECONDS", -1.0)
    with pytest.raises(RequestError, match="too ambiguous"):
        worker._answer(grammar.compiler, SHAPES, source)


def test_if_completions_take_too_long_only_the_grammar_decides(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar, source = Grammar(), RegexSource("[a-z]{9,}")
    timed = worker._is_fast
    monkeypatch.setattr(
        worker, "_is_fast", lambda constraint: not isinstance(constraint, BoundedConstraint) and timed(constraint)
    )
    compiled = worker._answer(grammar.compiler, SHAPES, source)
    assert isinstance(compiled, Compiled)
    assert not compiled.closes
    for reply, kind in ((compiled, GrammarConstraint), (replace(compiled, closes=True), BoundedConstraint)):
        run(grammars.constraints(NULL, 1, "response_format"))
        tables = run(grammars._loaded())
        constraint = tables.constraint(replace(grammars._cache[NULL], reply=reply), 9)
        assert type(constraint) is kind


def test_frames_end_with_the_other_side() -> None:
    stream = io.BytesIO()
    write_frame(stream, NULL)
    stream.seek(0)
    assert read_frame(stream) == NULL
    for cut in (b"", stream.getvalue()[:5], stream.getvalue()[:8]):
        with pytest.raises(EOFError):
            read_frame(io.BytesIO(cut))


@pytest.fixture(scope="module")
def ascii_grammars() -> Iterator[Grammars]:
    """Grammars for a vocabulary that has ASCII without braces, and the first byte of an accented letter without any
    second byte.
    """
    tokens = [*(bytes([byte]).strip(b"{}") for byte in range(0x80)), b"\xc3", b"</s>"]
    grammars = Grammars(GrammarCompiler(), lambda: Vocabulary(tuple(tokens), frozenset([0x81]), (0x81,), None))
    yield grammars
    grammars.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (EbnfSource(r'root ::= "\U00110000"'), "not a Unicode character"),
        (EbnfSource('root ::= "\u4e2d"'), "no token of this model's vocabulary continues the answer"),
        (EbnfSource('root ::= "\u00e9"'), "no token of this model's vocabulary continues the answer"),
        (EbnfSource('root ::= "a" "\u00e9"'), "no token of this model's vocabulary continues the answer"),
        (EbnfSource('root ::= "a"* "\u4e2d"'), "no answer was found .* can write: no token writes '\u4e2d'"),
        (EbnfSource('root ::= "a"{100} "\u00e9"'), "no answer was found .* can write: no token writes '\u00e9'"),
        (RegexSource("[a-z]{60}\u00e9"), "no answer was found .* can write: no token writes '\u00e9'"),
    ],
)
def test_a_grammar_that_no_tokens_can_meet_is_refused(
    ascii_grammars: Grammars, source: GrammarSource, message: str
) -> None:
    for max_tokens in (None, 500):
        with pytest.raises(RequestError, match=message) as error:
            run(ascii_grammars.constraints(source, 1, "response_format", max_tokens))
        assert error.value.details["param"] == "response_format"


def test_the_vocabulary_must_be_able_to_write_one_of_several_alternatives(ascii_grammars: Grammars) -> None:
    # The shorter alternative, which is found first, cannot be written.
    source = EbnfSource('root ::= "x"{60} ("}" | "bcd")')
    with pytest.raises(RequestError, match="has 63 tokens, and there is room for 62"):
        run(ascii_grammars.constraints(source, 1, "response_format", 62))
    [constraint] = run(ascii_grammars.constraints(source, 1, "response_format", 63))
    for byte in b"x" * 60:
        constraint.accept(byte)
    assert allowed_ids(constraint.mask(), 0x82).tolist() == [ord("b")]


def test_an_answer_that_meets_a_dead_end_fails_with_a_code(ascii_grammars: Grammars) -> None:
    [constraint] = run(
        ascii_grammars.constraints(EbnfSource('root ::= "x"{60} ("\u00e9" | "b")'), 1, "response_format")
    )
    for byte in (*b"x" * 60, 0x80):
        constraint.accept(byte)
    with pytest.raises(RequestError, match="no token of this model's vocabulary continues the answer") as error:
        constraint.mask()
    assert error.value.details == {"param": "response_format", "code": "grammar_dead_end"}
