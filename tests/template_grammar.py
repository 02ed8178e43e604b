"""Draws chat templates from a grammar of Jinja: every statement, filter, test and method, with values of all types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

TEXTS = (
    "''",
    "'a'",
    "'Ab cd'",
    "' x '",
    "'😀é'",
    '"it\'s"',
    "'\\n\\n  def f():\\n'",
    "'a,b,,c'",
    "'<b>&amp;'",
    "'3'",
    "'-4.5'",
    "'ß'",
    "'<think>a</think>b'",
    "'abcabc'",
    "'%s=%d'",
    "'{}-{0}'",
    "'{:>5}|{}'",
    "'HELLO world'",
    "'1_0'",
    "'\\t x'",
    "'ΌΣΟΣ ŉǆ'",
    "'١٢'",
    "'ﬁᾳ İ'",
)
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "10",
    "100000000000000000000",
    "0.0",
    "1.5",
    "2.5",
    "-0.5",
    "1e16",
    "1e-5",
    "1e300",
    "0.1",
)
NAMES = ("s", "n", "f", "xs", "ds", "d", "t", "u", "messages", "z")
VARIABLES: dict[str, Any] = {
    "s": "Hello, 😀 wörld\n  b ",
    "n": 5,
    "f": 2.25,
    "xs": ["b", "a", "B", "", "c😀"],
    "t": True,
    "z": None,
    "ds": [{"k": "x", "v": 2, "i": {"j": [1]}}, {"k": "Y", "v": 1, "i": {"j": []}}, {"k": "y", "v": 2.0}],
    "d": {"k": "v", "2": None, "items": [1, 2], "a<": {"b": [True, 1.0, "é\n"]}},
}
MESSAGES = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "<think>\nx\n</think>\n\n  y"}]
PLAIN_FILTERS = (
    "abs",
    "capitalize",
    "count",
    "first",
    "float",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "max",
    "min",
    "reverse",
    "round",
    "safe",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "wordcount",
    "e",
    "forceescape",
    "dictsort",
    "default",
    "indent",
    "center",
)
PLAIN_TESTS = (
    "boolean",
    "callable",
    "defined",
    "escaped",
    "even",
    "false",
    "float",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sequence",
    "string",
    "true",
    "undefined",
    "upper",
)
COMPARING_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "divisibleby", "equalto", "==", "sameas")
METHODS = (
    "capitalize()",
    "casefold()",
    "isalnum()",
    "isalpha()",
    "isascii()",
    "isdecimal()",
    "isdigit()",
    "islower()",
    "isnumeric()",
    "isprintable()",
    "isspace()",
    "istitle()",
    "isupper()",
    "lower()",
    "lstrip()",
    "rstrip()",
    "split()",
    "rsplit()",
    "splitlines()",
    "strip()",
    "swapcase()",
    "title()",
    "upper()",
    "expandtabs()",
    "splitlines(true)",
    "items()|list",
    "keys()|list",
    "values()|list",
    "copy()",
    "append(1)",
    "pop()",
    "update({})",
    "k",
    "i.j",
    "role",
)
METHODS_OF_ONE = (
    "count",
    "endswith",
    "find",
    "index",
    "join",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "rfind",
    "rindex",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "startswith",
    "strip",
    "center",
    "ljust",
    "rjust",
    "zfill",
    "get",
    "format",
)
METHODS_OF_TWO = ("replace", "split", "rsplit", "find", "count", "startswith", "center", "get", "index", "format")
LOOP = (
    "index",
    "index0",
    "revindex",
    "revindex0",
    "first",
    "last",
    "length",
    "depth",
    "previtem",
    "nextitem",
    "cycle('a', 'b')",
    "changed(x)",
)
FORMATS = ("%s", "%d", "%5.1f", "%x", "%r", "%-6s|", "%05d", "%+d", "%e", "%g", "%c", "%%", "%(k)s", "%i %s")
SPECS = (
    "{}",
    "{:>6}",
    "{:<6}|",
    "{:^7}",
    "{:05}",
    "{:.2f}",
    "{:,}",
    "{:x}",
    "{!r}",
    "{0[k]}",
    "{:+d}",
    "{:%}",
    "{:.3}",
    "{{}}",
)


def atom(draw: Draw) -> str:
    return str(draw(st.sampled_from((*NAMES, *NAMES, *TEXTS, *NUMBERS, "true", "false", "none"))))


def expression(draw: Draw, depth: int) -> str:
    """An expression; its operands have any type, so many of them raise errors."""
    if depth <= 0:
        return atom(draw)

    def inner() -> str:
        return expression(draw, depth - draw(st.integers(1, 2)))

    def pick(values: tuple[str, ...]) -> str:
        return str(draw(st.sampled_from(values)))

    match draw(st.integers(0, 31)):
        case 0 | 1:
            operator = pick(("+", "-", "*", "/", "//", "%", "+", "~", "~"))
            return f"({inner()} {operator} {inner()})"
        case 2:
            return f"({inner()} {pick(('==', '!=', '<', '<=', '>', '>=', 'in', 'not in'))} {inner()})"
        case 3:
            return f"({inner()} {pick(('and', 'or'))} {inner()})"
        case 4:
            return f"(not {inner()})" if draw(st.booleans()) else f"({pick(('-', '+'))}{inner()})"
        case 5:
            return f"({inner()} if {inner()} else {inner()})" if draw(st.booleans()) else f"({inner()} if {inner()})"
        case 6:
            return f"[{', '.join(inner() for _ in range(draw(st.integers(0, 3))))}]"
        case 7:
            return f"({inner()}, {inner()})"
        case 8:
            keys = draw(st.lists(st.sampled_from(("'k'", "'v'", "1", "'role'")), max_size=3))
            return "{" + ", ".join(f"{key}: {inner()}" for key in keys) + "}"
        case 9 | 10:
            return f"({inner()})[{pick(('0', '1', '-1', '5', repr('k'), repr('items'), 'n', 's'))}]"
        case 11 | 12:
            bounds = [pick(("", "", "1", "-2", "n", "0", "-1")) for _ in range(3)]
            return f"({inner()})[{':'.join(bounds if draw(st.booleans()) else bounds[:2])}]"
        case 13 | 14 | 15:
            return f"({inner()})|{pick(PLAIN_FILTERS)}"
        case 16 | 17:
            return f"({inner()})|{argument_filter(inner, pick)}"
        case 18:
            return f"(({inner()}) is {'not ' if draw(st.booleans()) else ''}{pick(PLAIN_TESTS)})"
        case 19:
            return f"(({inner()}) is {pick(COMPARING_TESTS)}({inner()}))"
        case 20 | 21 | 22:
            return f"({inner()}).{pick(METHODS)}"
        case 23 | 24:
            return f"({inner()}).{pick(METHODS_OF_ONE)}({inner()})"
        case 25:
            return f"({inner()}).{pick(METHODS_OF_TWO)}({inner()}, {inner()})"
        case 26:
            return f"range({', '.join(inner() for _ in range(draw(st.integers(1, 3))))})|list"
        case 27:
            return f"('{pick(FORMATS)}' % {inner()})"
        case 28:
            return f"'{pick(SPECS)}'.format({inner()})"
        case 31:
            large = pick(("9007199254740993", "(10 ** 400)", "(10 ** 4299)"))
            return f"({large} {pick(('+', '-', '/', '//', '%', '<', '=='))} {inner()})"
        case 29:
            return f"({atom(draw)} < {atom(draw)} < {inner()})"
    return f"({inner()} ** {pick(('0', '1', '2', '3', '-1', '0.5'))})"


def argument_filter(inner: Callable[[], str], pick: Callable[[tuple[str, ...]], str]) -> str:
    test = pick((*COMPARING_TESTS, "in"))
    key = pick(("k", "v", "i.j", "role", "missing", "i.j.0"))
    chosen = pick(PLAIN_FILTERS)
    return pick(
        (
            f"default({inner()})",
            f"default({inner()}, true)",
            f"join({inner()})",
            f"join(', ', attribute='{key}')",
            f"map(attribute='{key}')|list",
            f"map(attribute='{key}', default={inner()})|list",
            f"map('{chosen}')|list",
            f"selectattr('{key}')|list",
            f"rejectattr('{key}', '{test}', {inner()})|list",
            f"groupby('{key}')",
            f"selectattr('{key}', '{test}', {inner()})|list",
            f"select('{test}', {inner()})|list",
            "select|list",
            f"reject('{pick(PLAIN_TESTS)}')|list",
            f"sort(attribute='{key}')",
            "sort(reverse=true)",
            "sort(case_sensitive=true)",
            f"unique(attribute='{key}')|list",
            f"batch({inner()})|list",
            "batch(2, 'x')|list",
            # Python counts up to a large number of slices, and computes 10 to the power of a precision.
            f"slice({pick(('0', '1', '2', '-1', '2.5', 's'))})|list",
            "slice(2, 'x')|list",
            "dictsort(by='value')",
            "dictsort(reverse=true)",
            f"indent({inner()})",
            "indent(2, true, true)",
            "indent('> ', blank=true)",
            f"replace({inner()}, {inner()})",
            f"replace('a', 'b', {inner()})",
            f"round({pick(('0', '1', '2', '-1', '-3', '400', '2.5', 's'))})",
            "round(1, 'ceil')",
            "round(0, 'floor')",
            f"tojson(indent={inner()})",
            "tojson(ensure_ascii=true)",
            "tojson(sort_keys=true, separators=(',', ':'))",
            f"trim({inner()})",
            f"truncate({inner()})",
            "truncate(8, true)",
            "truncate(8, leeway=0)",
            f"int({inner()})",
            f"int(base={inner()})",
            f"float({inner()})",
            f"sum(attribute='{key}')",
            f"sum(start={inner()})",
            f"min(attribute='{key}')",
            "max(case_sensitive=true)",
            f"format({inner()})",
            f"center({inner()})",
            f"attr('{key}')",
            "list|first",
            "reverse|list",
            "items|list",
            "unique|list",
        )
    )


def statements(draw: Draw, depth: int, in_loop: bool = False) -> str:
    return "".join(statement(draw, depth, in_loop) for _ in range(draw(st.integers(1, 2))))


def statement(draw: Draw, depth: int, in_loop: bool) -> str:
    def value() -> str:
        return expression(draw, min(depth, 2))

    def body(loop: bool = in_loop) -> str:
        return statements(draw, depth - 1, loop)

    def pick(values: tuple[str, ...]) -> str:
        return str(draw(st.sampled_from(values)))

    if depth <= 0:
        return f"{{{{ {value()} }}}}"
    dash = draw(st.sampled_from(("", "", "-")))
    name = draw(st.sampled_from(("x", "y", "s", "n")))
    match draw(st.integers(0, 16)):
        case 0 | 1 | 2:
            return pick(("", " ", "\n", "text\n  ")) + f"{{{{{dash} {value()} {dash}}}}}"
        case 3:
            return f"{{%{dash} set {name} = {value()} %}}\n"
        case 4:
            pipe = draw(st.sampled_from(("", "", "|upper", "|trim", "|length")))
            return f"{{% set {name}{pipe} %}}{body()}{{% endset %}}"
        case 5 | 6:
            other = draw(st.sampled_from(("", f"{{% else %}}{body()}", f"{{% elif {value()} %}}{body()}{{% else %}}-")))
            return f"  {{%{dash} if {value()} %}}\n{body()}{other}{{% endif {dash}%}}\n"
        case 7 | 8:
            values = draw(st.sampled_from(("xs", "ds", "messages", "d", "'ab😀'", "range(3)", "u", value())))
            test = draw(st.sampled_from(("", "", f" if {value()}", " if x")))
            other = draw(st.sampled_from(("", f"{{% else %}}{body()}")))
            shown = draw(st.sampled_from(("", f"{{{{ loop.{draw(st.sampled_from(LOOP))} }}}}")))
            return f"{{% for x in {values}{test} %}}{shown}{body(True)}{other}{{% endfor {dash}%}}"
        case 9:
            pairs = draw(st.sampled_from(("d.items()", "d|items", "[(1, 2), 'ab']", "d|dictsort", value())))
            return f"{{% for x, y in {pairs} %}}{{{{ x }}}}:{{{{ y }}}}{body(True)}{{% endfor %}}"
        case 10:
            call = draw(st.sampled_from(("m(1)", "m(2, y=3)", "m()", "m(1, 2, 3)", f"m({value()})", "m(n, q=1)", "m")))
            inside = draw(st.sampled_from(("", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ caller }}")))
            used = f"{{% call {call} %}}{body(False)}{{% endcall %}}" if draw(st.booleans()) else f"{{{{ {call} }}}}"
            return f"{{% macro m(x, y={value()}) %}}{inside}{body(False)}{{% endmacro %}}{used}"
        case 11:
            used = draw(st.sampled_from(("upper", "trim", "length", "replace('a', s)", "indent(2)")))
            return f"{{% filter {used} %}}{body(False)}{{% endfilter %}}"
        case 12:
            return f"{{% with {name} = {value()}, y = {name} %}}{body()}{{{{ y }}}}{{% endwith %}}"
        case 13:
            made = f"{{% set ns = namespace({name}={value()}) %}}{{% set ns.x = {value()} %}}"
            return f"{made}{{{{ ns.x }}}}{{{{ ns.{name} }}}}"
        case 14:
            part = draw(st.sampled_from(("break", "continue"))) if in_loop else "set z = 1"
            return f"{{% if {value()} %}}{{% {part} %}}{{% endif %}}"
        case 15:
            inner = pick(("{{ raw }}", "{# a #}{% raw %}{% if %}{% endraw %}", "{# c #}\n"))
            return inner if inner.startswith("{#") else f"{{% raw %}}{inner}{{% endraw %}}"
    marked = f"{{% generation %}}{body(False)}{{% endgeneration %}}"
    walk = "{% for x in [[1, [2]], [], 3] recursive %}{{ loop.depth }}{{ loop(x) if x is iterable else x }}"
    return pick((walk + "{% else %}.{% endfor %}", marked))


@st.composite
def templates(draw: Draw) -> str:
    return statements(draw, draw(st.integers(1, 3)))
