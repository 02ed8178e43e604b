"""Graph: one forward pass on a ragged batch, in SSA form with symbolic dims.

An architecture's ``forward`` builds it op by op; passes rewrite it; `plan.py` turns it into buffers and steps. Values
are named; a node reads named values through roles ("x", "weight") and defines new ones. States (KV pages, the tokens
sampled last) are the exception to SSA: an op that writes to one does so in place, so the order of nodes counts. `ops/`
defines what each op means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .expr import Expr
from .ops import OPS, DType, Kind
from .rope import rope_table
from .rotary_pairs import RotaryPairs


@dataclass(frozen=True, slots=True)
class Value:
    """An array that exists at run time."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Source:
    """Rows [start, stop) of a tensor in the checkpoint; each element x is read as offset + factor * x.

    With ``pairs``, rows are counted and read in the order of the rotate-half form.
    """

    tensor: str
    start: int
    stop: int
    offset: float = 0.0
    factor: float = 1.0
    pairs: RotaryPairs | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight: the rows of its sources, stacked. A matrix (rows, columns) is quantized; a vector (columns is None)
    stays float32.

    ``form`` names the format of a matrix that the checkpoint stores quantized and the bundle keeps, or that an
    architecture does not let a bundle round; None means the bundle's quantization. ``host``: a table of embeddings that
    is large and only looked up. A target whose runtimes can look up its rows leaves it on the host; see
    `passes/gather_on_host.py`.
    """

    name: str
    sources: tuple[Source, ...]
    columns: int | None
    form: str | None = None
    host: bool = False

    @property
    def rows(self) -> int:
        return sum(source.stop - source.start for source in self.sources)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.columns is None else (self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Gathered:
    """An input (S, columns) float32 that the host computes: op `embed` on the batch's token ids, with ``scale``.

    Its table stays on the host. ``parts`` are the parameters that hold its rows, in order. No node reads them.
    """

    parts: tuple[str, ...]
    scale: float


@dataclass(frozen=True, slots=True)
class Constant:
    """An array that every runtime computes for itself from a few numbers.

    kind "rope": (positions, R/2, 2) float32, ``scale`` times the cosine and sine of position * inverse_frequency, for
    the positions from ``first`` on, computed in float64. Attrs: inverse_frequencies (R/2 numbers), scale, and first if
    that is not 0.
    """

    name: str
    kind: Literal["rope"]
    shape: tuple[int, ...]
    attrs: Mapping[str, Any]

    def table(self) -> npt.NDArray[np.float32]:
        attrs = self.attrs
        return rope_table(attrs["inverse_frequencies"], self.shape[0], attrs["scale"], attrs.get("first", 0))


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an op. ``inputs`` and ``outputs`` map the op's roles to names. The nodes of a graph omit
    attributes that equal their defaults.
    """

    op: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def attr(self, name: str) -> Any:
        """The value of an attribute, or its default if the node omits it."""
        return self.attrs.get(name, OPS[self.op].attrs[name].default)

    def has_only(self, *, inputs: Collection[str] = (), attrs: Collection[str] = ()) -> bool:
        """Whether the node has no other inputs and attributes than these, so that a pass that handles them handles all
        of the node.
        """
        return self.inputs.keys() <= set(inputs) and self.attrs.keys() <= set(attrs)


@dataclass(slots=True)
class Graph:
    """``nodes`` are in the order of execution. States (KV pages, and state stored by sequence slot) outlive a forward
    pass. ``gathered`` are the inputs that the host gathers from tables, by their names; batches bring all others.
    """

    inputs: dict[str, Value] = field(default_factory=dict)
    states: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    gathered: dict[str, Gathered] = field(default_factory=dict)
    # The nodes that read each value, among the first ``_indexed`` nodes.
    _readers: dict[str, list[Node]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _indexed: int = field(default=0, init=False, repr=False, compare=False)

    def shape_of(self, name: str) -> tuple[Expr, ...]:
        return self.lookup(name).shape

    def lookup(self, name: str) -> Value | Constant | Parameter:
        """Raises ValueError for a name that is not defined."""
        found = self.find(name)
        if found is None:
            raise ValueError(f"{name} is not defined")
        return found

    def find(self, name: str) -> Value | Constant | Parameter | None:
        for table in (self.values, self.inputs, self.states, self.parameters, self.constants):
            if name in table:
                return table[name]
        return None

    def users(self, name: str) -> list[Node]:
        """The nodes that read a value."""
        for node in self.nodes[self._indexed :]:
            for value in set(node.inputs.values()):
                self._readers.setdefault(value, []).append(node)
        self._indexed = len(self.nodes)
        return list(self._readers.get(name, ()))

    def only_user(self, name: str) -> Node | None:
        """The node that reads a value, if it is the only one and the value is not an output of the graph."""
        users = self.users(name)
        return users[0] if len(users) == 1 and name not in self.outputs.values() else None

    def add(self, op: str, inputs: Mapping[str, str | None], *, name: str = "", **attrs: Any) -> str:
        """Append a node and return the name of its new value; inputs that are None are omitted.

        An op that only writes a state (append_kv) defines no value and needs no name. Further results of the op are
        named ``name``, a dot, and their role.
        """
        given = {role: value for role, value in inputs.items() if value is not None}
        roles = OPS[op].results({role: self.shape_of(value) for role, value in given.items()}, attrs)
        self.append(
            Node(op, given, {role: name if role == OPS[op].result else f"{name}.{role}" for role in roles}, attrs)
        )
        return name

    def append(self, node: Node) -> None:
        """Append a node and define its outputs by the op's shape rule.

        Raises ValueError for an op, input or attribute that is not declared, an input that is not defined, an output
        that is defined already, and shapes that disagree.
        """
        if node.op not in OPS:
            raise ValueError(f"op {node.op!r} is not declared; declared: {', '.join(OPS)}")
        op = OPS[node.op]
        given = {role: self.lookup(name) for role, name in node.inputs.items()}
        attrs = op.canonical(node.op, node.attrs)
        op.check_inputs(node.op, {role: kind_of(value) for role, value in given.items()}, attrs)
        results = op.results({role: value.shape for role, value in given.items()}, attrs)
        if results.keys() != node.outputs.keys():
            raise ValueError(
                f"{node.op}: outputs are {', '.join(node.outputs) or 'none'}; they must be "
                f"{', '.join(results) or 'none'}"
            )
        values = [Value(node.outputs[role], shape, dtype) for role, (shape, dtype) in results.items()]
        self._append(Node(node.op, node.inputs, node.outputs, attrs), values)

    def _append(self, node: Node, values: Iterable[Value]) -> None:
        """Append a node that is known to be valid, with its results."""
        for value in values:
            if self.find(value.name) is not None:
                raise ValueError(f"{node.op}: {value.name} is defined already")
            self.values[value.name] = value
        self.nodes.append(node)

    def kind_of(self, name: str) -> Kind:
        """The kind of a named value; a role must accept this kind."""
        return kind_of(self.lookup(name))

    def makers(self) -> dict[str, Node]:
        """The node that computes each value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs.values()}

    def replace(self, replaced: Mapping[int, Node | None], parameters: Iterable[Parameter] = ()) -> Graph:
        """The graph with some nodes, identified by ``id``, replaced by others, or removed if the replacement is
        None.
        """
        nodes = (replaced.get(id(node), node) for node in self.nodes)
        return self.with_nodes([node for node in nodes if node is not None], parameters)

    def with_nodes(self, nodes: Iterable[Node], parameters: Iterable[Parameter] = ()) -> Graph:
        """The same graph with other nodes, ``parameters`` added, and the parameters that nothing reads any more
        removed.
        """
        known = self.parameters | {parameter.name: parameter for parameter in parameters}
        graph = Graph(
            inputs=self.inputs,
            states=self.states,
            constants=self.constants,
            outputs=self.outputs,
            gathered=self.gathered,
        )
        own = {id(node) for node in self.nodes}
        for node in nodes:
            for name in node.inputs.values():
                if name in known:
                    graph.parameters[name] = known[name]
            results = [self.values.get(name) for name in node.outputs.values()]
            same_inputs = all(graph.find(name) == self.find(name) for name in node.inputs.values())
            # A node of this graph was checked when it was appended, and its results depend on its inputs alone.
            if id(node) in own and same_inputs and None not in results:
                graph._append(node, (value for value in results if value is not None))
            else:
                graph.append(node)
        graph.parameters |= {name: known[name] for each in self.gathered.values() for name in each.parts}
        return graph


def kind_of(found: Value | Constant | Parameter) -> Kind:
    if isinstance(found, Value):
        return found.dtype
    if isinstance(found, Constant):
        return found.kind
    return "vector" if found.columns is None else "matrix"
