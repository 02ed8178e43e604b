"""Writes the syntax tree of a Jinja template as JSON, for evaluators that have no parser.

Jinja2 parses the template and decides what each name refers to; the tree states both. `web/src/shared/template/` reads
it. A statement is a list that starts with its kind, or a string, which is the template's own text. An expression is a
string, an integer, true, false or null, or a list that starts with its kind. A scope maps the names that it defines,
except parameters, to their first value: 0 for none, 1 for the render call's variable, 2 for the enclosing scope's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jinja2 import nodes
from jinja2.compiler import find_undeclared
from jinja2.idtracking import VAR_LOAD_ALIAS, VAR_LOAD_PARAMETER, VAR_LOAD_RESOLVE, Symbols

UNSET, GIVEN, OUTER = 0, 1, 2
BINARY = {
    nodes.Add: "+", nodes.Sub: "-", nodes.Mul: "*", nodes.Div: "/", nodes.FloorDiv: "//", nodes.Mod: "%",
    nodes.Pow: "**", nodes.And: "and", nodes.Or: "or",
}  # fmt: skip
UNARY = {nodes.Not: "not", nodes.Neg: "neg", nodes.Pos: "pos"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "in": "in", "notin": "not in"}
# Tags that Jinja2 names otherwise than a template does.
_TAGS = {"fromimport": "from", "scopedevalcontextmodifier": "autoescape"}
# JSON's numbers are exact in every language up to here.
_SAFE_INTEGER = 2**53 - 1

Tree = list[Any]


@dataclass(frozen=True, slots=True)
class TemplateTree:
    """``body``: the statements, with ``scope``. ``filters``, ``tests``, ``methods`` and ``functions``: the names that
    the template uses or calls, except those that it computes. ``unsupported``: tags and expressions that a tree cannot
    state.
    """

    scope: dict[str, int]
    body: Tree
    filters: frozenset[str]
    tests: frozenset[str]
    methods: frozenset[str]
    functions: frozenset[str]
    unsupported: tuple[str, ...]

    @property
    def data(self) -> Tree:
        """The tree as plain JSON."""
        return [self.scope, self.body]


def write_tree(template: nodes.Template) -> TemplateTree:
    """The tree of a template that Jinja2 compiles."""
    writer = _Writer()
    symbols = Symbols()
    symbols.analyze_node(template)
    body = writer.body(template.body, symbols)
    if "self" in find_undeclared(template.body, ("self",)):
        writer.unsupported.append("the variable 'self'")
    return TemplateTree(
        _scope(symbols), body, frozenset(writer.filters), frozenset(writer.tests), frozenset(writer.methods),
        frozenset(writer.functions), tuple(dict.fromkeys(writer.unsupported)),
    )  # fmt: skip


def _scope(symbols: Symbols) -> dict[str, int]:
    names = {symbol: name for name, symbol in symbols.refs.items()}
    kinds = {VAR_LOAD_RESOLVE: GIVEN, VAR_LOAD_ALIAS: OUTER}
    return {
        names[symbol]: kinds.get(kind, UNSET)
        for symbol, (kind, _) in symbols.loads.items()
        if kind != VAR_LOAD_PARAMETER
    }


@dataclass(slots=True)
class _Writer:
    filters: set[str] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    unsupported: list[str] = field(default_factory=list)

    # --- statements; ``symbols`` are those of the enclosing scope, as in jinja2.compiler.CodeGenerator ---

    def body(self, statements: Iterable[nodes.Node], symbols: Symbols) -> Tree:
        return [part for statement in statements for part in self.statement(statement, symbols)]

    def statement(self, node: nodes.Node, symbols: Symbols) -> Tree:
        match node:
            case nodes.Output():
                return [self.output(child) for child in node.nodes]
            case nodes.If():
                branches = [[self.expression(each.test), self.body(each.body, symbols)] for each in (node, *node.elif_)]
                return [["if", branches, self.body(node.else_, symbols)]]
            case nodes.For():
                return [self.loop(node, symbols)]
            case nodes.Assign():
                return [["set", self.target(node.target), self.expression(node.node)]]
            case nodes.AssignBlock():
                inner = _inner(symbols, node)
                body = self.body(node.body, inner)
                text = None if node.filter is None else self.expression(node.filter)
                return [["capture", self.target(node.target), _scope(inner), body, text]]
            case nodes.Macro():
                return [["macro", node.name, *self.macro(node, symbols)]]
            case nodes.CallBlock() if isinstance(node.call.node, nodes.ExtensionAttribute):
                inner = Symbols(symbols)
                inner.analyze_node(node)
                return [["scope", _scope(inner), self.body(node.body, inner)]]
            case nodes.CallBlock():
                return [["call", self.expression(node.call), *self.macro(node, symbols)]]
            case nodes.FilterBlock():
                inner = _inner(symbols, node)
                return [["filter", _scope(inner), self.body(node.body, inner), self.expression(node.filter)]]
            case nodes.With():
                inner = _inner(symbols, node)
                pairs = zip(node.targets, node.values, strict=True)
                values = [[self.target(target), self.expression(value)] for target, value in pairs]
                return [["with", _scope(inner), values, self.body(node.body, inner)]]
            case nodes.Scope():
                inner = _inner(symbols, node)
                return [["scope", _scope(inner), self.body(node.body, inner)]]
            case nodes.Break():
                return [["break"]]
            case nodes.Continue():
                return [["continue"]]
        name = type(node).__name__.lower()
        self.unsupported.append(f"the tag {_TAGS.get(name, name)!r}")
        return []

    def output(self, child: nodes.Expr) -> Any:
        """A text, or an expression that is written. Jinja2 too computes constant ones when it compiles."""
        if isinstance(child, nodes.TemplateData):
            return child.data
        finalize = (child.environment and child.environment.finalize) or str
        folded = _folded(child)
        return ["out", self.expression(child)] if folded is None else str(finalize(folded[0]))

    def loop(self, node: nodes.For, symbols: Symbols) -> Tree:
        inner, test = Symbols(symbols), Symbols(symbols)
        with_loop = node.recursive or "loop" in find_undeclared(node.iter_child_nodes(only=("body",)), ("loop",))
        if with_loop:
            inner.declare_parameter("loop")
        inner.analyze_node(node, for_branch="body")
        other: Any = None
        if node.else_:
            symbols_of_else = Symbols(symbols)
            symbols_of_else.analyze_node(node, for_branch="else")
            other = [_scope(symbols_of_else), self.body(node.else_, symbols_of_else)]
        chosen: Any = None
        if node.test is not None:
            test.analyze_node(node, for_branch="test")
            chosen = [_scope(test), self.expression(node.test)]
        kind = 2 if node.recursive else int(with_loop)
        target, values = self.target(node.target), self.expression(node.iter)
        return ["for", target, values, _scope(inner), self.body(node.body, inner), other, chosen, kind]

    def macro(self, node: nodes.Macro | nodes.CallBlock, symbols: Symbols) -> Tree:
        """Scope, names of parameters, defaults of the last of them, body, and the special variables that it reads."""
        inner = Symbols(symbols)
        inner.analyze_node(node)
        names = [argument.name for argument in node.args]
        special = find_undeclared(node.body, ("caller", "kwargs", "varargs"))
        read = [name for name in ("caller", "kwargs", "varargs") if name in special]
        for name in read:
            if name not in names:
                inner.declare_parameter(name)
        inner.analyze_node(node)
        defaults = [self.expression(value) for value in node.defaults]
        return [_scope(inner), names, defaults, self.body(node.body, inner), read]

    # --- expressions ---

    def target(self, node: nodes.Node) -> Any:
        match node:
            case nodes.Name():
                return node.name
            case nodes.NSRef():
                return ["namespace", node.name, node.attr]
            case nodes.Tuple():
                return ["tuple", *(self.target(item) for item in node.items)]
        raise AssertionError(f"Jinja2 assigns to no {type(node).__name__}")

    def expression(self, node: nodes.Node | None) -> Any:
        folded = _folded(node) if isinstance(node, nodes.Expr) else None
        if folded is not None and _is_plain(folded[0]):
            return self.constant(folded[0])
        match node:
            case None:
                return ["body"]
            case nodes.Const():
                return self.constant(node.value)
            case nodes.Name():
                return ["name", node.name]
            case nodes.TemplateData():
                return node.data
            case nodes.Tuple() | nodes.List():
                return [type(node).__name__.lower(), *(self.expression(item) for item in node.items)]
            case nodes.Dict():
                return ["dict", *(self.expression(each) for pair in node.items for each in (pair.key, pair.value))]
            case nodes.CondExpr():
                other = [] if node.expr2 is None else [self.expression(node.expr2)]
                return ["?", self.expression(node.test), self.expression(node.expr1), *other]
            case nodes.Concat():
                return ["~", *(self.expression(part) for part in node.nodes)]
            case nodes.Compare():
                parts = [(COMPARISONS[each.op], self.expression(each.expr)) for each in node.ops]
                return ["compare", self.expression(node.expr), *(each for part in parts for each in part)]
            case nodes.Getattr():
                return [".", self.expression(node.node), node.attr]
            case nodes.Getitem() if isinstance(node.arg, nodes.Slice):
                bounds = (node.arg.start, node.arg.stop, node.arg.step)
                return [":", self.expression(node.node), *(None if b is None else self.expression(b) for b in bounds)]
            case nodes.Getitem():
                return ["[", self.expression(node.node), self.expression(node.arg)]
            case nodes.Filter():
                return self.filtered(node)
            case nodes.Test():
                self.tests.add(node.name)
                return ["is", self.expression(node.node), node.name, *self.arguments(node)]
            case nodes.Call():
                if isinstance(node.node, nodes.Getattr):
                    self.methods.add(node.node.attr)
                if isinstance(node.node, nodes.Name):
                    self.functions.add(node.node.name)
                return ["()", self.expression(node.node), *self.arguments(node)]
            case nodes.UnaryExpr():
                return [UNARY[type(node)], self.expression(node.node)]
            case nodes.BinExpr():
                return [BINARY[type(node)], self.expression(node.left), self.expression(node.right)]
        self.unsupported.append(f"the expression {type(node).__name__.lower()!r}")
        return None

    def constant(self, value: Any) -> Any:
        match value:
            case float():
                if not math.isfinite(value):
                    # Jinja2 compiles it to a name, inf or nan, that does not exist.
                    self.unsupported.append("a constant that is not a finite number")
                return ["float", repr(value)]
            case list() | tuple():
                return [type(value).__name__, *map(self.constant, value)]
            case dict():
                return ["dict", *(self.constant(each) for pair in value.items() for each in pair)]
            case int() if abs(value) > _SAFE_INTEGER:
                return ["int", str(value)]
        return value

    def filtered(self, node: nodes.Filter) -> Tree:
        self.filters.add(node.name)
        arguments = self.arguments(node)
        names = node.args[:1] if node.name == "map" else node.args[node.name.endswith("attr") :][:1]
        if node.name in ("map", "select", "reject", "selectattr", "rejectattr") and names:
            used = self.filters if node.name == "map" else self.tests
            used.update(each.value for each in names if isinstance(each, nodes.Const) and isinstance(each.value, str))
        return ["|", self.expression(node.node), node.name, *arguments]

    def arguments(self, node: nodes.Call | nodes.Filter | nodes.Test) -> Tree:
        """The positional ones, the named ones, and the expressions of `*args` and `**kwargs`; the last are left out."""
        parts: Tree = [
            [self.expression(each) for each in node.args],
            [[each.key, self.expression(each.value)] for each in node.kwargs],
            None if node.dyn_args is None else [self.expression(node.dyn_args)],
            None if node.dyn_kwargs is None else [self.expression(node.dyn_kwargs)],
        ]
        while parts and not parts[-1]:
            parts.pop()
        return parts


def _inner(symbols: Symbols, node: nodes.Node) -> Symbols:
    inner = Symbols(symbols)
    inner.analyze_node(node)
    return inner


def _folded(node: nodes.Expr) -> tuple[Any] | None:
    """The value of a constant expression, which Jinja2 too computes when it compiles: rendering refuses some of them,
    such as a slice of a number. None for other expressions, and for errors, which rendering raises.
    """
    try:
        value = node.as_const()
        # An address, such as a generator's, differs each time.
        return None if " at 0x" in repr(value) else (value,)
    except Exception:  # A filter can raise any error.
        return None


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(_is_plain(each) for pair in value.items() for each in pair)
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
