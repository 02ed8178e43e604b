"""Reads the weights of GPTQ's checkpoints, versions 1 and 2 (ModelCloud/GPTQModel, utils/model.py; onnxruntime-genai,
models/loaders/gptq.py).

The tensors of a quantized module X with a weight (N, K) of ``bits`` 2, 3, 4 or 8:

    X.qweight   (K * bits / 32, N) int32: a column is a stream of bits, the lowest first
    X.qzeros    (groups, N * bits / 32) int32: rows are streams; version 1 stores the zero point minus 1
    X.scales    (groups, N) float16; a weight is (code - zero point) * scale
    X.g_idx     (K,) int32: the group of each column. With "desc_act", groups are not consecutive columns
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..quant import ROW, Codes
from ..quant.base import Array
from ..runtime.errors import QuantizationError
from .checkpoint import DequantizedMatrix, QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .packed_columns import column_groups, modules_of, part, require, stream_columns, unpack_stream
from .safetensors_file import SafetensorsTensor

METHOD = "gptq"
WIDTHS = (2, 3, 4, 8)
KINDS = ("qweight", "qzeros", "scales", "g_idx")
WHOLE_ROW = -1
# Keys about the quantizer and about other libraries' kernels, which are ignored.
IGNORED = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_auto_increment",
    "damp_percent", "dataset", "desc_act", "disable_exllama", "exllama_config", "is_marlin_format", "lm_head",
    "max_input_length", "meta", "mse", "model_file_base_name", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "pack_dtype", "pad_token_id",
    "parallel_packing", "quantizer", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grouped:
    """``group``: columns that share a scale, or WHOLE_ROW. ``symmetric``: every zero point is 2^(bits - 1)."""

    bits: int
    group: int
    symmetric: bool


@dataclass(frozen=True, slots=True)
class GptqQuantization:
    """``shift`` is added to the stored zero points. ``modules``: regular expressions of names, with their settings, if
    these differ from ``default``.
    """

    where: str
    default: Grouped
    shift: int
    modules: Mapping[str, Grouped]

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:  # noqa: ARG002
        """Replace the tensors of quantized modules by a `StoredMatrix` each, or by floats if their columns are
        reordered. Raises CheckpointError if they do not match the configuration.
        """
        modules = modules_of(tensors, "qweight")
        found: dict[str, Tensor] = {f"{module}.weight": self._matrix(module, tensors) for module in sorted(modules)}
        reordered = sum(isinstance(tensor, DequantizedMatrix) for tensor in found.values())
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if module not in modules or kind not in KINDS:
                found[name] = tensor
        note = (
            f"{self.where}: the columns of {reordered} matrices are not in the order of their groups (desc_act), so "
            "these matrices become floats; add --requantize to round them to a smaller format"
        )
        return QuantizedTensors(found, notes=(note,) if reordered else ())

    def _matrix(self, module: str, tensors: Mapping[str, SafetensorsTensor]) -> Tensor:
        weight, zeros, scales = (part(module, kind, tensors, self.where) for kind in KINDS[:3])
        grouped = next((each for pattern, each in self.modules.items() if re.match(pattern, module)), self.default)
        bits, rows = grouped.bits, weight.shape[-1]
        columns = weight.shape[0] * 32 // bits
        group = columns if grouped.group == WHOLE_ROW else grouped.group
        groups = -(-columns // group)
        require(weight, (columns * bits // 32, rows), ("I32",), self.where)
        require(zeros, (groups, rows * bits // 32), ("I32",), self.where)
        require(scales, (groups, rows), ("F16", "BF16", "F32"), self.where)
        groups_of = column_groups(tensors.get(f"{module}.g_idx"), columns, group, self.where)
        name = f"{module}.weight"
        form = Codes(
            bits,
            ROW if group == columns else group,
            "" if grouped.symmetric else "z",
            "float16" if scales.dtype == "F16" else "float32",
        )
        stored = _Stored(name, weight, zeros, scales, bits, self.shift)
        if groups_of is not None:
            return DequantizedMatrix(name, (rows, columns), f"q{bits} reordered", partial(stored.floats, groups_of))
        return StoredMatrix(name, (rows, columns), form, partial(stored.planes, form))


@dataclass(frozen=True, slots=True)
class _Stored:
    """The tensors of one matrix."""

    name: str
    weight: SafetensorsTensor
    zeros: SafetensorsTensor
    scales: SafetensorsTensor
    bits: int
    shift: int

    def planes(self, form: Codes, start: int, stop: int) -> dict[str, Array]:
        codes, scales, zeros = self.read(start, stop)
        if form.offset:
            return form.store(codes, scales, zeros.astype(np.float32))
        if (zeros != form.zero).any():
            raise QuantizationError(
                f"{self.zeros.path}: {self.zeros.name} has zero points other than {form.zero}, though "
                "'quantization_config' says \"sym\"; the checkpoint is damaged, or its 'checkpoint_format' is wrong",
                tensor=self.name,
            )
        return form.store(codes, scales)

    def read(
        self, start: int, stop: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
        """Codes (n, K), scales (n, groups) and zero points (n, groups) of rows."""
        codes = unpack_stream(np.ascontiguousarray(self.weight.columns(start, stop).T), self.bits)
        zeros = stream_columns(self.zeros, self.bits, start, stop).T + np.uint8(self.shift)
        return codes, self.scales.columns(start, stop).T.astype(np.float32), zeros & np.uint8((1 << self.bits) - 1)

    def floats(self, groups_of: npt.NDArray[np.int64], start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows of a matrix whose column k belongs to group ``groups_of[k]``."""
        codes, scales, zeros = self.read(start, stop)
        weights: npt.NDArray[np.float32] = (codes - zeros[:, groups_of].astype(np.float32)) * scales[:, groups_of]
        return weights


def read_quantization(config: ConfigReader) -> GptqQuantization:
    """The section ``quantization_config``. Raises UnsupportedModel for another layout."""
    config.expect("quant_method", METHOD)
    config.expect("checkpoint_format", "gptq", "gptq_v2", None)
    version_2 = config.optional_text("checkpoint_format") == "gptq_v2"
    dynamic = config.section("dynamic") if config.has("dynamic") else None
    default = _grouped(config, None)
    modules: dict[str, Grouped] = {}
    for key in dynamic.keys() if dynamic is not None else ():
        section = None if dynamic is None else dynamic.section(key)
        # Modules with "-:" are floats without codes.
        if section is not None and not key.startswith("-:"):
            modules[key.removeprefix("+:")] = _grouped(section, default)
            section.finish()
    config.ignore(*IGNORED)
    config.finish()
    return GptqQuantization(config.where, default, 0 if version_2 else 1, modules)


def _grouped(config: ConfigReader, default: Grouped | None) -> Grouped:
    config.expect("bits", *WIDTHS)
    config.expect("group_size", WHOLE_ROW, 32, 64, 128, 256, 512, 1024)
    bits: Any = {} if default is None else {"default": default.bits}
    group: Any = {} if default is None else {"default": default.group}
    symmetric = config.flag("sym", default=True if default is None else default.symmetric)
    config.ignore("desc_act", "static_groups", "damp_percent")
    return Grouped(config.integer("bits", **bits), config.integer("group_size", minimum=WHOLE_ROW, **group), symmetric)
