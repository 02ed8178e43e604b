"""Writes regular languages as grammar rules: one rule for each state of a minimal deterministic automaton.

Such rules have only one way to read a text, which keeps masks cheap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nearfar.compiler.errors import RequestError

from .characters import ANY, LAST, Ranges, intersect, single, subtract, union
from .ebnf import RuleBook, alternatives, character_ways, literal

_MOST_STATES = 1500
_MOST_ENDINGS = 200
# An escaped character of a JSON string has at most six bytes.
_LONGEST_CHARACTER = 6
_DOT: Ranges = single(".")
_JSON_ESCAPED: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
# The part of an answer that a language's texts are: all of it, a JSON value, or a JSON string after its opening quote.
Context = Literal["answer", "value", "string"]
# A lookahead for what follows a JSON value or a name. Without it, xgrammar must try each token that ends a value
# against everything that may follow.
FOLLOWED = "(= [ \\n\\t]* [,}\\]:])"


@dataclass(frozen=True, slots=True)
class Set:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Series:
    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``most`` None is any number of times."""

    of: Language
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Multiple:
    """The decimals of at most ``places`` digits behind the point that are multiples of ``whole`` / 10^places.

    Zeros may lead, and nothing at all counts as 0: it belongs into an intersection with a language of numbers.
    """

    whole: int
    places: int


Language = Set | Series | Choice | Repeat | Multiple


@dataclass(frozen=True, slots=True)
class Intersection:
    """The texts that are in each of the languages."""

    parts: tuple[Language, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """``following``: the next state for each atom, -1 for none."""

    accepting: bool
    following: tuple[int, ...]


def text_language(text: str) -> Language:
    return Series(tuple(Set(single(character)) for character in text))


def language_rule(
    book: RuleBook,
    language: Language | Intersection,
    context: Context,
    where: str,
    least: int = 0,
    most: int | None = None,
) -> str | None:
    """Add the rules of the language's texts of ``least`` to ``most`` characters; the name of the first rule.

    The result is None if there are no such texts. The shortest ends of the texts are added to the book's endings. For
    context "string", the rule starts after the opening quote.

    Raises RequestError if the automaton is too large; ``where`` names it.
    """
    automaton = _Nfa(where)
    ends = [automaton.add(part) for part in (language.parts if isinstance(language, Intersection) else (language,))]
    atoms = automaton.atoms()
    states, *others = (_minimal(_useful(automaton.states(start, end, atoms))) for start, end in ends)
    for other in others:
        states = _intersection(states, other, where)
    states = _minimal(_useful(_of_length(states, least, most, where)))
    return _write_rules(book, states, atoms, context, where) if states else None


class _Nfa:
    """Thompson 1968."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._epsilon: list[list[int]] = []
        self._edges: list[list[tuple[Ranges, int]]] = []

    def add(self, language: Language) -> tuple[int, int]:
        """The start and the end of a part for the language."""
        start = self._state()
        match language:
            case Set(ranges):
                end = self._state()
                self._edges[start].append((ranges, end))
            case Series(parts):
                end = start
                for part in parts:
                    first, last = self.add(part)
                    self._epsilon[end].append(first)
                    end = last
            case Choice(parts):
                end = self._state()
                for part in parts:
                    first, last = self.add(part)
                    self._epsilon[start].append(first)
                    self._epsilon[last].append(end)
            case Repeat(of, least, most):
                end = self._repeat(start, of, least, most)
            case Multiple(whole, places):
                end = self._multiple(start, whole, places)
        return start, end

    def atoms(self) -> Ranges:
        """Ranges of characters that no set separates."""
        starts = {0, 0x80, 0xD800, 0xE000}
        for edges in self._edges:
            for ranges, _ in edges:
                for first, last in ranges:
                    starts |= {first, last + 1}
        ordered = sorted(start for start in starts if start <= LAST)
        pairs = zip(ordered, [*ordered[1:], LAST + 1], strict=True)
        return tuple((start, following - 1) for start, following in pairs if not 0xD800 <= start <= 0xDFFF)

    def states(self, start: int, end: int, atoms: Ranges) -> list[_State]:
        """The subset construction; state 0 is the start."""
        firsts = [first for first, _ in atoms]
        # The atoms of each set.
        accepted = {
            ranges: [index for index, first in enumerate(firsts) if any(low <= first <= high for low, high in ranges)]
            for ranges in {ranges for edges in self._edges for ranges, _ in edges}
        }
        initial = self._closure({start})
        ids = {initial: 0}
        members = [initial]
        states: list[_State] = []
        # The list grows during the iteration.
        for subset in members:
            targets: list[set[int]] = [set() for _ in atoms]
            for member in subset:
                for ranges, to in self._edges[member]:
                    for index in accepted[ranges]:
                        targets[index].add(to)
            following = []
            for target in targets:
                if not target:
                    following.append(-1)
                    continue
                closed = self._closure(target)
                if closed not in ids:
                    if len(members) >= _MOST_STATES:
                        raise _too_large(self._where)
                    ids[closed] = len(members)
                    members.append(closed)
                following.append(ids[closed])
            states.append(_State(end in subset, tuple(following)))
        return states

    def _repeat(self, start: int, of: Language, least: int, most: int | None) -> int:
        end, stops = start, []
        for index in range(max(least, 1) if most is None else most):
            if index >= least:
                stops.append(end)
            first, last = self.add(of)
            self._epsilon[end].append(first)
            if most is None and index == max(least, 1) - 1:
                self._epsilon[last].append(first)
            end = last
        final = self._state()
        for stop in (*stops, end):
            self._epsilon[stop].append(final)
        return final

    def _multiple(self, start: int, whole: int, places: int) -> int:
        """A state is the number of digits behind the point, and the remainder of all digits by ``whole``."""
        end = self._state()
        layers = [[self._state() for _ in range(whole)] for _ in range(places + 1)]
        self._epsilon[start].append(layers[0][0])
        self._edges[start].append((single("-"), layers[0][0]))
        for count, layer in enumerate(layers):
            for remainder, state in enumerate(layer):
                if remainder * 10 ** (places - count) % whole == 0:
                    self._epsilon[state].append(end)
                behind = state
                if count == 0 and places > 0:
                    behind = self._state()
                    self._edges[state].append((_DOT, behind))
                for digit in range(10):
                    to, edge = (10 * remainder + digit) % whole, single(str(digit))
                    if count == 0:
                        self._edges[state].append((edge, layer[to]))
                    if count < places:
                        self._edges[behind].append((edge, layers[count + 1][to]))
        return end

    def _closure(self, members: set[int]) -> frozenset[int]:
        closed, pending = set(members), list(members)
        while pending:
            for to in self._epsilon[pending.pop()]:
                if to not in closed:
                    closed.add(to)
                    pending.append(to)
        return frozenset(closed)

    def _state(self) -> int:
        if len(self._edges) > 4 * _MOST_STATES:
            raise _too_large(self._where)
        self._epsilon.append([])
        self._edges.append([])
        return len(self._edges) - 1


def _intersection(left: Sequence[_State], right: Sequence[_State], where: str) -> list[_State]:
    """The product construction: a state is a pair of states, one of each automaton."""
    if not left or not right:
        return []
    pairs = [(0, 0)]
    ids = {(0, 0): 0}
    states: list[_State] = []
    # The list grows during the iteration.
    for first, second in pairs:
        following = []
        for pair in zip(left[first].following, right[second].following, strict=True):
            if -1 in pair:
                following.append(-1)
                continue
            if pair not in ids:
                if len(pairs) >= _MOST_STATES:
                    raise _too_large(where)
                ids[pair] = len(pairs)
                pairs.append(pair)
            following.append(ids[pair])
        states.append(_State(left[first].accepting and right[second].accepting, tuple(following)))
    return states


def _of_length(states: Sequence[_State], least: int, most: int | None, where: str) -> list[_State]:
    """The texts of a length. State (q, n) is q after n characters, where n stops at ``least``, or at ``most`` + 1."""
    if not states or (least == 0 and most is None):
        return list(states)
    top = least if most is None else most + 1
    if len(states) * (top + 1) > _MOST_STATES:
        raise _too_large(where)
    return [
        _State(
            state.accepting and count >= least and (most is None or count <= most),
            tuple(-1 if to < 0 else min(count + 1, top) * len(states) + to for to in state.following),
        )
        for count in range(top + 1)
        for state in states
    ]


def _useful(states: Sequence[_State]) -> list[_State]:
    """The states that lead to the end of a text; none if the start does not."""
    distance = _distances(states)
    if not states or distance[0] is None:
        return []
    reached = {0: 0}
    pending = [0]
    for state in pending:
        for to in states[state].following:
            if to >= 0 and distance[to] is not None and to not in reached:
                reached[to] = len(reached)
                pending.append(to)
    return [
        _State(states[state].accepting, tuple(reached.get(to, -1) for to in states[state].following))
        for state in pending
    ]


def _distances(states: Sequence[_State]) -> list[int | None]:
    """The number of characters from each state to the end of a text; None if no text ends."""
    before: list[list[int]] = [[] for _ in states]
    for index, state in enumerate(states):
        for to in state.following:
            if to >= 0:
                before[to].append(index)
    pending = [index for index, state in enumerate(states) if state.accepting]
    distance: list[int | None] = [0 if state.accepting else None for state in states]
    for index in pending:
        for earlier in before[index]:
            if distance[earlier] is None:
                distance[earlier] = (distance[index] or 0) + 1
                pending.append(earlier)
    return distance


def _minimal(states: Sequence[_State]) -> list[_State]:
    """Moore's minimization, which starts with blocks of states at the same distance to an end.

    The start stays state 0.
    """
    if not states:
        return []
    block = [distance or 0 for distance in _distances(states)]
    count = len(set(block))
    while True:
        ids: dict[tuple[int, ...], int] = {}
        block = [
            ids.setdefault((block[index], *(-1 if to < 0 else block[to] for to in state.following)), len(ids))
            for index, state in enumerate(states)
        ]
        if len(ids) == count:
            break
        count = len(ids)
    first: dict[int, _State] = {}
    for index, state in enumerate(states):
        first.setdefault(block[index], state)
    return [
        _State(state.accepting, tuple(-1 if to < 0 else block[to] for to in state.following))
        for _, state in sorted(first.items())
    ]


def _write_rules(book: RuleBook, states: Sequence[_State], atoms: Ranges, context: Context, where: str) -> str:
    names = [book.reserve("state") for _ in states]
    end, after = (literal('"') if context == "string" else '""'), ("" if context == "answer" else f" {FOLLOWED}")
    for index, state in enumerate(states):
        sets: dict[int, list[tuple[int, int]]] = {}
        for to, atom in zip(state.following, atoms, strict=True):
            if to >= 0:
                sets.setdefault(to, []).append(atom)
        own = sets.pop(index, None)
        onward = [f"{alternatives(_written(union(ranges), context, where))} {names[to]}" for to, ranges in sets.items()]
        loop = "" if own is None else f"{alternatives(_written(union(own), context, where))}* "
        book.define(names[index], f"({loop}{alternatives([*([end] if state.accepting else []), *onward])}){after}")
    _add_endings(book, states, atoms, context)
    return names[0]


def _add_endings(book: RuleBook, states: Sequence[_State], atoms: Ranges, context: Context) -> None:
    """Add the shortest text from each of the first states to an end."""
    distance = [length or 0 for length in _distances(states)]
    book.longest_end = max(book.longest_end, _LONGEST_CHARACTER * max(distance))
    firsts = [chr(first) for first, _ in atoms]
    # Letters and digits read better than what comes first in ASCII.
    reads_well = [first.isascii() and first.isalnum() for first in firsts]
    for start in range(len(states)):
        if len(book.endings) >= _MOST_ENDINGS:
            return
        text, at = "", start
        while distance[at] > 0:
            following = states[at].following
            nearer = [index for index, to in enumerate(following) if to >= 0 and distance[to] == distance[at] - 1]
            best = next((index for index in nearer if reads_well[index]), nearer[0])
            text += json.dumps(firsts[best], ensure_ascii=False)[1:-1] if context == "string" else firsts[best]
            at = following[best]
        if text:
            book.endings[text] = None


def _written(ranges: Ranges, context: Context, where: str) -> list[str]:
    plain = character_ways(subtract(ranges, _JSON_ESCAPED) if context == "string" else intersect(ranges, ANY))
    if plain is None:
        raise RequestError(
            f"{where}: distinguishes too many non-ASCII characters; list at most 2000 of them, or allow all of them"
        )
    if context == "string":
        for first, last in intersect(ranges, _JSON_ESCAPED):
            plain += [literal(json.dumps(chr(code))[1:-1]) for code in range(first, last + 1)]
    return plain


def _too_large(where: str) -> RequestError:
    return RequestError(f"{where}: is too large for a grammar; use smaller counts and fewer alternatives")
