"""Weights: the tensors of a folder become the parameters of the graph, as arrays in memory.

A folder holds a checkpoint's tensors under its names, with fused tensors unsplit. A parameter consists of the rows of
its sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.compiler.bundle.folder import ExportBundle
from nearfar.compiler.ir.graph import Parameter, Source
from nearfar.compiler.runtime.errors import BundleError, DeviceError

from .framework import load_mlx


@dataclass(frozen=True, slots=True)
class Weight:
    """``arrays``: one dense array, or codes, scales and biases with the ``group`` size and ``bits`` of their groups."""

    arrays: tuple[Any, ...]
    quantization: Mapping[str, int]

    def rows(self, row_ids: Any) -> Any:
        """The rows (n, K) of a matrix by their ids (n,)."""
        mx = load_mlx()

        rows = [array[row_ids] for array in self.arrays]
        return mx.dequantize(*rows, **self.quantization) if self.quantization else rows[0]

    def times(self, x: Any) -> Any:
        """x (n, K) @ weight.T."""
        mx = load_mlx()

        return mx.quantized_matmul(x, *self.arrays, **self.quantization) if self.quantization else x @ self.arrays[0].T


def load_weights(bundle: ExportBundle, parameters: Mapping[str, Parameter], dtype: Any) -> dict[str, Weight]:
    """All parameters, in memory; those that are not codes have ``dtype``.

    Raises DeviceError, and BundleError for weights of other shapes than the model's.
    """
    mx = load_mlx()
    try:
        tensors: dict[str, Any] = {}
        for entry in bundle.manifest.files:
            if entry.file.endswith(".safetensors"):
                tensors |= mx.load(str(bundle.file(entry.file)))
        weights = {name: read_weight(parameter, tensors, dtype) for name, parameter in parameters.items()}
        require_shapes(bundle, weights, parameters)
        tensors.clear()
        mx.eval([array for weight in weights.values() for array in weight.arrays])
    except KeyError as error:
        raise DeviceError(f"{bundle.path}: the weights lack tensor {error}; compile the bundle again") from error
    except RuntimeError as error:
        raise DeviceError(
            f"{bundle.path}: MLX cannot load the weights: {error}; free memory, or use a smaller --quantization"
        ) from error
    return weights


def require_shapes(bundle: ExportBundle, weights: Mapping[str, Weight], parameters: Mapping[str, Parameter]) -> None:
    """Raise BundleError for a weight of another shape: MLX reads a row by its index without a bounds check."""
    for name, parameter in parameters.items():
        shapes, quantization = [parameter.shape], weights[name].quantization
        if quantization and parameter.columns is not None:
            scales = (parameter.rows, parameter.columns // quantization["group_size"])
            shapes = [(parameter.rows, parameter.columns * quantization["bits"] // 32), scales, scales]
        found = [tuple(array.shape) for array in weights[name].arrays]
        if found != shapes:
            raise BundleError(
                f"{bundle.path}: weight {name} has the shapes {found}, the model {shapes}; compile the bundle again"
            )


def read_weight(parameter: Parameter, tensors: Mapping[str, Any], dtype: Any) -> Weight:
    """A parameter's rows of the tensors. Raises KeyError for a missing tensor."""
    scales = f"{parameter.sources[0].tensor.removesuffix('.weight')}.scales"
    if parameter.columns is None or scales not in tensors:
        return Weight(stacked([dense_rows(source, tensors, dtype) for source in parameter.sources]), {})
    arrays = stacked([quantized_rows(source, tensors, dtype) for source in parameter.sources])
    # The sizes of the arrays give those of groups and codes; `require_shapes` checks them.
    group_size = parameter.columns // max(1, arrays[1].shape[-1])
    return Weight(arrays, {"group_size": group_size, "bits": 32 * arrays[0].shape[-1] // parameter.columns})


def dense_rows(source: Source, tensors: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
    mx = load_mlx()

    rows = tensors[source.tensor][selection(source)]
    if (source.offset, source.factor) != (0, 1):
        rows = source.offset + source.factor * rows.astype(mx.float32)
    return (rows.astype(dtype),)


def quantized_rows(source: Source, tensors: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
    """Codes, scales and biases: a weight is code * scale + bias, which offset and factor change through the scale and
    the bias.
    """
    mx = load_mlx()

    module = source.tensor.removesuffix(".weight")
    codes, scales, biases = (
        tensors[name][selection(source)] for name in (source.tensor, f"{module}.scales", f"{module}.biases")
    )
    if (source.offset, source.factor) != (0, 1):
        scales = source.factor * scales.astype(mx.float32)
        biases = source.offset + source.factor * biases.astype(mx.float32)
    return codes, scales.astype(dtype), biases.astype(dtype)


def selection(source: Source) -> Any:
    """The index of a source's rows in its tensor."""
    if source.pairs is None:
        return slice(source.start, source.stop)
    return load_mlx().array(source.pairs.stored_rows(source.start, source.stop))


def stacked(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    mx = load_mlx()

    return parts[0] if len(parts) == 1 else tuple(mx.concatenate(arrays) for arrays in zip(*parts, strict=True))
