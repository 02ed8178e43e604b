"""Builds small graphs by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from projection_parts import Parts

from nearfar.compiler.ir.graph import Graph, Parameter, Source, Value
from nearfar.compiler.ir.ops.op import DType

Build = Callable[[], Graph]


class Builder(Graph):
    """A graph whose inputs, states and parameters are declared as they are used; each returns its name."""

    def value(self, name: str, shape: tuple[Any, ...], dtype: DType = "float32") -> str:
        self.inputs[name] = Value(name, shape, dtype)
        return name

    def state(self, name: str, shape: tuple[Any, ...], dtype: DType) -> str:
        self.states[name] = Value(name, shape, dtype)
        return name

    def matrix(self, name: str, rows: int, columns: int) -> str:
        self.parameters[name] = Parameter(name, (Source(name, 0, rows),), columns)
        return name

    def vector(self, name: str, length: int) -> str:
        self.parameters[name] = Parameter(name, (Source(name, 0, length),), None)
        return name

    def declare(self, parts: Parts) -> dict[str, str]:
        """The inputs of what a projection loads and stores, by role: vectors have one dimension. A gate multiplies
        activations.
        """
        return {
            role: self.vector(role, shape[0])
            if isinstance(shape[0], int)
            else self.value(role, shape, "activation" if role.endswith("_up") else "float32")
            for role, shape in parts.shapes.items()
        }

    def ends(self, name: str) -> Graph:
        self.outputs["y"] = name
        return self
