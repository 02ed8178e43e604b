"""Size and condition expressions: data that the compiler writes and every runtime evaluates.

An expression is an int, the name of a dim ("S"), or a list ``[operator, operand, operand]`` such as ``["ceildiv",
["mul", "S", 16], 64]``. A condition is ``[comparison, expression, expression]`` or ``["and", condition, condition]``;
``None`` (null) is always true.

Dims: S new tokens, B sequences, R sampled rows, T longest context, L listed pages (entries of all page lists), P pages
of the pool, LW and PW those of the second page group, N sequence slots, M slots of LoRA adapters, Z slots of
states. A is R if any row's
logits are adjusted, else 0. W is R if the batch requests the most likely tokens, else 0. DR is R if any row has a
temperature, else 0. G is S if the sequence of any new token has an adapter, else 0. F features of pictures; where they
are made, of V patches of I tiles, C of which are those of two frames of a video. The model's dims are H query heads,
K kv heads, D head dim, E hidden, F ffn, V vocab; they are plain ints by the time a plan exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from annotated_types import Interval
from typing_extensions import TypeAliasType

# Named aliases, because pydantic cannot check a recursive type that has no name.
Expr = TypeAliasType("Expr", "int | str | list[Expr]")
Condition = TypeAliasType("Condition", "list[Any] | None")

# The largest integer that JavaScript represents exactly: the limit of file sizes and offsets.
MAX_INTEGER = 2**53 - 1
# The limit of a kernel's 32-bit integers, for elements, tokens, heads and layers.
MAX_COUNT = 2**31 - 1
Natural = TypeAliasType("Natural", Annotated[int, Interval(ge=0, le=MAX_INTEGER)])
Count = TypeAliasType("Count", Annotated[int, Interval(ge=1, le=MAX_COUNT)])
# Finite, which a number such as 1e999 in JSON is not.
Positive = TypeAliasType("Positive", Annotated[float, Interval(gt=0, le=sys.float_info.max)])

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "==": lambda a, b: a == b,
}


def evaluate(expr: Expr, dims: Mapping[str, int]) -> int:
    """The value of a size expression. Raises ValueError for an unknown dim or operator."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, str):
        if expr not in dims:
            raise ValueError(f"dim {expr!r} has no value; known: {', '.join(sorted(dims))}")
        return dims[expr]
    operator, left, right = expr
    if not isinstance(operator, str) or operator not in OPERATORS:
        raise ValueError(f"operator {operator!r} is not known; known: {', '.join(OPERATORS)}")
    return OPERATORS[operator](evaluate(left, dims), evaluate(right, dims))


def holds(condition: Condition, dims: Mapping[str, int]) -> bool:
    """Whether a condition is true. Raises ValueError for an unknown dim, operator or comparison."""
    if condition is None:
        return True
    comparison, left, right = condition
    if comparison == "and":
        return holds(left, dims) and holds(right, dims)
    if not isinstance(comparison, str) or comparison not in COMPARISONS:
        raise ValueError(f"comparison {comparison!r} is not known; known: and, {', '.join(COMPARISONS)}")
    return COMPARISONS[comparison](evaluate(left, dims), evaluate(right, dims))
