"""The grammar compiler's own process. A grammar may take it minutes or gigabytes, or break it; then it is ended, and the server goes on.

Frames of pickles flow in through stdin: the vocabulary once, then sources. To each, one flows out through stdout.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from nearfar.compiler.errors import RequestError

from .bounded import Bound, BoundedConstraint
from .completion import Completion, find_completion
from .constraint import GrammarConstraint
from .frames import READY, Compiled, Refused, Setup, read_frame, write_frame
from .matcher import SearchTooLong, allowed_ids
from .rules import Rules, compile_source
from .shortener import Shortener
from .source import GrammarSource
from .token_shapes import TokenShapes

# More of a grammar than that is refused: it would have to be kept.
MAX_COMPILED_BYTES = 128 * 2**20
# Longer than the server waits.
MAX_SECONDS = 120
MAX_MEMORY_BYTES = 4 * 2**30
# What one token's mask may take of the processor's time, and how many are tried.
MAX_MASK_SECONDS = 0.1
TRIAL_TOKENS = 48
# For the shortest answer.
MAX_SEARCH_SECONDS = 5.0


def main() -> None:
    # What libraries print must not get between the frames.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Rules of nested schemas are written by functions that call themselves.
    sys.setrecursionlimit(50_000)
    requests = sys.stdin.buffer
    # It ends with its input, so that a server that drains can still compile.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        compiler, shapes = _start(read_frame(requests))
        write_frame(replies, READY)
        while True:
            source = read_frame(requests)
            _end_after(MAX_SECONDS)
            write_frame(replies, _answer(compiler, shapes, source))
            _end_after(0)
    except (EOFError, BrokenPipeError):
        return


def _end_after(seconds: int) -> None:
    """Where the server itself is killed, nobody else ends a compilation that has no end."""
    if sys.platform != "win32":
        signal.alarm(seconds)


def _start(setup: Setup) -> tuple[Any, TokenShapes]:
    import xgrammar

    tokenizer = xgrammar.TokenizerInfo(
        setup.tokens, xgrammar.VocabType.RAW, vocab_size=len(setup.tokens), stop_token_ids=setup.eos_token_ids
    )
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    return xgrammar.GrammarCompiler(tokenizer, max_threads=min(os.cpu_count() or 1, 8), cache_enabled=False), TokenShapes(
        setup.tokens, setup.eos_token_ids
    )


def _answer(compiler: Any, shapes: TokenShapes, source: GrammarSource) -> Compiled | Refused:
    try:
        compiled, rules = compile_source(compiler, source)
        if not _is_fast(GrammarConstraint.of(compiled, shapes)):
            return Refused("the grammar is too ambiguous: what may come next takes too long to find; make it simpler")
    except RequestError as error:
        return Refused(error.message)
    except Exception as error:
        # What xgrammar raises has no class in common.
        return Refused(f"the grammar is not one: {_reason(error)}")
    text = compiled.serialize_json()
    if len(text) > MAX_COMPILED_BYTES:
        return Refused("the grammar is too large once it is compiled; make it smaller, or bound what repeats by less")
    first, closes = _first(compiled, shapes, rules)
    return Compiled(text, rules.endings, rules.reserve, first, closes)


def _first(compiled: Any, shapes: TokenShapes, rules: Rules) -> tuple[Completion | None, bool]:
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
    """Whether masks are found in time along an answer of tokens picked by a fixed rule. Raises RequestError where no token goes on."""
    shapes = constraint.matcher.shapes
    random = np.random.default_rng(0)
    slow = 0
    for _ in range(TRIAL_TOKENS):
        started = time.thread_time()
        allowed = allowed_ids(constraint.mask(), len(shapes.tokens))
        token_id = int(random.choice(allowed))
        ends = token_id in shapes.eos_token_ids
        if not ends:
            constraint.accept(token_id)
        slow += time.thread_time() - started > MAX_MASK_SECONDS
        if slow > 1:
            return False
        if ends:
            return True
    return True


if __name__ == "__main__":
    main()
