"""Emitter: what the walk over our graph (`decoder.py`) knows and leaves behind, and the weights that its nodes name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nearfar.compiler.errors import QuantizationError
from nearfar.compiler.ir.graph import Graph, Node, Parameter
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.quant import Quantization

from .builder import ELEMENT_TYPES, Builder
from .devices import Device
from .matmul_nbits import BITS, require_fast
from .weights import Stored


@dataclass(slots=True)
class Emitter:
    """``names`` are our values' names in the ONNX graph, ``stored`` the weights that it needs, ``pending`` what a later node takes in.

    ``cache_scales``: where keys and values are 8-bit integers, their scales by the input of the cache; see `cache_scales.py`.
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
    pending: dict[str, Node] = field(default_factory=dict)

    def inputs(self, node: Node, *roles: str) -> list[str]:
        """The names of a node's inputs in the ONNX graph."""
        return [self.names[node.inputs[role]] for role in roles]

    def columns(self, name: str) -> int:
        """Of our value (rows, columns)."""
        columns = self.graph.shape_of(name)[1]
        assert isinstance(columns, int)
        return columns

    @property
    def packed(self) -> bool:
        """Whether matrices are codes and scales."""
        return self.quantization.kind in BITS

    @property
    def bits(self) -> int:
        return BITS[self.quantization.kind]

    @property
    def block(self) -> int:
        """Elements that share a scale. Raises QuantizationError where the device has no kernel for them, or a slow one."""
        if not self.device.takes_codes:
            raise QuantizationError(f"{self.quantization.name}: this device has no kernels for quantized matrices; take f16 or f32")
        codes, scales = self.quantization.planes(1)
        block = codes.row_bytes * 8 // self.bits // scales.columns
        require_fast(self.bits, block)
        return block

    @property
    def stores_activations(self) -> bool:
        """Whether dense matrices are stored in the dtype of activations."""
        return self.quantization.planes(1)[0].dtype == self.activation

    def store(self, parameter: Parameter, plane: str, dtype: str, shape: tuple[int, ...]) -> str:
        """An initializer's name. The same plane in another shape is the same bytes."""
        name = parameter.name if plane == "w" else f"{parameter.name}.{plane}"
        first = self.stored.setdefault(name, Stored(name, parameter.name, plane, dtype, shape))
        if first.shape == shape:
            return name
        alias = f"{name}.{len(shape)}d"
        self.stored[alias] = Stored(alias, parameter.name, plane, dtype, shape, alias=name)
        return alias

    def vector(self, name: str) -> str:
        parameter = self.graph.parameters[name]
        return self.store(parameter, "w", self.activation, parameter.shape)

    def codes(self, parameter: Parameter) -> str:
        rows, columns = parameter.shape
        return self.store(parameter, "q", "uint8", (rows, -(-columns // self.block), self.block * self.bits // 8))

    def scales(self, parameter: Parameter, trailing: tuple[int, ...] = ()) -> str:
        rows, columns = parameter.shape
        return self.store(parameter, "s", self.activation, (rows, -(-columns // self.block), *trailing))

    def dense(self, parameter: Parameter) -> str:
        return self.store(parameter, "w", self.quantization.planes(1)[0].dtype, parameter.shape)

    def dense_activation(self, parameter: Parameter) -> str:
        """A dense matrix in the dtype of activations; where it is stored in another, the runtime converts it once, as it loads."""
        name = self.dense(parameter)
        if self.stores_activations:
            return name
        return self.builder.add("Cast", [name], f"{name}.{self.activation}", to=ELEMENT_TYPES[self.activation])
