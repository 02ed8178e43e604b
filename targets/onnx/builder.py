"""Builder: collects nodes, small constants and the names of stored weights, and builds a ModelProto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from nearfar.compiler.ir.ops import Array

MICROSOFT = "com.microsoft"
# The oldest opset with all ops that we use, and its file format, which ONNX Runtime in browsers and on phones supports
# too.
OPSETS = {"": 21, MICROSOFT: 1}
IR_VERSION = 10
ELEMENT_TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bool": onnx.TensorProto.BOOL,
    "int64": onnx.TensorProto.INT64,
    "int32": onnx.TensorProto.INT32,
    "int8": onnx.TensorProto.INT8,
    "uint8": onnx.TensorProto.UINT8,
}


class Builder:
    """Collects nodes in the order of execution; every value has one name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add_input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape))
        return name

    def add_output(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape))

    def constant(self, name: str, values: Array) -> str:
        """An array that is part of the graph's file."""
        self.constants[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        return name

    def integers(self, *values: int) -> str:
        """A constant list of int64, such as a shape; equal constants are shared."""
        name = "integers_" + "_".join(str(value).replace("-", "minus") for value in values)
        return self.constant(name, np.array(values, np.int64))

    def has_value(self, name: str) -> bool:
        """Whether a node makes it."""
        return any(name in node.output for node in self.nodes)

    def has_input(self, name: str) -> bool:
        return any(each.name == name for each in self.inputs)

    def branch(self) -> Builder:
        """A builder of a branch of an If, whose constants are those of the complete graph."""
        branch = Builder()
        branch.constants = self.constants
        return branch

    def choose(self, condition: str, outputs: Sequence[str], then: Builder, otherwise: Builder, dtype: str) -> str:
        """Append an If with these branches, whose outputs were added, all of ``dtype``. Returns its first output's
        name.
        """
        return self.add(
            "If",
            [condition],
            *outputs,
            then_branch=then._subgraph(f"{outputs[0]}.then", dtype),
            else_branch=otherwise._subgraph(f"{outputs[0]}.else", dtype),
        )

    def _subgraph(self, name: str, dtype: str) -> onnx.GraphProto:
        outputs = [helper.make_tensor_value_info(each.name, ELEMENT_TYPES[dtype], None) for each in self.outputs]
        return helper.make_graph(self.nodes, name, [], outputs)

    def integer(self, value: int) -> str:
        """A constant int64 scalar."""
        return self.constant(f"integer_{value}".replace("-", "minus"), np.array(value, np.int64))

    def add(self, op: str, inputs: Sequence[str], output: str, *more: str, domain: str = "", **attrs: Any) -> str:
        """Append a node and return its first output's name. "" means an omitted input or output."""
        self.nodes.append(helper.make_node(op, inputs, [output, *more], name=f"{output}/{op}", domain=domain, **attrs))
        return output

    def model(self, weights: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
        """The model, given its stored weights by name."""
        initializers = [*self.constants.values(), *weights.values()]
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="nearfar")
