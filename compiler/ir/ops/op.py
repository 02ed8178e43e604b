"""Op: what an op declares about itself, so that a graph can reject undeclared inputs and attributes.

An op names its input roles with the kinds of value that each accepts, its attributes with their defaults, the rule for
the shapes and dtypes of its results, and its meaning in numpy. A graph stores attributes in canonical form: an
attribute that equals its default is omitted. So if a pass finds an attribute that it does not name, it can leave the
node unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy.typing as npt

from ..expr import Expr
from ..images import ImageSpec
from ..kv_format import KV_NAMES, KvName
from ..spec import ModelSpec

# "activation" is float16, float32 or, on some targets, bfloat16 or int8: a bundle may offer several and the device
# decides. Values that must not overflow are always float32. "uint32" are words of packed integers.
DType = Literal["float32", "int32", "uint32", "activation"]
# The kinds of value that a role can accept: a value or state of a dtype, a parameter that is a matrix or a vector, or a
# table of rotations.
Kind = Literal["float32", "int32", "uint32", "activation", "matrix", "vector", "rope"]
Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = "tuple[Expr, ...]"
Shapes: TypeAlias = Mapping[str, Shape]
Attrs: TypeAlias = Mapping[str, Any]
Type: TypeAlias = "tuple[Shape, DType]"
Inputs: TypeAlias = Mapping[str, Array]
Kinds: TypeAlias = "tuple[Kind, ...]"

FLOAT32: Final[Kinds] = ("float32",)
FLOATS: Final[Kinds] = ("float32", "activation")
ACTIVATION: Final[Kinds] = ("activation",)
INTEGERS: Final[Kinds] = ("int32",)
MATRIX: Final[Kinds] = ("matrix",)
VECTOR: Final[Kinds] = ("vector",)
ROPE: Final[Kinds] = ("rope",)
# A table with a row for each position, or one for each row of a batch, which `rope_rows` makes.
ROTATION: Final[Kinds] = ("rope", "float32")
# Pages of keys and values, as computed or as integers.
PAGES: Final[Kinds] = ("activation", "uint32")

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute: its default or REQUIRED, a description of its valid values, and a test for them."""

    default: Any
    valid: str
    test: Callable[[Any], bool]


class Sizes(Protocol):
    """The sizes of a bundle that the arrays of a plan's steps depend on; see `bundle.check_steps.PlanSizes`."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def context(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    @property
    def kv(self) -> KvName: ...

    @property
    def images(self) -> ImageSpec | None: ...


@dataclass(frozen=True, slots=True)
class Use:
    """A step of a bundle: its op, the shapes and kinds of its inputs by role, and all its attributes."""

    op: Op
    shapes: Shapes
    kinds: Mapping[str, str]
    attrs: Attrs


@dataclass(frozen=True, slots=True)
class Bound:
    """A kernel of a step: the names of its facts, and the roles that it binds and that it writes."""

    facts: Collection[str]
    binds: Collection[str]
    writes: Collection[str]


@dataclass(frozen=True, slots=True)
class Op:
    """``infer`` gives the result's shape and dtype, ``compute`` its value; ``result`` is its role, None for an op that
    only writes a state.

    ``inputs`` and ``optional`` are the roles with their kinds. ``more`` gives the shapes and dtypes of further results
    by role: arrays that ``compute`` receives among its inputs, to fill. ``of_parts`` gives the roles that the inputs of
    its parts have (`parts.py`). A role "into" is an earlier part of the result, whose storage the op reuses.
    ``states`` are the roles that must be states; ``kv``, ``sampled`` and ``counts`` are changed in place.

    Kernels index arrays, and native code trusts their sizes. So a bundle's steps also pass ``checks``, which raise
    ValueError, and a kernel's facts must agree with ``facts`` wherever they have the same name. ``names`` are arrays of
    roles if those differ from the usual ones (`bundle/batch_arrays.py`). ``per_text``: rows may be those of pooled
    texts.
    """

    infer: Callable[[Shapes, Attrs], Type]
    compute: Callable[[Inputs, Attrs], Array | None]
    inputs: Mapping[str, Kinds]
    optional: Mapping[str, Kinds] = field(default_factory=dict)
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    result: str | None = "y"
    more: Callable[[Shapes, Attrs], Mapping[str, Type]] = lambda shapes, attrs: {}  # noqa: ARG005
    of_parts: Callable[[Attrs], Mapping[str, Kinds]] = lambda attrs: {}  # noqa: ARG005
    facts: Callable[[Use, Bound], Mapping[str, Any]] = lambda use, bound: facts_of_rows(use)  # noqa: ARG005
    checks: tuple[Callable[[Use, Sizes], None], ...] = ()
    states: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    per_text: bool = False

    def results(self, shapes: Shapes, attrs: Attrs) -> Mapping[str, Type]:
        """Shape and dtype of every result, by role. Raises ValueError if the inputs' shapes disagree."""
        attrs = self.complete(attrs)
        first = {} if self.result is None else {self.result: self.infer(shapes, attrs)}
        return {**first, **self.more(shapes, attrs)}

    def run(self, inputs: Inputs, attrs: Attrs) -> Array | None:
        """The result in numpy; None for an op that only writes states or further results."""
        return self.compute(inputs, self.complete(attrs))

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """All attributes, with defaults for those that are omitted."""
        defaults = {name: attr.default for name, attr in self.attrs.items() if attr.default is not REQUIRED}
        return {**defaults, **attrs}

    def canonical(self, name: str, attrs: Attrs) -> dict[str, Any]:
        """The attributes that differ from their defaults. Raises ValueError for one that is missing, not declared or
        not valid.
        """
        for key, value in attrs.items():
            if key not in self.attrs:
                declared = ", ".join(self.attrs) or "none"
                raise ValueError(f"{name}: attribute {key!r} is not declared; declared: {declared}")
            attr = self.attrs[key]
            if value != attr.default and not attr.test(value):
                raise ValueError(f"{name}: attribute {key!r} is {value!r}; it must be {attr.valid}")
        for key, attr in self.attrs.items():
            if attr.default is REQUIRED and key not in attrs:
                raise ValueError(f"{name}: attribute {key!r} is missing; it must be {attr.valid}")
        return {key: value for key, value in attrs.items() if value != self.attrs[key].default}

    def check_inputs(self, name: str, kinds: Mapping[str, Kind], attrs: Attrs) -> None:
        """Raises ValueError for a role that is missing or not declared, or a value of a kind that the role does not
        accept. ``attrs`` have passed `canonical`.
        """
        declared = {**self.inputs, **self.optional, **self.of_parts(attrs)}
        for role, kind in kinds.items():
            if role not in declared:
                raise ValueError(f"{name}: input {role!r} is not declared; declared: {', '.join(declared)}")
            if kind not in declared[role]:
                raise ValueError(
                    f"{name}: input {role!r} is of kind {kind}; it must be of kind {' or '.join(declared[role])}"
                )
        missing = [role for role in self.inputs if role not in kinds]
        if missing:
            raise ValueError(f"{name}: input {missing[0]!r} is missing")


def require(condition: bool, op: str, shapes: Shapes) -> None:
    if not condition:
        raise ValueError(f"{op}: shapes disagree: {dict(shapes)}")


def require_use(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def require_array(use: Use, role: str, shape: Shape, kind: str) -> None:
    """Require an input to be an array of this shape and kind."""
    found = (use.shapes[role], use.kinds[role])
    require_use(
        found == (shape, kind),
        f"input {role} is {list(found[0])} of {found[1]}; it must be {list(shape)} of {kind}",
    )


def facts_of_rows(use: Use) -> dict[str, Any]:
    """The facts of a kernel for rows: those of the first input, its columns, and the op's attributes."""
    rows, columns = use.shapes[next(iter(use.op.inputs))]
    attrs = {name: value for name, value in use.attrs.items() if name != "dtype"}
    return {**attrs, "batch": rows, "rows": rows, "columns": columns}


# --- attributes that several ops share ---


def choice(default: Any, *values: Any) -> Attr:
    """One of a few values."""
    return Attr(default, f"one of {', '.join(map(str, values))}", lambda value: value in values)


def count(default: Any = REQUIRED, *, least: int = 0) -> Attr:
    return Attr(default, f"an integer of {least} or more", lambda value: type(value) is int and value >= least)


def positive(default: Any = REQUIRED) -> Attr:
    return Attr(default, "a positive number", lambda value: isinstance(value, int | float) and 0 < value < math.inf)


ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh", "relu2", "relu", "tanh", "asinh", "sigmoid", "none")
DTYPE: Final = choice(REQUIRED, "float32", "activation")
EPS: Final = positive()
# Only for a step that has a norm.
NORM_EPS: Final = positive(None)
CENTERED: Final = choice(False, False, True)
# [b, n]: rotated queries at position p are multiplied by 1 + b ln(1 + floor(p / n)). Meta 2025 (Llama 4).
POSITION_SCALE: Final = Attr(
    None,
    "a positive number and a positive integer",
    lambda value: (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], int | float)
        and type(value[1]) is int
        and value[0] > 0 < value[1]
    ),
)
KV: Final = choice("activation", *KV_NAMES)
