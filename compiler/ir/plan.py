"""Plan: a graph's values assigned to buffers, and its nodes as an ordered list of steps. A plan does not depend on a
device.

Buffers are reused: a value's buffer is free again after its last reader, and a later value of the same shape and dtype
can use it. A step's inputs and outputs name buffers, weights, constants or states; the names are unique over all four.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .expr import Expr
from .graph import Constant, Gathered, Graph, Parameter
from .ops import DType

# The names of scratch buffers that start as zeros begin with it. Kernels that write one leave zeros behind.
ZEROED = "zeroed_"


@dataclass(frozen=True, slots=True)
class Buffer:
    name: str
    shape: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Step:
    op: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """``outputs`` maps the graph's outputs ("logits", "next_token_ids", ..) to the buffers that hold them after the
    last step. ``gathered`` are the inputs that the host gathers from tables among the weights.
    """

    inputs: Mapping[str, Buffer]
    states: Mapping[str, Buffer]
    constants: Mapping[str, Constant]
    weights: Mapping[str, Parameter]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: Mapping[str, str]
    gathered: Mapping[str, Gathered] = field(default_factory=dict)

    @property
    def host_weights(self) -> tuple[str, ...]:
        """The weights that stay on the host."""
        return tuple(name for each in self.gathered.values() for name in each.parts)

    def shape_of(self, name: str) -> tuple[Expr, ...]:
        tables: tuple[Mapping[str, Buffer | Constant | Parameter], ...] = (
            self.buffers, self.inputs, self.states, self.weights, self.constants,
        )  # fmt: skip
        return next(table[name].shape for table in tables if name in table)


def make_plan(graph: Graph, prefix: str = "buffer") -> Plan:
    """``prefix`` and a number name the buffers that values share."""
    last_use = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs.values()}
    last_use |= {name: len(graph.nodes) for name in graph.outputs.values()}
    buffers: dict[str, Buffer] = {}
    buffer_names: dict[str, str] = {}
    free: list[Buffer] = []
    steps = []
    for index, node in enumerate(graph.nodes):
        for name in node.outputs.values():
            value = graph.values[name]
            if "into" in node.inputs:
                buffer_names[name] = buffer_names[node.inputs["into"]]
                continue
            reused = next(
                (buffer for buffer in free if (buffer.shape, buffer.dtype) == (value.shape, value.dtype)), None
            )
            if reused is not None:
                free.remove(reused)
                buffer_names[name] = reused.name
            else:
                # An output of the graph keeps its name. Other buffers are numbered, because many values share them.
                own = name if name in graph.outputs.values() else f"{prefix}{len(buffers)}"
                buffers[own] = Buffer(own, value.shape, value.dtype)
                buffer_names[name] = own
        steps.append(
            Step(
                node.op,
                {role: buffer_names.get(name, name) for role, name in node.inputs.items()},
                {role: buffer_names[name] for role, name in node.outputs.items()},
                node.attrs,
            )
        )
        ended = {name for name in node.inputs.values() if name in graph.values and last_use[name] == index}
        # The next part reuses the storage of this part.
        free += [buffers[buffer_names[name]] for name in ended if name != node.inputs.get("into")]
    return Plan(
        inputs={name: Buffer(name, value.shape, value.dtype) for name, value in graph.inputs.items()},
        states={name: Buffer(name, value.shape, value.dtype) for name, value in graph.states.items()},
        constants=graph.constants,
        weights=graph.parameters,
        buffers=buffers,
        steps=tuple(steps),
        outputs={role: buffer_names[name] for role, name in graph.outputs.items()},
        gathered=graph.gathered,
    )


def join_plans(plans: Iterable[Plan]) -> Plan:
    """The steps of all plans, one plan after the other: all steps that a bundle's kernels must cover. A name means the
    same array in all plans.
    """
    given = tuple(plans)
    return Plan(
        inputs=union(plan.inputs for plan in given),
        states=union(plan.states for plan in given),
        constants=union(plan.constants for plan in given),
        weights=union(plan.weights for plan in given),
        buffers=union(plan.buffers for plan in given),
        steps=tuple(step for plan in given for step in plan.steps),
        outputs=union(plan.outputs for plan in given),
        gathered=union(plan.gathered for plan in given),
    )


Value = TypeVar("Value")


def union(tables: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """Merge tables. A name that occurs in several must have the same value in each."""
    merged: dict[str, Value] = {}
    for table in tables:
        for name, value in table.items():
            assert merged.setdefault(name, value) == value, f"'{name}' has two meanings"
    return merged
