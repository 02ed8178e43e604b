"""Random answers over the demo model's vocabulary near their last token: the allowed tokens, and the chosen one.
`python tests/server_fallback/text/grammar/bounded_masks.py` writes them to tests/conformance/bounded_masks.json, which
the tests of both languages compare with.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearfar.server_fallback.text.grammar.bounded import Bound, BoundedConstraint
from nearfar.server_fallback.text.grammar.completion import find_completion
from nearfar.server_fallback.text.grammar.constraint import GrammarConstraint
from nearfar.server_fallback.text.grammar.matcher import Mask, Matcher, allowed_ids
from nearfar.server_fallback.text.grammar.rules import compile_source
from nearfar.server_fallback.text.grammar.shortener import Shortener
from nearfar.server_fallback.text.grammar.source import (
    EbnfSource,
    GrammarSource,
    JsonSource,
    RegexSource,
    Tag,
    TagsSource,
)
from nearfar.server_fallback.text.grammar.token_shapes import TokenShapes
from nearfar.server_fallback.text.grammar.xgrammar_binding import GrammarCompiler, GrammarMatcher, TokenizerInfo
from nearfar.server_fallback.text.vocabulary import read_vocabulary

ROOT = Path(__file__).parents[4]
CASES = ROOT / "tests/conformance/bounded_masks.json"
# The size of the demo model's vocabulary, with padding at the end, as in many models.
VOCAB_SIZE, EOS = 1030, 3
OTHERS: list[dict[str, Any]] = [
    {"kind": "regex", "pattern": "(yes|no), because [a-z ]{5,}\\."},
    {"kind": "regex", "pattern": "[\\s\\S]*END"},
    {"kind": "regex", "pattern": "(\u00e9|\u4e2d\u6587|ab)+"},
    {"kind": "ebnf", "grammar": 'root ::= "move " [a-h] [1-8] (" to " [a-h] [1-8])? "\\n"'},
    {"kind": "ebnf", "grammar": 'root ::= item+ "."\nitem ::= "(" item* ")"'},
    {
        "kind": "tags",
        "tags": [
            {"begin": f'<tool_call>\n{{"name": "{name}", "arguments": ', "schema": schema, "end": "}\n</tool_call>"}
            for name, schema in (
                (
                    "look",
                    {
                        "type": "object",
                        "properties": {"at": {"type": "string"}, "for": {"type": "integer"}},
                        "required": ["at"],
                    },
                ),
                ("wait", {"type": "object", "properties": {"seconds": {"type": "number", "minimum": 0}}}),
            )
        ],
        "separator": "\n",
    },
]


class Bounded:
    """The parts of the grammars that are compared between both languages."""

    def __init__(self) -> None:
        tokens = read_vocabulary(ROOT / "compiler/demo/nearfar-demo/tokenizer.json", VOCAB_SIZE, [EOS]).spoken()
        self.shapes = TokenShapes(tokens, [EOS])
        self.shortener = Shortener(tokens)
        self.compiler = GrammarCompiler(TokenizerInfo(tokens, [EOS]), max_threads=1)

    def constraint(self, source: GrammarSource, more: int) -> tuple[BoundedConstraint, int]:
        """The constraint with ``more`` tokens than the shortest known answer, and the length of that answer."""
        compiled, rules = compile_source(self.compiler, source)
        matcher = Matcher(GrammarMatcher(compiled), self.shapes)
        first = find_completion(matcher, 0, rules.endings)
        needed = None if first is None else self.shortener.needed(first)
        assert needed is not None
        bound = Bound(needed.count + more, rules.reserve, rules.endings, first)
        return BoundedConstraint(GrammarConstraint(matcher), bound, self.shortener), needed.count


def source_of(given: dict[str, Any]) -> GrammarSource:
    """Converts a source from the browser's form to the server's."""
    match given["kind"]:
        case "json_schema":
            return JsonSource(json.dumps(given["schema"]))
        case "regex":
            return RegexSource(given["pattern"])
        case "ebnf":
            return EbnfSource(given["grammar"])
        case _:
            tags = tuple(Tag(tag["begin"], json.dumps(tag["schema"]), tag["end"]) for tag in given["tags"])
            return TagsSource(tags, given["separator"])


def fingerprint(mask: Mask) -> int:
    """FNV-1a over the allowed ids."""
    value = 0x811C9DC5
    for token_id in allowed_ids(mask, VOCAB_SIZE).tolist():
        value = (value ^ token_id) * 0x01000193 & 0xFFFFFFFF
    return value


def drawn(bounded: Bounded, source: GrammarSource, more: int, seed: int) -> Iterator[tuple[int, int]]:
    """For each token of an answer: the fingerprint of the allowed tokens, and the chosen one (-1 for the last)."""
    constraint, needed = bounded.constraint(source, more)
    rng = random.Random(seed)
    for _ in range(needed + more):
        mask = constraint.mask()
        token_id = rng.choice(allowed_ids(mask, VOCAB_SIZE).tolist())
        yield fingerprint(mask), -1 if token_id == EOS else token_id
        if token_id == EOS:
            return
        constraint.accept(token_id)
        if constraint.finished:
            return


def main() -> None:
    bounded = Bounded()
    schemas = json.loads((ROOT / "tests/conformance/json_schemas.json").read_text())["schemas"]
    given = [{"kind": "json_schema", "schema": schema} for schema in schemas.values()] + OTHERS
    cases = []
    for seed, (source, more) in enumerate((source, more) for source in given for more in (2, 25)):
        _, needed = bounded.constraint(source_of(source), more)
        steps = [list(step) for step in drawn(bounded, source_of(source), more, seed)]
        cases.append({"source": source, "needed": needed, "max_tokens": needed + more, "steps": steps})
    about = (
        "Answers over the demo model's tokens, to be whole within max_tokens: of each step the FNV-1a hash of the ids "
        "that may come, "
        "and the one that comes, -1 for the end. needed is how many tokens the shortest answer found has."
    )
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    CASES.write_text(f'{{"about": {json.dumps(about)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
