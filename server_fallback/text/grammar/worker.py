"""The code that runs in the grammar compiler's process.

A grammar may take minutes or gigabytes, or crash the process; the server continues.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from nearfar.compiler.runtime.errors import RequestError

from ...garbage import free_memory
from ...processes.worker_loop import Send, serve
from .bounded import Bound, BoundedConstraint
from .completion import Ending, find_completion
from .constraint import GrammarConstraint
from .matcher import Matcher, SearchTooLong, allowed_ids
from .messages import READY, UNKNOWN_VOCABULARY, Compiled, Job, Setup
from .rules import Rules, compile_source
from .shortener import Shortener
from .source import CallsOrForm, GrammarSource, call_begins
from .token_shapes import TokenShapes
from .xgrammar_binding import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo

# A vocabulary of 152,000 tokens takes 35 MB and a few tenths of a second to set up.
MAX_VOCABULARIES = 4
# A larger compiled grammar is refused: reading it takes the server ten times as much memory for a moment.
MAX_COMPILED_BYTES = 40 * 2**20
# Processor time for one token's mask, and for a complete trial of TRIAL_TOKENS.
MAX_MASK_SECONDS = 0.1
MAX_TRIAL_SECONDS = 1.5
TRIAL_TOKENS = 48
# The limit of the search for the shortest answer.
MAX_SEARCH_SECONDS = 2.0
# How xgrammar says that memory was refused to it, or to a thread that it would start.
_NO_MEMORY = ("std::bad_alloc", os.strerror(errno.EAGAIN))


def main() -> None:
    # The rules of nested schemas are written by recursive functions.
    sys.setrecursionlimit(50_000)
    serve(_open)


def _open(_: Send) -> Callable[[object], object]:
    vocabularies: OrderedDict[str, _Vocabulary] = OrderedDict()

    def answer(request: object) -> object:
        if isinstance(request, Setup):
            vocabularies[request.key] = _Vocabulary(request)
            while len(vocabularies) > MAX_VOCABULARIES:
                vocabularies.popitem(last=False)
            return READY
        assert isinstance(request, Job)
        vocabulary = vocabularies.get(request.vocabulary)
        if vocabulary is None:
            return UNKNOWN_VOCABULARY
        vocabularies.move_to_end(request.vocabulary)
        try:
            return _answer(vocabulary.compiler, vocabulary.shapes, request.source)
        finally:
            free_memory()

    return answer


class _Vocabulary:
    def __init__(self, setup: Setup) -> None:
        tokenizer = TokenizerInfo(setup.tokens, setup.eos_token_ids)
        self.compiler = GrammarCompiler(tokenizer, max_threads=min(os.cpu_count() or 1, 8))
        self.shapes = TokenShapes(setup.tokens, setup.eos_token_ids)


def _answer(compiler: GrammarCompiler, shapes: TokenShapes, source: GrammarSource) -> Compiled:
    """Raises RequestError for a grammar that is wrong, and MemoryError for one that needs more than this process may
    use.
    """
    try:
        compiled, rules = compile_source(compiler, source)
        form, form_rules, tried = compiled, rules, [compiled]
        if isinstance(source, CallsOrForm):
            # The trial's random answer may be a call, and so may the shortest one. Without room for the form, a model
            # would have to call.
            form, form_rules = compile_source(compiler, source.form)
            _check_apart(form, shapes, source)
            tried = [form, compiled]
        if not all(_is_fast(GrammarConstraint.of(each, shapes)) for each in tried):
            raise RequestError(
                "the grammar is too ambiguous: finding the allowed tokens takes too long; make it simpler"
            )
        first, timed = _first_completion(form, shapes, form_rules)
    except MemoryError:
        raise
    except RequestError as error:
        # The server names the parameter.
        raise RequestError(error.message) from error
    except RecursionError as error:
        raise MemoryError from error
    except Exception as error:
        # The exceptions of xgrammar have no common class.
        reason = _reason(error)
        if reason in _NO_MEMORY:
            raise MemoryError from error
        raise RequestError(f"the grammar is not one: {reason}") from error
    text = compiled.serialize_json()
    if len(text) > MAX_COMPILED_BYTES:
        raise RequestError("the grammar is too large once it is compiled; make it smaller, or use smaller counts")
    closes = timed and _closes(compiled, shapes, rules, first)
    return Compiled(text, rules.endings, rules.reserve, first, closes)


def _check_apart(form: CompiledGrammar, shapes: TokenShapes, source: CallsOrForm) -> None:
    """Raises RequestError if a text of the form may begin like a call, because the two could not be distinguished."""
    for begin in call_begins(source.calls):
        if GrammarConstraint.of(form, shapes).matcher.accept_text(begin):
            raise RequestError(
                f"an answer in this form may begin with {begin!r}, as this model's tool calls do; give a form that "
                "cannot, or no tools"
            )


def _first_completion(compiled: CompiledGrammar, shapes: TokenShapes, rules: Rules) -> tuple[Ending | None, bool]:
    """A completion of an answer that has not begun, and whether the search ended in time.

    Raises RequestError if the vocabulary can write none of the answers that are found.
    """
    matcher, shortener = GrammarConstraint.of(compiled, shapes).matcher, Shortener(shapes.tokens)
    try:
        with matcher.search(MAX_SEARCH_SECONDS):
            first = find_completion(matcher, 0, rules.endings)
        if first is None or shortener.needed(first) is not None:
            return first, True
        writable = _WritableMatcher(compiled, shapes, shortener)
        with writable.search(MAX_SEARCH_SECONDS):
            other = find_completion(writable, 0, rules.endings)
    except SearchTooLong:
        return None, False
    if other is None:
        unwritable = next((character for character in first.text if shortener.fewest(character) is None), first.text)
        raise RequestError(
            f"no answer was found that the grammar allows and this model's vocabulary can write: no token writes "
            f"{unwritable[:40]!r}; give another grammar"
        )
    return other, True


class _WritableMatcher(Matcher):
    """Accepts only texts whose bytes the vocabulary has."""

    def __init__(self, compiled: CompiledGrammar, shapes: TokenShapes, shortener: Shortener) -> None:
        super().__init__(GrammarMatcher(compiled), shapes)
        self._shortener = shortener

    def accept_text(self, text: str) -> bool:
        return self._shortener.fewest(text) is not None and super().accept_text(text)


def _closes(compiled: CompiledGrammar, shapes: TokenShapes, rules: Rules, first: Ending | None) -> bool:
    """Whether completions are found in time during an answer, as if few tokens remained all the time."""
    bound = Bound(TRIAL_TOKENS + MAX_COMPILED_BYTES, MAX_COMPILED_BYTES, rules.endings, first)
    trial = BoundedConstraint(GrammarConstraint.of(compiled, shapes), bound, Shortener(shapes.tokens))
    return _is_fast(trial) and not trial.gave_up


def _reason(error: Exception) -> str:
    """xgrammar's message without the time of its log and the location in its source."""
    lines = str(error).strip() or type(error).__name__
    return lines.split("] ", 1)[-1].split(": ", 1)[-1].removeprefix("Check failed: ")[:500]


def _is_fast(constraint: GrammarConstraint | BoundedConstraint) -> bool:
    """Whether masks are computed in time during an answer of tokens from a fixed seed.

    Raises RequestError if no token continues the answer.
    """
    shapes = constraint.matcher.shapes
    random = np.random.default_rng(0)
    slow, trial_started = 0, time.thread_time()
    for _ in range(TRIAL_TOKENS):
        started = time.thread_time()
        allowed = allowed_ids(constraint.mask(), len(shapes.tokens))
        token_id = int(random.choice(allowed))
        ends = token_id in shapes.eos_token_ids
        if not ends:
            constraint.accept(token_id)
        slow += time.thread_time() - started > MAX_MASK_SECONDS
        if slow > 1 or time.thread_time() - trial_started > MAX_TRIAL_SECONDS:
            return False
        if ends:
            return True
    return True
