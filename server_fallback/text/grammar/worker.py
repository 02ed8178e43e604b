"""The inside of the grammar compiler's process. A grammar may take it minutes or gigabytes, or crash it; the server goes on."""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from nearfar.compiler.errors import RequestError

from ..worker_loop import serve
from .bounded import Bound, BoundedConstraint
from .completion import Completion, find_completion
from .constraint import GrammarConstraint
from .free_memory import free_memory
from .matcher import SearchTooLong, allowed_ids
from .messages import READY, UNKNOWN_VOCABULARY, Compiled, Job, Refused, Setup
from .rules import Rules, compile_source
from .shortener import Shortener
from .source import GrammarSource
from .token_shapes import TokenShapes
from .xgrammar_binding import CompiledGrammar, GrammarCompiler, TokenizerInfo

# One of 152,000 tokens takes 35 MB and a few tenths of a second to set up.
MAX_VOCABULARIES = 4
# A larger compiled grammar is refused: reading it takes the server ten times as much memory for a moment.
MAX_COMPILED_BYTES = 40 * 2**20
# Processor time for one token's mask, and for a whole trial of TRIAL_TOKENS.
MAX_MASK_SECONDS = 0.1
MAX_TRIAL_SECONDS = 1.5
TRIAL_TOKENS = 48
# For the shortest answer.
MAX_SEARCH_SECONDS = 2.0


def main() -> None:
    # The rules of nested schemas are written by recursive functions.
    sys.setrecursionlimit(50_000)
    serve(_open)


def _open() -> Callable[[object], object]:
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


def _answer(compiler: GrammarCompiler, shapes: TokenShapes, source: GrammarSource) -> Compiled | Refused:
    try:
        compiled, rules = compile_source(compiler, source)
        if not _is_fast(GrammarConstraint.of(compiled, shapes)):
            return Refused("the grammar is too ambiguous: what may come next takes too long to find; make it simpler")
    except RequestError as error:
        return Refused(error.message)
    except (MemoryError, RecursionError):
        return Refused("the grammar needs too much memory to compile; make it smaller")
    except Exception as error:
        # What xgrammar raises has no class in common.
        return Refused(f"the grammar is not one: {_reason(error)}")
    text = compiled.serialize_json()
    if len(text) > MAX_COMPILED_BYTES:
        return Refused("the grammar is too large once it is compiled; make it smaller, or bound what repeats by less")
    first, closes = _first(compiled, shapes, rules)
    return Compiled(text, rules.endings, rules.reserve, first, closes)


def _first(compiled: CompiledGrammar, shapes: TokenShapes, rules: Rules) -> tuple[Completion | None, bool]:
    """What completes an answer that has not begun, and whether completions are found in time along an answer."""
    matcher = GrammarConstraint.of(compiled, shapes).matcher
    try:
        with matcher.search(MAX_SEARCH_SECONDS):
            first = find_completion(matcher, 0, rules.endings)
    except SearchTooLong:
        return None, False
    # As if few tokens were left all the time.
    bound = Bound(TRIAL_TOKENS + MAX_COMPILED_BYTES, MAX_COMPILED_BYTES, rules.endings, first)
    trial = BoundedConstraint(GrammarConstraint.of(compiled, shapes), bound, Shortener(shapes.tokens))
    return first, _is_fast(trial) and not trial.gave_up


def _reason(error: Exception) -> str:
    """xgrammar's message without the place in its source, in front of which its log's time stands."""
    lines = str(error).strip() or type(error).__name__
    return lines.split("] ", 1)[-1].split(": ", 1)[-1].removeprefix("Check failed: ")[:500]


def _is_fast(constraint: GrammarConstraint | BoundedConstraint) -> bool:
    """Whether masks are found in time along an answer of tokens picked by a fixed rule. Raises RequestError if no token continues it."""
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
