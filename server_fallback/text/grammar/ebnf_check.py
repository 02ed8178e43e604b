"""Checks a client's EBNF before it is compiled.

It refuses left recursion, for which xgrammar uses unlimited memory, huge repetition, and escapes that are not Unicode
characters. A rule is left-recursive if it can begin with itself: `root ::= root "a" | "a"`, directly, through other
rules, or after items that may be empty. It can be rewritten without left recursion, mostly with repetition. Unknown
syntax is left to xgrammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nearfar.compiler.runtime.errors import RequestError

# The maximum number of characters of a grammar. A larger one takes seconds to compile.
MAX_EBNF_SIZE = 400_000
# The maximum product of the counts of nested repetitions.
MAX_REPETITIONS = 1_000_000
_TOKEN = re.compile(
    r"""\s+ | \#[^\n]* | (?P<define>::=) | (?P<literal>"(?:[^"\\\n]|\\.)*")
    | (?P<set>\[(?:[^\]\\\n]|\\.)*\]) | (?P<look>\(=)
    | (?P<name>[A-Za-z_][\w.-]*) | (?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\}) | (?P<mark>[()|]) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:u\{(?P<braced>[0-9A-Fa-f]+)\}|u(?P<four>[0-9A-Fa-f]{4})|U(?P<eight>[0-9A-Fa-f]{8})|.)", re.DOTALL
)
# Built-in functions of xgrammar's EBNF. Their arguments are texts and tokens that they begin with.
_FUNCTION = re.compile(r"TagDispatch|TokenTagDispatch|Token|ExcludeToken")


@dataclass(slots=True)
class _Rule:
    """Alternatives of sequences. Each item is a symbol, and whether it may be left out.

    A symbol is the name of a rule, or "" for characters. Groups are separate rules with numbers as names. ``most`` is
    the largest count of the rule's repetitions, multiplied through nested ones.
    """

    name: str | int
    ways: list[list[tuple[str | int, bool]]] = field(default_factory=lambda: [[]])
    most: int = 1


def check_ebnf(grammar: str) -> None:
    """Raises RequestError for a grammar that is too large, repeats too much, has a wrong escape, or is left-recursive.

    For left recursion, the message names the rules of the cycle.
    """
    if len(grammar) > MAX_EBNF_SIZE:
        raise RequestError(f"the grammar has {len(grammar):,} characters; at most {MAX_EBNF_SIZE:,} can be compiled")
    _check_characters(grammar)
    rules = _read(grammar)
    empty = _empty(rules)
    firsts = {name: [symbol for way in rule.ways for symbol in _first(way, empty)] for name, rule in rules.items()}
    cycle = _cycle({name: [symbol for symbol in symbols if symbol in rules] for name, symbols in firsts.items()})
    if cycle:
        names = [name for name in cycle if isinstance(name, str)]
        raise RequestError(
            f"the grammar is left-recursive: {' -> '.join([*names, names[0]])}; write the repetition with * or + "
            "instead, "
            f"such as {names[0]} ::= item+"
        )


def _check_characters(grammar: str) -> None:
    """Raises RequestError for an escape that is not a Unicode character. xgrammar would write invalid UTF-8 for it."""
    for token in _TOKEN.finditer(grammar):
        if token.lastgroup not in ("literal", "set"):
            continue
        for escape in _ESCAPE.finditer(token.group()):
            digits = escape["braced"] or escape["four"] or escape["eight"]
            code = int(digits, 16) if digits else 0
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise RequestError(
                    f"the grammar has {escape.group()}, which is not a Unicode character; characters are U+0000 to "
                    "U+10FFFF "
                    "without the surrogates U+D800 to U+DFFF"
                )


def _read(grammar: str) -> dict[str | int, _Rule]:
    """The rules by name, groups before the rules that contain them. Raises RequestError for too much repetition."""
    rules: dict[str | int, _Rule] = {}
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(grammar) if match.lastgroup]
    # The rule at the bottom, then the groups that are open.
    open_rules: list[_Rule] = []
    last_most, groups, position = 1, 0, 0
    while position < len(tokens):
        kind, text = tokens[position]
        position += 1
        if kind == "name" and position < len(tokens) and tokens[position][0] == "define":
            open_rules = [rules.setdefault(text, _Rule(text))]
            open_rules[0].ways.append([])
            position += 1
            continue
        if not open_rules:
            continue
        rule, last_most = open_rules[-1], last_most if kind == "repeat" else 1
        way = rule.ways[-1]
        if kind == "literal":
            way.append(("", text == '""'))
        elif kind == "set":
            way.append(("", False))
        elif kind == "name" and _FUNCTION.fullmatch(text) and tokens[position : position + 1] == [("mark", "(")]:
            position = _end_of_group(tokens, position)
            way.append(("", False))
        elif kind == "name":
            way.append((text, False))
        elif kind == "look":
            # A lookahead writes nothing.
            position = _end_of_group(tokens, position - 1)
        elif kind == "repeat" and way:
            least, most = _counts(text)
            symbol, optional = way.pop()
            way.append((symbol, optional or least == 0))
            rule.most = max(rule.most, last_most * most)
            if rule.most > MAX_REPETITIONS:
                raise RequestError(
                    f"the grammar repeats up to {rule.most:,} times, counted through nested repetitions; the limit is "
                    f"{MAX_REPETITIONS:,}: use smaller counts, or * and + for any number"
                )
        elif text == "|":
            rule.ways.append([])
        elif text == "(":
            groups += 1
            open_rules.append(_Rule(groups))
        elif text == ")" and len(open_rules) > 1:
            group = open_rules.pop()
            rules[group.name] = group
            last_most = group.most
            open_rules[-1].most = max(open_rules[-1].most, group.most)
            open_rules[-1].ways[-1].append((group.name, False))
    for rule in rules.values():
        if isinstance(rule.name, str):
            # The one that was there before the first definition.
            rule.ways.pop(0)
    return rules


def _end_of_group(tokens: Sequence[tuple[str, str]], position: int) -> int:
    """The position after the parenthesis that closes the one at ``position``."""
    depth = 0
    for index in range(position, len(tokens)):
        depth += (tokens[index][1] in ("(", "(=")) - (tokens[index][1] == ")")
        if depth == 0:
            return index + 1
    return len(tokens)


def _counts(repeat: str) -> tuple[int, int]:
    """The least and the most counts. For an unlimited number the most is 1, because it takes no more states."""
    if repeat in "*?":
        return 0, 1
    if repeat == "+":
        return 1, 1
    least, comma, most = repeat.strip("{}").partition(",")
    return int(least), int(most) if most.strip() else 1 if comma and not int(least) else int(least)


def _empty(rules: Mapping[str | int, _Rule]) -> set[str | int]:
    """The rules that may be empty."""
    empty: set[str | int] = set()
    users: dict[str | int, list[str | int]] = {}
    for name, rule in rules.items():
        for symbol in {symbol for way in rule.ways for symbol, _ in way if symbol in rules}:
            users.setdefault(symbol, []).append(name)
    pending = list(rules)
    while pending:
        name = pending.pop()
        if name not in empty and any(
            all(optional or symbol in empty for symbol, optional in way) for way in rules[name].ways
        ):
            empty.add(name)
            pending.extend(users.get(name, ()))
    return empty


def _first(way: Sequence[tuple[str | int, bool]], empty: set[str | int]) -> Iterator[str | int]:
    """The symbols that a sequence can begin with."""
    for symbol, optional in way:
        yield symbol
        if not optional and symbol not in empty:
            return


def _cycle(edges: Mapping[str | int, Sequence[str | int]]) -> list[str | int]:
    """The nodes of some cycle in order, from the first one that was found; [] if there is none."""
    done: set[str | int] = set()
    for root in edges:
        path, waiting = ([], []) if root in done else ([root], [iter(edges[root])])
        on_path = set(path)
        while path:
            following = next(waiting[-1], None)
            if following is None:
                on_path.remove(path[-1])
                done.add(path.pop())
                waiting.pop()
            elif following in on_path:
                return path[path.index(following) :]
            elif following not in done:
                path.append(following)
                waiting.append(iter(edges[following]))
                on_path.add(following)
    return []
