"""Parts: small ops that another op computes as it loads its input ("load") or before it stores its result ("store").

A part is {"op": name, **attributes}. The op's first input is the value that is loaded or stored. Its other inputs are
inputs of the step: the input "b" of store[1] has the role "store1_b". With "keep", the result of load[1] is a further
result of the step, whose role is "load1". Kernels fold over the same lists (`kernels/fold.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from .op import Array, Attr, Attrs, Inputs, Kinds, Op, Shapes, Type, require

Part: TypeAlias = Mapping[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an op in one ``place``, each one of ``ops``."""

    place: str
    ops: Mapping[str, Op]

    @property
    def attr(self) -> Attr:
        return Attr([], f"a list of parts: {', '.join(self.ops)}", self._are_valid)

    def roles(self, attrs: Attrs) -> dict[str, Kinds]:
        """The inputs of the parts, by their roles in the step."""
        return {
            self.role(index, role): kinds
            for index, part in enumerate(attrs.get(self.place, ()))
            for role, kinds in operand_kinds(self.ops[part["op"]]).items()
        }

    def role(self, index: int, role: str) -> str:
        return f"{self.place}{index}_{role}"

    def infer(self, shapes: Shapes, attrs: Attrs, value: Type) -> Type:
        """The type of the last part's result. Raises ValueError if an input is missing or shapes disagree."""
        for _, part, op, operands in self._each(attrs, shapes):
            require(op.inputs.keys() <= {first_role(op), *operands}, part["op"], shapes)
            value = op.infer({first_role(op): value[0], **operands}, complete(op, part))
        return value

    def kept(self, attrs: Attrs, value: Type) -> dict[str, Type]:
        """The further results of the step, all of the type of the loaded value."""
        return {f"{self.place}{index}": value for index, part in enumerate(attrs[self.place]) if part.get("keep")}

    def fold(self, inputs: Inputs, attrs: Attrs, value: Array, start: int = 0) -> Array:
        """The last part's result. Column 0 of ``value`` belongs to column ``start`` of the parts' inputs. Results that
        are kept fill the arrays of their roles.
        """
        for index, part, op, operands in self._each(attrs, inputs):
            end = start + part.get("start", 0) + value.shape[1]
            own = {role: array[:, start:end] if array.ndim == 2 else array for role, array in operands.items()}
            result = op.compute({first_role(op): value, **own}, complete(op, part))
            assert result is not None
            value = result
            if part.get("keep"):
                inputs[f"{self.place}{index}"][...] = value
        return value

    def facts(self, shapes: Shapes, attrs: Attrs) -> list[Part]:
        """The parts with everything that kernels need; see `facts_of_part`."""
        return [
            {**facts_of_part(part["op"], op, complete(op, part), operands), "keep": part.get("keep", False)}
            for _, part, op, operands in self._each(attrs, shapes)
        ]

    def _each(self, attrs: Attrs, given: Mapping[str, Value]) -> Iterator[tuple[int, Part, Op, dict[str, Value]]]:
        """Each part with its index, its op, and its inputs by the roles of its op."""
        for index, part in enumerate(attrs[self.place]):
            op = self.ops[part["op"]]
            names = {role: self.role(index, role) for role in operand_kinds(op)}
            yield index, part, op, {role: given[name] for role, name in names.items() if name in given}

    def _are_valid(self, parts: Any) -> bool:
        return isinstance(parts, list) and all(isinstance(part, dict) and self._is_valid(part) for part in parts)

    def _is_valid(self, part: Part) -> bool:
        """Whether the part is in canonical form: it omits attributes that equal their defaults."""
        op = self.ops.get(part.get("op", ""))
        if op is None or part.get("keep", True) is not True:
            return False
        own = {name: value for name, value in part.items() if name not in ("op", "keep")}
        try:
            return not own.keys() & {"dtype", "store"} and op.canonical("", {**own, **dtype_of(op)}) == {
                **own,
                **dtype_of(op),
            }
        except ValueError:
            return False


def first_role(op: Op) -> str:
    return next(iter(op.inputs))


def operand_kinds(op: Op) -> dict[str, Kinds]:
    """The inputs of an op besides the first."""
    return {role: kinds for role, kinds in {**op.inputs, **op.optional}.items() if role != first_role(op)}


def dtype_of(op: Op) -> dict[str, str]:
    """All parts compute float32."""
    return {"dtype": "float32"} if "dtype" in op.attrs else {}


def complete(op: Op, part: Part) -> dict[str, Any]:
    """The attributes of a part's op, with defaults."""
    return op.complete({**{name: value for name, value in part.items() if name not in ("op", "keep")}, **dtype_of(op)})


def facts_of_part(name: str, op: Op, attrs: Attrs, operands: Shapes) -> dict[str, Any]:
    """An op as its kernels need it: its attributes, which optional inputs it has, and the columns of an input that may
    have more than the result.
    """
    own = {key: value for key, value in attrs.items() if key not in ("dtype", "store")}
    given = {role: role in operands for role in op.optional if not role.startswith("store")}
    return {"op": name, **own, **given, **({"columns": operands["up"][1]} if "up" in operands else {})}
