"""Translates a Go template of Ollama into a Jinja template with the same output, which every runtime of ours renders.

As Ollama does, it joins consecutive messages of a role, and renders a template without `.Messages` once for each round
of the conversation; in the last one, it ends at `.Response`. If the last message is the assistant's, the prompt is one
to continue it. Two things differ: tools and arguments keep the order of keys and all keywords that the client sent, and
control characters are not removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from ...nearest import did_you_mean
from . import fields as kinds
from . import prelude
from .fields import ANY, BOOLEAN, INTEGER, LENGTH, NULL, ROOT, TEXT, TYPES, element, in_words, member
from .lexer import Source, Text
from .tree import (
    Block,
    Branch,
    Call,
    Constant,
    Dot,
    Expression,
    Field,
    Jump,
    Pipeline,
    Statement,
    Variable,
    fields,
    statements,
)

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_REFUSED = ("call", "html", "js", "urlquery", "toTypeScriptType", "yesterdayDate")
_FORMAT = re.compile(r"%(?:[sdv%]|(?P<wrong>.?))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Value:
    """A Jinja expression, and its type (`fields.py`)."""

    code: str
    type: str


@dataclass(frozen=True, slots=True)
class Name:
    """A variable. ``boxed``: it is assigned to again, which Jinja allows for attributes of a namespace only."""

    code: str
    type: str
    boxed: bool

    @property
    def value(self) -> Value:
        return Value(f"{self.code}.value" if self.boxed else self.code, self.type)


def to_jinja(source: Source, block: Block, marks: Mapping[str, str]) -> str:
    """``marks`` are what stands for an image, a video or a sound in a prompt, by the type of a message's part.

    Raises RequestError with the place of what is not supported.
    """
    pipelines = filter(None, map(_pipeline, statements(block)))
    used = {name for pipeline in pipelines for name in fields(pipeline.value)}
    if not used & {"Messages", "Response"}:
        block = (*block, Pipeline(Field(Dot(0), "Response", 0), (), True, 0))
    parts = prelude.PARTS.replace("MARKS", f"({json.dumps(dict(marks), ensure_ascii=False)})")
    between, otherwise = "", ""
    if "Suffix" in used:
        between = f"{{%+ if suffix is defined and suffix +%}}{_written(source, block, 'between')}{{%+ else +%}}"
        otherwise = "{%+ endif +%}"
    if "Messages" in used:
        body = f"{prelude.MESSAGES}+%}}{_written(source, block, 'messages')}"
    else:
        a_round = (
            f"\n{{%- macro go_round(system, question, answer) +%}}{_written(source, block, 'round')}{{%+ endmacro -%}}"
        )
        last = _written(source, _up_to_answer(block)[0], "last")
        body = f"{a_round}{prelude.MESSAGES}-%}}{prelude.ROUNDS}+%}}{last}{{%+ endif +%}}"
    macros = parts + "".join(
        text
        for name, text in (("go_json", prelude.JSON), ("go_value", prelude.VALUE), ("go_types", prelude.TYPES))
        if name in between + body
    )
    # Jinja removes a line break at the end of a template.
    return f"{macros[1:]}{between}{body}{otherwise}{{{{ '' }}}}"


def _pipeline(statement: Statement) -> Pipeline | None:
    """That of an action; None for a text."""
    return (
        statement.pipeline if isinstance(statement, Branch) else statement if isinstance(statement, Pipeline) else None
    )


def _up_to_answer(block: Block) -> tuple[Block, bool]:
    """The block without what follows the first place that writes `.Response`, and whether there is one."""
    kept = list[Statement]()
    for each in block:
        found = False
        if isinstance(each, Pipeline):
            found = _answers(each.value)
        elif isinstance(each, Branch):
            body, found = _up_to_answer(each.body)
            other: Block = ()
            if not found:
                other, found = _up_to_answer(each.other)
            each = Branch(each.keyword, each.pipeline, body, other)
        kept.append(each)
        if found:
            return tuple(kept), True
    return tuple(kept), False


def _answers(node: Expression) -> bool:
    """Whether an expression reads `.Response`. Ollama does not look for `$.Response`."""
    if isinstance(node, Field):
        return (node.name == "Response" and isinstance(node.owner, Dot)) or _answers(node.owner)
    return isinstance(node, Call) and any(map(_answers, node.arguments))


def _written(source: Source, block: Block, purpose: str) -> str:
    assigned = {
        name
        for each in statements(block)
        if (pipeline := _pipeline(each)) is not None and not pipeline.declares
        for name in pipeline.names
    }
    return _Writer(source, purpose, assigned).block(block, {}, Value("", ROOT))


class _Writer:
    """Writes the statements of a template for one of the purposes of `ROOTS`."""

    def __init__(self, source: Source, purpose: str, assigned: set[str]) -> None:
        self._source, self._purpose, self._assigned = source, purpose, assigned
        self._count = 0

    def block(self, block: Block, scope: Mapping[str, Name], dot: Value) -> str:
        """``scope``: the variables; those that the block declares end with it."""
        names, written = dict(scope), list[str]()
        for each in block:
            if isinstance(each, Text):
                written.append(prelude.text(each.text))
            elif isinstance(each, Jump):
                written.append(f"{{%+ {each.keyword} +%}}")
            elif isinstance(each, Branch):
                written.append(self._branch(each, names, dot))
            elif each.names:
                written.append(self._set(each, names, self._value(each.value, names, dot)))
            else:
                written.append(self._output(each, names, dot))
        return "".join(written)

    def _output(self, pipeline: Pipeline, names: Mapping[str, Name], dot: Value) -> str:
        if isinstance(pipeline.value, Constant) and isinstance(pipeline.value.value, str):
            return prelude.text(pipeline.value.value)
        value = self._value(pipeline.value, names, dot)
        return f"{{{{ {self._printed(value, pipeline.at)} }}}}"

    def _set(self, pipeline: Pipeline, names: dict[str, Name], value: Value) -> str:
        """Sets the only variable of a pipeline."""
        [name] = pipeline.names
        self._require_value(value, pipeline.at)
        if pipeline.declares:
            return self._declare(name, value, names)
        found = self._find(name, pipeline.at, names)
        if found.type != value.type:
            names[name] = Name(found.code, ANY, True)
        return f"{{%+ set {found.code}.value = {value.code} +%}}"

    def _declare(self, name: str, value: Value, names: dict[str, Name]) -> str:
        made = Name(self._new(name), value.type, name in self._assigned)
        names[name] = made
        code = f"namespace(value={value.code})" if made.boxed else value.code
        return f"{{%+ set {made.code} = {code} +%}}"

    def _branch(self, branch: Branch, scope: Mapping[str, Name], dot: Value) -> str:
        if branch.keyword == "range":
            return self._range(branch, scope, dot)
        names, pipeline = dict(scope), branch.pipeline
        value = self._value(pipeline.value, names, dot)
        if value.type == LENGTH:
            value = Value(value.code, INTEGER)
        before = ""
        if pipeline.names:
            before = self._set(pipeline, names, value)
            value = names[pipeline.names[0]].value
        if branch.keyword == "with":
            self._require_value(value, pipeline.at)
            inner = Value(self._new("with"), value.type)
            before += f"{{%+ set {inner.code} = {value.code} +%}}"
            body = self.block(branch.body, names, inner)
        else:
            inner = value
            body = self.block(branch.body, names, dot)
        other = f"{{%+ else +%}}{self.block(branch.other, names, dot)}" if branch.other else ""
        return f"{before}{{%+ if {inner.code} +%}}{body}{other}{{%+ endif +%}}"

    def _range(self, branch: Branch, scope: Mapping[str, Name], dot: Value) -> str:
        names, pipeline = dict(scope), branch.pipeline
        value = self._value(pipeline.value, names, dot)
        inner = None if value.type == ROOT else element(value.type)
        if inner is None:
            self._source.refuse(pipeline.at, f"a range over {in_words(value.type)} is not supported; it needs a list")
        if pipeline.names and not pipeline.declares:
            self._source.refuse(pipeline.at, "a range that assigns with = is not supported; write :=")
        each, before = Value(self._new("each"), inner), ""
        has_keys = value.type.startswith("{")
        key = Value(self._new("key") if has_keys else "loop.index0", TEXT if has_keys else INTEGER)
        for name, given in zip(reversed(pipeline.names), (each, key), strict=False):
            before += self._declare(name, given, names)
        # An unused name of a key is nothing to Jinja.
        target, values = (f"{key.code}, {each.code}", f"{value.code}.items()") if has_keys else (each.code, value.code)
        body = self.block(branch.body, names, each)
        loop = f"{{%+ for {target} in {values} +%}}{before}{body}{{%+ endfor +%}}"
        if not branch.other:
            return loop
        # The else of a loop of Jinja is for loops that `break` left, too.
        other = self.block(branch.other, scope, dot)
        return f"{{%+ if {value.code} +%}}{loop}{{%+ else +%}}{other}{{%+ endif +%}}"

    # --- expressions ---

    def _value(self, node: Expression, names: Mapping[str, Name], dot: Value) -> Value:
        match node:
            case Constant(bool() as value):
                return Value("true" if value else "false", BOOLEAN)
            case Constant(None):
                return Value("none", NULL)
            case Constant(int() as value):
                return Value(f"({value})" if value < 0 else str(value), INTEGER)
            case Constant(str() as value):
                return Value(prelude.literal(value), TEXT)
            case Dot():
                return dot
            case Variable(""):
                return Value("", ROOT)
            case Variable(name, at):
                return self._find(name, at, names).value
            case Field():
                return self._field(node, self._value(node.owner, names, dot))
            case Call():
                return self._call(node, [self._value(each, names, dot) for each in node.arguments])
        raise AssertionError(f"no expression: {node}")

    def _field(self, node: Field, owner: Value) -> Value:
        roots = kinds.ROOTS[self._purpose]
        is_root = owner.type == ROOT
        found = roots.get(node.name) if is_root else member(owner.code, owner.type, node.name)
        if found is None:
            self._refuse_field(node, owner.type, list(roots if is_root else kinds.MEMBERS.get(owner.type, ())))
        return Value(*found)

    def _refuse_field(self, node: Field, owner: str, known: Sequence[str]) -> NoReturn:
        problem = f".{node.name} is not a field of {in_words(owner)}"
        advice = kinds.GONE.get(node.name) if owner in (ROOT, kinds.MESSAGE) else None
        listed = f"{did_you_mean(node.name, known)} (known: {', '.join(known)})" if known else ""
        self._source.refuse(node.at, f"{problem}; {advice}" if advice else f"{problem}{listed}")

    def _call(self, node: Call, given: Sequence[Value]) -> Value:
        name = node.function
        if name in _REFUSED or name not in FUNCTIONS:
            known = "" if name in _REFUSED else did_you_mean(name, list(FUNCTIONS))
            self._source.refuse(
                node.at, f"the function {name!r} is not supported{known} (known: {', '.join(sorted(FUNCTIONS))})"
            )
        least, most, call = FUNCTIONS[name]
        if not least <= len(given) <= (most or len(given)):
            wanted = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
            self._source.refuse(node.at, f"{name} has {len(given)} arguments; it needs {wanted}")
        if name not in ("eq", "ne", "not", *_COMPARISONS):
            for each, argument in zip(given, node.arguments, strict=True):
                self._require_value(each, argument.at)
        return call(self, node, given)

    def choose(self, node: Call, given: Sequence[Value]) -> Value:
        types = {each.type for each in given}
        return Value(
            f"({f' {node.function} '.join(each.code for each in given)})", given[0].type if len(types) == 1 else ANY
        )

    def negate(self, node: Call, given: Sequence[Value]) -> Value:
        if given[0].type != LENGTH:
            self._require_value(given[0], node.arguments[0].at)
        return Value(f"(not {given[0].code})", BOOLEAN)

    def equal(self, node: Call, given: Sequence[Value]) -> Value:
        self._compared(node, given)
        first, *others = (each.code for each in given)
        if node.function == "ne":
            return Value(f"({first} != {others[0]})", BOOLEAN)
        return Value(f"({' or '.join(f'{first} == {each}' for each in others)})", BOOLEAN)

    def compare(self, node: Call, given: Sequence[Value]) -> Value:
        self._compared(node, given)
        return Value(f"({given[0].code} {_COMPARISONS[node.function]} {given[1].code})", BOOLEAN)

    def _compared(self, node: Call, given: Sequence[Value]) -> None:
        """Go compares texts, numbers and truth values of one kind; the length of a text is compared with 0."""
        for each, argument in zip(given, node.arguments, strict=True):
            if each.type == LENGTH and any(other.code != "0" for other in given if other is not each):
                self._source.refuse(argument.at, "the length of a text, in bytes, can be compared with 0 only")
            if each.type not in (TEXT, INTEGER, BOOLEAN, ANY, NULL, LENGTH):
                self._source.refuse(argument.at, f"{node.function} does not compare {in_words(each.type)}")

    def length(self, node: Call, given: Sequence[Value]) -> Value:
        [value] = given
        if value.type != TEXT and element(value.type) is None:
            self._source.refuse(node.arguments[0].at, f"len of {in_words(value.type)} is not supported")
        return Value(f"({value.code} | length)", LENGTH if value.type == TEXT else INTEGER)

    def index(self, node: Call, given: Sequence[Value]) -> Value:
        value, *places = given
        for place, argument in zip(places, node.arguments[1:], strict=True):
            inner = element(value.type)
            if inner is None:
                self._source.refuse(argument.at, f"index of {in_words(value.type)} is not supported")
            if (place.type == TEXT) != value.type.startswith("{") or place.type not in (TEXT, INTEGER):
                self._source.refuse(argument.at, f"{in_words(value.type)} has no place {in_words(place.type)}")
            value = Value(f"{value.code}[{place.code}]", inner)
        return value

    def slice(self, node: Call, given: Sequence[Value]) -> Value:
        value, *bounds = given
        if not value.type.startswith("[") or any(each.type != INTEGER for each in bounds):
            self._source.refuse(node.at, "slice needs a list and whole numbers")
        start, stop = [*(each.code for each in bounds), "", ""][:2]
        return Value(f"{value.code}[{start}:{stop}]", value.type)

    def json(self, node: Call, given: Sequence[Value]) -> Value:
        [value] = given
        if value.type in (kinds.MESSAGE, kinds.MESSAGES, TYPES):
            self._source.refuse(
                node.arguments[0].at, f"json of {in_words(value.type)} is not supported; write its fields"
            )
        return Value(f"go_json({value.code})", TEXT)

    def print(self, node: Call, given: Sequence[Value]) -> Value:
        """Go writes a blank between two values if neither is a text."""
        parts = list[str]()
        for index, (value, argument) in enumerate(zip(given, node.arguments, strict=True)):
            if index and (node.function == "println" or TEXT not in (value.type, given[index - 1].type)):
                parts.append("' '")
            parts.append(self._printed(value, argument.at))
        parts += ["'\\n'"] if node.function == "println" else []
        return Value(f"({' ~ '.join(parts)})" if parts else "''", TEXT)

    def format(self, node: Call, given: Sequence[Value]) -> Value:
        first, arguments = node.arguments[0], list(zip(given[1:], node.arguments[1:], strict=True))
        if not isinstance(first, Constant) or not isinstance(first.value, str):
            self._source.refuse(first.at, "printf needs a text in quotes first")
        parts, end = list[str](), 0
        for found in _FORMAT.finditer(first.value):
            parts.append(prelude.literal(first.value[end : found.start()]))
            end = found.end()
            if found[0] == "%%":
                parts.append("'%'")
                continue
            if found["wrong"] is not None:
                self._source.refuse(first.at, f"printf: {found[0]} is not supported (known: %s, %d, %v, %%)")
            if not arguments:
                self._source.refuse(first.at, f"printf: {found[0]} has no value")
            value, argument = arguments.pop(0)
            if value.type != {"%s": TEXT, "%d": INTEGER}.get(found[0], value.type):
                self._source.refuse(argument.at, f"printf: {found[0]} does not write {in_words(value.type)}")
            parts.append(self._printed(value, argument.at))
        if arguments:
            self._source.refuse(arguments[0][1].at, "printf: the format has no place for this value")
        return Value(f"({' ~ '.join([*parts, prelude.literal(first.value[end:])])})", TEXT)

    def date(self, node: Call, given: Sequence[Value]) -> Value:  # noqa: ARG002
        return Value("strftime_now('%Y-%m-%d')", TEXT)

    # --- helpers ---

    def _printed(self, value: Value, at: int) -> str:
        """A Jinja expression of the text that Go writes for a value."""
        if value.type in (TEXT, INTEGER):
            return value.code
        if value.type == BOOLEAN:
            return f"('true' if {value.code} else 'false')"
        if value.type in kinds.WRITTEN_AS_JSON:
            return f"go_json({value.code})"
        if value.type in (ANY, NULL):
            return f"go_value({value.code})"
        self._require_value(value, at)
        if value.type != TYPES:
            self._source.refuse(at, f"writing {in_words(value.type)} is not supported; write its fields, or json of it")
        return f"go_types({value.code})"

    def _require_value(self, value: Value, at: int) -> None:
        if value.type == LENGTH:
            self._source.refuse(at, "the length of a text, in bytes, can be compared with 0 only")
        if value.type == ROOT:
            self._source.refuse(
                at, "all values of the template at once are not supported; name a field, such as .Messages"
            )

    def _find(self, name: str, at: int, names: Mapping[str, Name]) -> Name:
        if name not in names:
            self._source.refuse(at, f"the variable ${name} is not declared{did_you_mean(name, list(names))}")
        return names[name]

    def _new(self, name: str) -> str:
        """A name of Jinja that no other variable has."""
        self._count += 1
        return (
            f"{re.sub('[^a-zA-Z0-9]', '', name)[:40] or 'value'}_{self._count}"
            if name[:1].isascii()
            else f"value_{self._count}"
        )


Function = Callable[[_Writer, Call, Sequence[Value]], Value]
# By name: the fewest and the most arguments, None for any number, and how it is written.
FUNCTIONS: Mapping[str, tuple[int, int | None, Function]] = MappingProxyType(
    {
        "and": (1, None, _Writer.choose),
        "or": (1, None, _Writer.choose),
        "not": (1, 1, _Writer.negate),
        "eq": (2, None, _Writer.equal),
        "ne": (2, 2, _Writer.equal),
        **dict.fromkeys(_COMPARISONS, (2, 2, _Writer.compare)),
        "len": (1, 1, _Writer.length),
        "index": (1, None, _Writer.index),
        "slice": (1, 3, _Writer.slice),
        "json": (1, 1, _Writer.json),
        "print": (0, None, _Writer.print),
        "println": (0, None, _Writer.print),
        "printf": (1, None, _Writer.format),
        "currentDate": (0, None, _Writer.date),
    }
)
