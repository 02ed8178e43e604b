"""Emitter: the state of the walk over our graph (`decoder.py`), and the initializers for the weights that its nodes
read.

Our values are rows (batch * sequence, columns). A value may have another shape in the ONNX graph, such as heads or
sequences; readers request the shape that they need. A node may also be deferred: a later node that can include its work
(a norm with the preceding sum, an attention with the rotation) claims it, and any other reader causes it to be written
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from nearfar.compiler.ir.graph import Graph, Node, Parameter
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.rotary_pairs import RotaryPairs
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.quant import Quantization, WeightForm, form_of
from nearfar.compiler.quant.codes import block_of
from nearfar.compiler.quant.kernel_format import reads_plain, weight_format
from nearfar.compiler.runtime.errors import QuantizationError, UnsupportedModel

from .builder import ELEMENT_TYPES, Builder
from .devices import Device
from .matmul_nbits import BITS, BLOCKS, require_fast
from .weights import Stored


@dataclass(frozen=True, slots=True)
class Owner:
    """The keys and values that an attention appended, for later layers that share them: the node, and the inputs of
    the cache.
    """

    append: Node
    past: tuple[str, str]


@dataclass(slots=True)
class Emitter:
    """``names``: our values' names in the ONNX graph. ``reshaped``: those that are not rows there. ``stored``: the
    weights to write.

    ``deferred``: nodes that are not written yet, by their value, with the function that writes them. ``owners``: what
    each state of keys and values holds, once written. ``caches``: the keys and values of each attention that appends
    its own, by the input that holds the keys, with the number of elements of a key that are rotated. ``cache_scales``:
    if keys and values are 8-bit integers, their scales by the input of the cache; see `cache_scales.py`. ``cache_role``
    precedes "key" and "value" in the names of caches.

    ``bias``: what is added to the scores of complete sequences, "" for nothing, None for the mask of padded texts.
    ``hides``: whether it is anything but zero, if a call decides.
    ``sources``: the projections of keys and values of a source, by the state that has them.
    """

    graph: Graph
    spec: ModelSpec
    device: Device
    quantization: Quantization
    activation: str
    cache_scales: Mapping[str, Array] = field(default_factory=dict)
    builder: Builder = field(default_factory=Builder)
    stored: dict[str, Stored] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    reshaped: set[str] = field(default_factory=set)
    deferred: dict[str, tuple[Node, Emit]] = field(default_factory=dict)
    appends: dict[str, Node] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    cache_role: str = ""
    bias: str | None = None
    hides: str = ""
    sources: Mapping[str, tuple[Node, Node]] = field(default_factory=dict)

    @property
    def stored_elements(self) -> int:
        """The elements of the parameters that the graph stores."""
        names = {each.parameter for each in self.stored.values()}
        return sum(math.prod(self.graph.parameters[name].shape) for name in names)

    def inputs(self, node: Node, *roles: str) -> list[str]:
        """The names of a node's inputs in the ONNX graph, as rows."""
        return [self.rows(node.inputs[role]) for role in roles]

    def name(self, value: str) -> str:
        """A value's name in the ONNX graph, in whatever shape it has there. Raises UnsupportedModel for an input that
        the graph lacks.
        """
        if value in self.deferred:
            node, emit = self.deferred.pop(value)
            emit(self, node)
        if value not in self.names:
            raise UnsupportedModel(
                f"the model reads {value!r}, which --target onnx does not provide; use --target webgpu, cpu or cuda"
            )
        return self.names[value]

    def rows(self, value: str) -> str:
        """A value's name as (batch * sequence, columns)."""
        name = self.name(value)
        if value in self.reshaped:
            self.reshaped.remove(value)
            name = self.builder.add("Reshape", [name, self.builder.integers(-1, self.columns(value))], f"{name}.rows")
            self.names[value] = name
        return name

    def sequences(self, value: str, name: str) -> str:
        """A value as (batch, sequence, columns), under a new ``name``."""
        return self.builder.add("Reshape", [self.name(value), "sequences_shape"], name)

    def defer(self, node: Node, emit: Emit) -> None:
        self.deferred[result_of(node)] = node, emit

    def deferred_node(self, value: str, op: str) -> Node | None:
        """The deferred node that computes a value, if its op is this one."""
        node, _ = self.deferred.get(value, (None, None))
        return node if node is not None and node.op == op else None

    def claim(self, *nodes: Node) -> None:
        """Claim deferred nodes: they will not be written."""
        for node in nodes:
            del self.deferred[result_of(node)]

    def columns(self, name: str) -> int:
        """The number of columns of our value (rows, columns)."""
        columns = self.graph.shape_of(name)[1]
        assert isinstance(columns, int)
        return columns

    def factor(self, value: float) -> str:
        """A constant of the activation dtype."""
        return self.builder.constant(f"factor_{value}", np.array(value, self.activation))

    def form(self, parameter: Parameter) -> WeightForm:
        """The format of a matrix. Raises QuantizationError for codes that ONNX Runtime's kernels do not read."""
        form = form_of(parameter.form, self.quantization)
        fmt = weight_format(form)
        if not reads_plain(replace(fmt, offset="") if fmt.offset == "z" else fmt):
            raise QuantizationError(
                f"{parameter.name} is stored as {form.name}, which the ONNX target does not read; add "
                "--requantize to convert the weights",
                tensor=parameter.name,
            )
        return form

    def packed(self, parameter: Parameter) -> bool:
        """Whether a matrix is codes and scales."""
        return self.form(parameter).kind in BITS

    def bits(self, parameter: Parameter) -> int:
        return BITS[self.form(parameter).kind]

    def block(self, parameter: Parameter) -> int:
        """Elements that share a scale. Raises QuantizationError if the device has no kernel or only a slow kernel for
        them.
        """
        form, bits = self.form(parameter), self.bits(parameter)
        if not self.device.takes_codes:
            raise QuantizationError(f"{form.name}: this device has no kernels for quantized matrices; use f16 or f32")
        assert parameter.columns is not None
        block = form.group or block_of(parameter.columns)
        if block > max(BLOCKS) and block % max(BLOCKS) == 0:
            block = max(BLOCKS)
        require_fast(bits, block, "uint8" if self.has_zeros(parameter) else None)
        return block

    def has_zeros(self, parameter: Parameter) -> bool:
        """Whether the codes of a packed matrix have zero points."""
        return weight_format(self.form(parameter)).offset == "z"

    def dense_dtype(self, parameter: Parameter) -> str:
        """The dtype in which a dense matrix is stored."""
        return self.form(parameter).planes(1)[0].dtype

    def store(
        self,
        parameter: Parameter,
        plane: str,
        dtype: str,
        shape: tuple[int, ...],
        blocks: int = 0,
        pairs: RotaryPairs | None = None,
    ) -> str:
        """An initializer's name. The same plane in another shape is the same bytes. ``blocks``, ``pairs``: see
        `Stored`.
        """
        name = parameter.name if plane == "w" else f"{parameter.name}.{plane}"
        first = self.stored.setdefault(
            name, Stored(name, parameter.name, plane, dtype, shape, blocks=blocks, pairs=pairs)
        )
        if first.shape == shape:
            return name
        alias = f"{name}.{len(shape)}d"
        self.stored[alias] = Stored(alias, parameter.name, plane, dtype, shape, alias=name)
        return alias

    def vector(self, name: str, shape: tuple[int, ...] | None = None) -> str:
        parameter = self.graph.parameters[name]
        return self.store(parameter, "w", self.activation, shape or parameter.shape)

    def codes(self, parameter: Parameter) -> str:
        rows, columns = parameter.shape
        block, bits = self.block(parameter), self.bits(parameter)
        return self.store(parameter, "q", "uint8", (rows, -(-columns // block), block * bits // 8))

    def scales(self, parameter: Parameter, trailing: tuple[int, ...] = ()) -> str:
        rows, columns = parameter.shape
        blocks = -(-columns // self.block(parameter))
        return self.store(parameter, "s", self.activation, (rows, blocks, *trailing), blocks)

    def zeros(self, parameter: Parameter) -> str:
        """The zero points; "" if there are none."""
        if not self.has_zeros(parameter):
            return ""
        rows, columns = parameter.shape
        blocks = -(-columns // self.block(parameter))
        return self.store(parameter, "z", "uint8", (rows, -(-blocks * self.bits(parameter) // 8)), blocks)

    def dense(self, parameter: Parameter) -> str:
        return self.store(parameter, "w", self.dense_dtype(parameter), parameter.shape)

    def dense_activation(self, parameter: Parameter) -> str:
        """A dense matrix in the dtype of activations. If it is stored in another dtype, the runtime converts it once,
        at load time.
        """
        return self.as_activation(parameter, self.dense(parameter))

    def as_activation(self, parameter: Parameter, name: str) -> str:
        if self.dense_dtype(parameter) == self.activation:
            return name
        return self.builder.add("Cast", [name], f"{name}.{self.activation}", to=ELEMENT_TYPES[self.activation])

    def stack(self, parameter: Parameter, count: int, pairs: RotaryPairs | None) -> list[str]:
        """A stack of ``count`` matrices (count, rows, columns), and its scales if it is quantized. ``pairs``: see
        `Stored`. Raises QuantizationError for zero points.
        """
        rows, columns = parameter.rows // count, parameter.shape[1]
        if not self.packed(parameter):
            stored = self.store(parameter, "w", self.dense_dtype(parameter), (count, rows, columns), pairs=pairs)
            return [self.as_activation(parameter, stored)]
        if self.has_zeros(parameter):
            raise QuantizationError(
                f"{parameter.name} has experts with zero points, which the ONNX target does not read; add "
                "--requantize to convert the weights",
                tensor=parameter.name,
            )
        blocks = -(-columns // self.block(parameter))
        codes = (count, rows, blocks * self.block(parameter) * self.bits(parameter) // 8)
        return [
            self.store(parameter, "q", "uint8", codes, pairs=pairs),
            self.store(parameter, "s", self.activation, (count, rows, blocks), blocks, pairs),
        ]


def result_of(node: Node) -> str:
    """The name of a node's first result."""
    result = OPS[node.op].result
    assert result is not None, node.op
    return node.outputs[result]


def layer_of(state: str) -> int:
    """The number of the layer that has a state."""
    return int(state.split(".")[1])


# Writes a node.
Emit = Callable[[Emitter, Node], None]
