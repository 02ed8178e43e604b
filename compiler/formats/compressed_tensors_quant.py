"""Reads the weights of checkpoints of `quant_method: "compressed-tensors"`, which llm-compressor writes
(vllm-project/compressed-tensors, compressors/). Integers stay as they are; 8-bit floats become wider floats.

The tensors of a quantized module X with a weight (N, K):

    X.weight               (N, K) int8, or float8 (E4M3) X.weight_packed instead of X.weight: int32 words of integers
    plus 2^(bits - 1), the lowest bits first, with
                           X.weight_shape [N, K]; or uint8 (N, K / 2), pairs of FP4 (E2M1), the lower half first
    X.weight_scale         a value for the matrix, for each row, for groups of columns or for blocks X.weight_zero_point
    for asymmetric integers: int8 in the shape of the scales, or packed along N X.weight_g_idx         (K,) int32: the
    group of each column, if groups are not consecutive columns X.weight_global_scale for NVFP4: a divisor of the scales
    X.input_scale and similar ones, and attention's k_scale and v_scale: rounding of activations, which is not computed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ..quant import ROW, Codes
from ..quant.base import Array, FloatArray
from ..quant.codes import WIDTHS
from ..runtime.errors import CheckpointError, QuantizationError
from .checkpoint import DequantizedMatrix, QuantizedTensors, StoredMatrix, Tensor
from .compressed_tensors_scheme import MXFP8, NVFP4, Scheme, Schemes, read_schemes
from .config import ConfigReader
from .fp4_blocks import fp4_matrix
from .packed_columns import Packing, codes_of, column_groups, part, require
from .safetensors_file import SafetensorsTensor
from .scale_grid import EXPONENTS, FLOAT8, FLOATS, ScaleGrid, float8_matrix, float8_note

OF_WEIGHTS = re.compile(r"weight(_packed|_scale|_zero_point|_shape|_g_idx|_global_scale)?")
OF_ACTIVATIONS = re.compile(r"(input|output)_(scale|zero_point|global_scale)")
OF_CACHE = re.compile(r"[qkv]_(scale|zero_point|global_scale)")


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    schemes: Schemes

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of each quantized module by one matrix.

        Raises CheckpointError if they do not match the configuration, UnsupportedModel for groups of columns that no
        kernel reads.
        """
        where = self.schemes.where
        modules = {name.rpartition(".")[0] for name, tensor in tensors.items() if _is_weight(name, tensor)}
        self.schemes.require_matches(modules)
        quantized = {module for module in modules if _is_quantized(module, tensors)}
        found: dict[str, Tensor] = {
            f"{module}.weight": _Module(module, self.schemes, tensors).matrix() for module in sorted(quantized)
        }
        rounds_activations, rounds_cache = self.schemes.rounds_activations, self.schemes.rounds_cache
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if OF_ACTIVATIONS.fullmatch(kind):
                rounds_activations = True
            elif OF_CACHE.fullmatch(kind):
                rounds_cache = True
            elif module not in quantized or not OF_WEIGHTS.fullmatch(kind):
                if kind == "weight_scale":
                    raise _wrong(tensor, f"is a scale, but {module}.weight has no integers or 8-bit floats", where)
                found[name] = tensor
        kinds = [tensor.dtype for tensor in found.values() if isinstance(tensor, DequantizedMatrix)]
        float8 = kinds.count(FLOAT8)
        notes: list[str] = []
        if float8:
            notes.append(float8_note(where, float8))
        if float8 < len(kinds):
            notes.append(
                f"{where}: the columns of {len(kinds) - float8} matrices are not in the order of their groups "
                "(actorder), so these matrices become floats; add --requantize to round them to a smaller format"
            )
        if rounds_activations:
            notes.append(f"{where}: activations are not rounded, which is more exact than the checkpoint's scheme")
        if rounds_cache:
            notes.append(f"{where}: keys and values are not rounded with the checkpoint's scales; --kv q8 rounds them")
        return QuantizedTensors(found, notes=tuple(notes))


def read_quantization(config: ConfigReader) -> CompressedTensors:
    """The section ``quantization_config``. Raises CheckpointError and UnsupportedModel."""
    return CompressedTensors(read_schemes(config))


@dataclass(frozen=True, slots=True)
class _Module:
    """A quantized module among the tensors of a checkpoint."""

    name: str
    schemes: Schemes
    tensors: Mapping[str, SafetensorsTensor]

    def matrix(self) -> Tensor:
        scheme = self.schemes.scheme_of(self.name)
        is_packed = f"{self.name}.weight_packed" in self.tensors
        weight = self._part("weight_packed" if is_packed else "weight")
        if scheme is None:
            raise self._wrong(weight, "is quantized, but 'config_groups' has no target for it, or 'ignore' has one")
        if len(weight.shape) != 2:
            raise self._wrong(weight, f"has shape {list(weight.shape)}; expected a matrix")
        expected = ("U8" if is_packed else FLOAT8) if scheme.type == "float" else ("I32" if is_packed else "I8")
        if weight.dtype != expected or (scheme.type, is_packed) == ("float", scheme.bits == 8):
            raise self._wrong(
                weight,
                f"has dtype {weight.dtype}, but {scheme.group} has weights of type {scheme.type!r} with {scheme.bits} "
                "bits",
            )
        if scheme.type == "int":
            return self._integers(weight, scheme)
        return self._fp4(weight, scheme) if is_packed else self._float8(weight, scheme)

    def _integers(self, weight: SafetensorsTensor, scheme: Scheme) -> Tensor:
        rows, columns = weight.shape
        packing = None
        if weight.dtype == "I32":
            rows, columns = self._shape()
            packing = Packing.of(scheme.bits, columns, weight.shape[1])
            if packing is None or weight.shape[0] != rows:
                raise self._wrong(
                    weight,
                    f"has shape {list(weight.shape)}, which cannot hold {scheme.bits} bits for each of [{rows}, "
                    f"{columns}] weights",
                )
        scales = self._scales((rows, columns), scheme, FLOATS)
        stored = _Integers(weight, scheme.bits, packing, scales, self._zero_points(scales, scheme, packing))
        form = self._form(stored.width, scales, "" if stored.zero_points is None else "z")
        name = f"{self.name}.weight"
        order = self.tensors.get(f"{self.name}.weight_g_idx")
        groups_of = column_groups(order, columns, scales.block[1], self.schemes.where)
        if groups_of is not None:
            floats = partial(stored.floats, groups_of)
            return DequantizedMatrix(name, (rows, columns), f"q{scheme.bits} reordered", floats)
        return StoredMatrix(name, (rows, columns), form, partial(stored.planes, form))

    def _float8(self, weight: SafetensorsTensor, scheme: Scheme) -> Tensor:
        rows, columns = weight.shape
        scales = self._scales((rows, columns), scheme, EXPONENTS if scheme.format == MXFP8 else FLOATS)
        self._require_symmetric(scheme)
        return float8_matrix(f"{self.name}.weight", weight, scales)

    def _fp4(self, weight: SafetensorsTensor, scheme: Scheme) -> Tensor:
        rows, columns = weight.shape[0], weight.shape[1] * 2
        is_nvidia = scheme.format == NVFP4
        scales = self._scales((rows, columns), scheme, (FLOAT8,) if is_nvidia else EXPONENTS)
        self._require_symmetric(scheme)
        divisor = np.float32(1)
        if is_nvidia:
            whole = ScaleGrid.of(self._part("weight_global_scale"), (1, 1), (1, 1), ("F32",), self.schemes.where)
            divisor = whole.rows(0, 1)[0, 0]
        return fp4_matrix(
            f"{self.name}.weight",
            weight.integers,
            lambda start, stop: scales.rows(start, stop) / divisor,
            (rows, columns),
            self._form(5, scales, ""),
        )

    def _form(self, bits: int, scales: ScaleGrid, offset: str) -> Codes:
        group = ROW if scales.size[1] == 1 else scales.block[1]
        scale = "float16" if scales.tensor.dtype == "F16" else "float32"
        return codes_of(bits, group, offset, scale, where=self.schemes.where, module=self.name)

    def _scales(self, shape: tuple[int, int], scheme: Scheme, dtypes: tuple[str, ...]) -> ScaleGrid:
        return ScaleGrid.of(self._part("weight_scale"), shape, scheme.block, dtypes, self.schemes.where)

    def _zero_points(
        self, scales: ScaleGrid, scheme: Scheme, packing: Packing | None
    ) -> Callable[[int, int], FloatArray] | None:
        """A function that reads the zero points of rows, as codes; None for symmetric weights."""
        if scheme.symmetric:
            self._require_symmetric(scheme)
            return None
        tensor, rows = self._part("weight_zero_point"), scales.shape[0]
        if packing is None or tensor.dtype == "I8":
            grid = ScaleGrid.of(tensor, scales.shape, scales.block, ("I8",), self.schemes.where)
            return lambda start, stop: grid.rows(start, stop) + np.float32(1 << (scheme.bits - 1))
        require(tensor, (packing.words(rows), scales.size[1]), ("I32",), self.schemes.where)
        return lambda start, stop: packing.unpack_columns(tensor, start, stop, rows).astype(np.float32)

    def _require_symmetric(self, scheme: Scheme) -> None:
        """Old versions of the library store zeros for symmetric weights."""
        zeros = self.tensors.get(f"{self.name}.weight_zero_point")
        if zeros is not None and (zeros.integers(0, zeros.shape[0] if zeros.shape else 1) & 127).any():
            raise self._wrong(zeros, f"is not zero, though {scheme.group} is symmetric")

    def _shape(self) -> tuple[int, int]:
        tensor = self._part("weight_shape")
        require(tensor, (2,), ("I64", "I32"), self.schemes.where)
        rows, columns = (int(size) for size in tensor.integers(0, 2))
        if min(rows, columns) < 1:
            raise self._wrong(tensor, f"holds [{rows}, {columns}]")
        return rows, columns

    def _part(self, kind: str) -> SafetensorsTensor:
        return part(self.name, kind, self.tensors, self.schemes.where)

    def _wrong(self, tensor: SafetensorsTensor, problem: str) -> CheckpointError:
        return _wrong(tensor, problem, self.schemes.where)


@dataclass(frozen=True, slots=True)
class _Integers:
    """The integers of a matrix, as codes from 0. ``packing`` None: they are int8."""

    weight: SafetensorsTensor
    bits: int
    packing: Packing | None
    scales: ScaleGrid
    zero_points: Callable[[int, int], FloatArray] | None

    @property
    def width(self) -> int:
        """The number of bits of the narrowest format that can hold the codes."""
        return next(width for width in WIDTHS if width >= self.bits)

    def planes(self, form: Codes, start: int, stop: int) -> dict[str, Array]:
        shift = form.zero - (1 << (self.bits - 1))
        codes, scales = self._codes(start, stop) + np.uint8(shift), self.scales.rows(start, stop)
        zeros = None if self.zero_points is None else self.zero_points(start, stop) + np.float32(shift)
        return form.store(codes, scales, zeros)

    def floats(self, groups_of: npt.NDArray[np.int64], start: int, stop: int) -> FloatArray:
        """Rows of a matrix whose column k belongs to group ``groups_of[k]``."""
        zeros = (
            np.float32(1 << (self.bits - 1))
            if self.zero_points is None
            else self.zero_points(start, stop)[:, groups_of]
        )
        weights: FloatArray = (self._codes(start, stop) - zeros) * self.scales.rows(start, stop)[:, groups_of]
        return weights

    def _codes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        stored = self.weight.integers(start, stop)
        if self.packing is not None:
            return self.packing.unpack(stored, self.scales.shape[1])
        zero = 1 << (self.bits - 1)
        if self.bits < 8 and stored.size and (stored.min() < -zero or stored.max() >= zero):
            raise QuantizationError(
                f"{self.weight.path}: tensor {self.weight.name} has integers from {stored.min()} to {stored.max()}, "
                f"more than {self.bits} bits; download the checkpoint again",
                tensor=self.weight.name,
            )
        codes: npt.NDArray[np.uint8] = stored.view(np.uint8) + np.uint8(zero)
        return codes


def _is_weight(name: str, tensor: SafetensorsTensor) -> bool:
    return name.rpartition(".")[2] in ("weight", "weight_packed") and len(tensor.shape) == 2


def _is_quantized(module: str, tensors: Mapping[str, SafetensorsTensor]) -> bool:
    weight = tensors.get(f"{module}.weight")
    return weight is None or weight.dtype in ("I8", FLOAT8)


def _wrong(tensor: SafetensorsTensor, problem: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"{tensor.path}: tensor {tensor.name} {problem} ({where}); download the checkpoint again", tensor=tensor.name
    )
