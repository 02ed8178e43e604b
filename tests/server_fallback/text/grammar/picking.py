"""Random answers from a grammar's masks, in this process, with a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import random

import numpy as np

from nearfar.server_fallback.text.grammar.bounded import BoundedConstraint
from nearfar.server_fallback.text.grammar.constraint import GrammarConstraint
from nearfar.server_fallback.text.grammar.matcher import Matcher
from nearfar.server_fallback.text.grammar.rules import compile_source
from nearfar.server_fallback.text.grammar.source import GrammarSource
from nearfar.server_fallback.text.grammar.token_shapes import TokenShapes
from nearfar.server_fallback.text.grammar.xgrammar_binding import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
)

LONGER = ['": ', '", "', '{"', '"}', "true", "null", "12", "0.", ", ", "ab", "2024-", '"a"', "<tool_call>", "\n", "é"]
TOKENS = [bytes([byte]) for byte in range(256)] + [text.encode() for text in LONGER] + [b""]
END = len(TOKENS) - 1
SHAPES = TokenShapes(TOKENS, [END])


class Grammar:
    def __init__(self) -> None:
        self.compiler = GrammarCompiler(TokenizerInfo(TOKENS, [END]), max_threads=1)

    def compile(self, source: GrammarSource) -> CompiledGrammar:
        compiled, _ = compile_source(self.compiler, source)
        return compiled

    def constraint(self, source: GrammarSource) -> GrammarConstraint:
        return GrammarConstraint(self.matcher(self.compile(source)))

    def matcher(self, compiled: CompiledGrammar) -> Matcher:
        return Matcher(GrammarMatcher(compiled), SHAPES)

    def takes(self, compiled: CompiledGrammar, text: str) -> bool:
        """Whether the grammar accepts the complete text."""
        matcher = GrammarMatcher(compiled)
        return (not text or matcher.accept_string(text)) and matcher.accept_token(END)


def pick(constraint: GrammarConstraint | BoundedConstraint, seed: int, patience: int = 40) -> str | None:
    """An answer, or None if it has no end after three times ``patience`` tokens. After ``patience`` tokens, closing
    tokens are preferred.
    """
    rng, out = random.Random(seed), b""
    for count in range(3 * patience):
        allowed = np.flatnonzero(
            np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[: len(TOKENS)]
        ).tolist()
        late = count > patience
        if END in allowed and (late or len(allowed) == 1 or rng.random() < 0.3):
            return out.decode()
        allowed.remove(END) if END in allowed else None
        closing = [token for token in allowed if TOKENS[token] in (b'"', b"}", b"]", b'"}')]
        shown = [token for token in allowed if all(0x20 < byte < 0x7F for byte in TOKENS[token])]
        token = rng.choice(closing if late and closing else shown if shown and rng.random() < 0.8 else allowed)
        if any(byte >= 0x80 for byte in TOKENS[token]) and len(TOKENS[token]) == 1 and shown:
            # Single bytes of a character would lead to invalid UTF-8.
            token = rng.choice(shown)
        constraint.accept(token)
        out += TOKENS[token]
    return None
