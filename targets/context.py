"""The context of a step's kernels, in the form that templates accept: the same facts for every target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from nearfar.compiler.ir.expr import Expr
from nearfar.compiler.ir.heads import Heads
from nearfar.compiler.ir.ops import OPS, Bound, Use
from nearfar.compiler.ir.plan import Plan, Step
from nearfar.compiler.kernels.projection import Experts, Projection
from nearfar.compiler.quant import Quantization, form_of
from nearfar.compiler.quant.kernel_format import WeightFormat, weight_format
from nearfar.compiler.runtime.variant import stored_dtype


@dataclass(frozen=True, slots=True)
class Context:
    """The information beyond the step itself on which the kernels of a plan's steps depend."""

    plan: Plan
    quantization: Quantization
    activations: tuple[str, ...]

    def weight_format(self, name: str) -> WeightFormat:
        """The format of a matrix of the plan."""
        return weight_format(form_of(self.plan.weights[name].form, self.quantization))

    def dtype_of(self, name: str, activation: str) -> str:
        """The dtype of a buffer, an input or a state of the plan; float32 for weights and constants that kernels read
        as numbers.
        """
        plan = self.plan
        found = next(
            (table[name].dtype for table in (plan.buffers, plan.inputs, plan.states) if name in table), "float32"
        )
        return stored_dtype(activation) if found == "activation" else found

    def dtypes(self, step: Step, activation: str) -> dict[str, str]:
        """The dtypes of x and y, of what a gate multiplies and of kept rows, in the form that templates accept."""
        read = {"x": "x_dtype", "up": "up_dtype", "kept": "kept_dtype"}
        own = {name: self.dtype_of(step.inputs[role], activation) for role, name in read.items() if role in step.inputs}
        y = step.outputs.get("y")
        return own if y is None else {**own, "y_dtype": self.dtype_of(y, activation)}

    def facts(self, step: Step, template: Callable[..., Any], activation: str) -> dict[str, Any]:
        """The facts of a step that a template names, as the step's op declares them."""
        op, names = OPS[step.op], signature(template).parameters
        shapes = {role: self.plan.shape_of(name) for role, name in step.inputs.items()}
        facts = op.facts(Use(op, shapes, {}, op.complete(step.attrs)), Bound(names, step.inputs, step.outputs))
        known = {**facts, **(self.dtypes(step, activation) if step.inputs.keys() & {"x", "up"} else {})}
        return {name: value for name, value in known.items() if name in names}

    def rows_and_columns(self, name: str) -> tuple[Expr, int]:
        """The shape of an array whose number of columns the model determines."""
        rows, columns = self.plan.shape_of(name)
        assert isinstance(columns, int), (name, columns)
        return rows, columns

    def projection(self, step: Step, activation: str) -> Projection:
        """That of a linear or expert_linear, or of a ragged_attention, whose input is the attention's result."""
        own: dict[str, Any] = {"x_dtype": stored_dtype(activation), **self.facts(step, Projection, activation)}
        own |= {"y_dtype": self.dtype_of(step.outputs["y"], activation)}
        # A projection stores at most one gate whose dtype is not float32: that of an attention's result.
        up_dtypes = {self.dtype_of(name, activation) for role, name in step.inputs.items() if role.endswith("_up")}
        assert len(up_dtypes) <= 1, step.inputs
        own |= {"up_dtype": up_dtypes.pop()} if up_dtypes else {}
        own |= {"experts": Experts(**own["experts"])} if "experts" in own else {}
        return Projection(**own, weight=self.weight_format(step.inputs["weight"]))

    def heads_of(self, step: Step, activation: str, page_size: int | None = None) -> Heads:
        """The heads of a step that reads or writes pages, or with ``page_size`` of one without: the size of the pages
        that its kernel makes of its rows.
        """
        pages: dict[str, Any] = {} if page_size is None else {"page_size": page_size}
        return Heads(**self.facts(step, Heads, activation), **pages, activation=stored_dtype(activation))


def attr(step: Step, name: str) -> Any:
    """The value of a step's attribute, or its default if it is omitted."""
    return step.attrs.get(name, OPS[step.op].attrs[name].default)


def sizes(shape: tuple[object, ...]) -> tuple[int, ...]:
    """A shape that the model determines, as ints."""
    assert all(isinstance(size, int) for size in shape), shape
    return shape  # type: ignore[return-value]


def position_tables(step: Step, context: Context, template: Callable[..., Any]) -> dict[str, Any]:
    """The facts of embed_positions and mix_rows, whose tables have one format."""
    table = next(step.inputs[role] for role in ("table", "position_table", "type_table") if role in step.inputs)
    return {**context.facts(step, template, ""), "weight": context.weight_format(table)}
