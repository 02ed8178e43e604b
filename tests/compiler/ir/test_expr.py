"""Size and condition expressions."""

from __future__ import annotations

import pytest

from nearfar.compiler.ir.expr import evaluate, holds

DIMS = {"S": 33, "B": 3}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (7, 7), ("S", 33), (["add", "B", 1], 4), (["sub", "S", 1], 32), (["mul", "S", 16], 528), (["ceildiv", "S", 32],
        2),
        (["ceildiv", 32, 32], 1), (["min", "S", 8], 8), (["max", "S", 8], 33), (["ceildiv", ["mul", "S", "B"], 10], 10),
    ],
)  # fmt: skip
def test_an_expression_has_a_value(expr: object, value: int) -> None:
    assert evaluate(expr, DIMS) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (None, True), (["<=", "S", 33], True), (["<", "S", 33], False), ([">=", "S", 33], True), ([">", "S", 33],
        False),
        (["==", "B", 3], True),
        (["and", ["<=", "B", 4], ["<", "S", 4]], False), (["and", None, ["<=", "B", 4]], True),
    ],
)  # fmt: skip
def test_a_condition_holds_or_not(condition: list[object] | None, value: bool) -> None:
    assert holds(condition, DIMS) is value


@pytest.mark.parametrize("expr", ["Q", ["mod", 1, 2], [["add", 1, 1], 1, 1]])
def test_an_unknown_dim_or_operator_is_an_error_that_lists_the_known(expr: object) -> None:
    with pytest.raises(ValueError, match="known: "):
        evaluate(expr, DIMS)  # type: ignore[arg-type]


def test_an_unknown_comparison_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="'!=' is not known; known: and, <="):
        holds(["!=", 1, 2], DIMS)
