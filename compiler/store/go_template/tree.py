"""The syntax tree of a Go template, and the parser that makes it: https://pkg.go.dev/text/template#hdr-Actions.

Named templates (define, template, block) and methods are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from .lexer import Action, Source, Text, Token, cut

# A template's actions inside each other, a word's parentheses, its fields, and functions that pass on its value.
MAX_DEPTH = 60
_UNSUPPORTED = ("define", "template", "block")
_CONSTANTS = {"true": True, "false": False, "nil": None}


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int | bool | None
    at: int


@dataclass(frozen=True, slots=True)
class Dot:
    at: int


@dataclass(frozen=True, slots=True)
class Variable:
    """``name`` "" is the value that the template was given, `$`."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Field:
    owner: Expression
    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]
    at: int


Expression = Constant | Dot | Variable | Field | Call


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``names`` are the variables that it sets; ``declares``: with `:=`, as new ones."""

    value: Expression
    names: tuple[str, ...]
    declares: bool
    at: int


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`."""

    keyword: str
    pipeline: Pipeline
    body: Block
    other: Block


@dataclass(frozen=True, slots=True)
class Jump:
    """`break` or `continue`."""

    keyword: str


Statement = Text | Pipeline | Branch | Jump
Block = tuple[Statement, ...]


def parse(source: Source) -> Block:
    """Raises RequestError with the place of what is no Go template, or not supported."""
    return _Parser(source).template()


class _Parser:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._parts = cut(source)
        # The keywords of the actions that are open, and where each starts.
        self._open: list[tuple[str, int]] = []

    def template(self) -> Block:
        body, end = self._block()
        if end is not None:
            self._source.refuse(end.at, f"{end.keyword} without an if, with or range")
        return body

    def _block(self) -> tuple[Block, _Words | None]:
        """Statements up to an `else` or `end`, and that action; None at the end of the template."""
        statements = list[Statement]()
        for part in self._parts:
            if isinstance(part, Text):
                statements.append(part)
                continue
            words = _Words(self._source, part)
            if words.keyword in ("else", "end"):
                return tuple(statements), words
            statements.append(self._statement(words))
        if self._open:
            keyword, at = self._open[-1]
            self._source.refuse(at, f"the {keyword} is not closed; add {{{{ end }}}}")
        return tuple(statements), None

    def _statement(self, words: _Words) -> Statement:
        keyword = words.keyword
        if keyword in ("if", "with", "range"):
            words.skip()
            return self._branch(keyword, words)
        if keyword in ("break", "continue"):
            if not any(each == "range" for each, _ in self._open):
                self._source.refuse(words.at, f"{keyword} outside of a range")
            words.skip()
            words.finish()
            return Jump(keyword)
        if keyword in _UNSUPPORTED:
            self._source.refuse(words.at, f"{keyword} is not supported; write its content in place")
        pipeline = words.pipeline()
        words.finish()
        return pipeline

    def _branch(self, keyword: str, words: _Words) -> Branch:
        if len(self._open) >= MAX_DEPTH:
            self._source.refuse(words.at, f"more than {MAX_DEPTH} actions inside each other; simplify the template")
        self._open.append((keyword, words.at))
        pipeline = words.pipeline(most_names=2 if keyword == "range" else 1)
        words.finish()
        body, end = self._block()
        assert end is not None, "a block that does not end is refused"
        other: Block = ()
        if end.keyword == "else":
            end.skip()
            if end.keyword in ("if", "with"):
                # `{{ else if }}` is an if inside the else, whose end closes both.
                inner = end.keyword
                end.skip()
                other = (self._branch(inner, end),)
                self._open.pop()
                return Branch(keyword, pipeline, body, other)
            end.finish()
            other, end = self._block()
            assert end is not None
            if end.keyword == "else":
                self._source.refuse(end.at, "a second else")
        end.skip()
        end.finish()
        self._open.pop()
        return Branch(keyword, pipeline, body, other)


class _Words:
    """Reads the words of one action."""

    def __init__(self, source: Source, action: Action) -> None:
        self._source, self.at, self._depth = source, action.at, 0
        self._tokens: Sequence[Token] = action.tokens
        self._next = 0
        self._blank()

    @property
    def keyword(self) -> str:
        """The next word; "" if none is next."""
        token = self._token
        return str(token.value) if token.kind == "word" else ""

    def skip(self) -> None:
        """Step over the next word."""
        self._next += 1
        self._blank()

    def finish(self) -> None:
        if self._token.kind != "end":
            self._unexpected()

    def pipeline(self, most_names: int = 1) -> Pipeline:
        at, names, declares = self._token.at, self._names(), True
        if names:
            declares = self._take(":=")
            if not declares and not self._take("="):
                self._unexpected()
            if len(names) > most_names:
                self._source.refuse(at, "only a range sets two variables")
        return Pipeline(self._piped(), tuple(names), declares, at)

    def _names(self) -> list[str]:
        """The variables before a := or =. Other words are not read."""
        before, names = self._next, list[str]()
        while self._token.kind == "variable":
            names.append(str(self._token.value))
            self.skip()
            if not self._take(","):
                break
        if names and self._token.value in (":=", "=") and self._token.kind == "symbol":
            return names
        self._next = before
        return []

    def _piped(self) -> Expression:
        value, count = self._command(None), 0
        while self._take("|"):
            count += 1
            if count > MAX_DEPTH:
                self._source.refuse(self._token.at, f"more than {MAX_DEPTH} functions behind each other")
            value = self._command(value)
        return value

    def _command(self, piped: Expression | None) -> Expression:
        """A function with its arguments, or one value. ``piped`` is the last argument."""
        token = self._token
        if token.kind == "word" and token.value not in _CONSTANTS:
            self._next += 1
            arguments = list[Expression]()
            while self._blank() and self._starts_value():
                arguments.append(self._value())
            return Call(str(token.value), (*arguments, *([] if piped is None else [piped])), token.at)
        value = self._value()
        if piped is not None:
            self._source.refuse(token.at, "a value behind | is not supported; write the name of a function")
        self._blank()
        if self._starts_value():
            self._source.refuse(self._token.at, "only functions have arguments")
        return value

    def _value(self) -> Expression:
        token = self._token
        if not self._starts_value():
            self._unexpected()
        self._next += 1
        value: Expression
        if token.kind == "field":
            value = Field(Dot(token.at), str(token.value), token.at)
        elif token.kind == "variable":
            value = Variable(str(token.value), token.at)
        elif token.kind in ("text", "number"):
            value = Constant(token.value, token.at)
        elif token.value in _CONSTANTS and token.kind == "word":
            value = Constant(_CONSTANTS[str(token.value)], token.at)
        elif token.kind == "word":
            value = Call(str(token.value), (), token.at)
        elif token.value == ".":
            value = Dot(token.at)
        else:
            value = self._parenthesis(token)
        first = self._next
        while self._token.kind == "field":
            if self._next - first > MAX_DEPTH:
                self._source.refuse(self._token.at, f"more than {MAX_DEPTH} fields of each other")
            value = Field(value, str(self._token.value), self._token.at)
            self._next += 1
        return value

    def _parenthesis(self, token: Token) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._source.refuse(token.at, f"more than {MAX_DEPTH} parentheses inside each other")
        self._blank()
        value = self._piped()
        self._blank()
        if self._token.kind != "symbol" or self._token.value != ")":
            self._source.refuse(token.at, "the parenthesis is not closed")
        self._next += 1
        self._depth -= 1
        return value

    def _starts_value(self) -> bool:
        token = self._token
        return token.kind in ("field", "variable", "text", "number", "word") or (
            token.kind == "symbol" and token.value in (".", "(")
        )

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, symbol: str) -> bool:
        self._blank()
        if self._token.kind != "symbol" or self._token.value != symbol:
            return False
        self.skip()
        return True

    def _blank(self) -> bool:
        """Step over blanks. Returns true."""
        while self._token.kind == "space":
            self._next += 1
        return True

    def _unexpected(self) -> NoReturn:
        token = self._token
        what = "the action ends too early" if token.kind == "end" else f"{str(token.value)!r} is not expected here"
        self._source.refuse(token.at, what)


def statements(block: Block) -> Iterator[Statement]:
    """All statements of a block, those inside others too."""
    for each in block:
        yield each
        if isinstance(each, Branch):
            yield from statements(each.body)
            yield from statements(each.other)


def fields(expression: Expression) -> Iterator[str]:
    """The names of all fields that an expression reads."""
    if isinstance(expression, Field):
        yield from fields(expression.owner)
        yield expression.name
    elif isinstance(expression, Call):
        for each in expression.arguments:
            yield from fields(each)
