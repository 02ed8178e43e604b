"""Reads the weights of `quant_method: "gemma"`, Google's quantization-aware training: integers of 2, 4 or 8 bits with
one scale for each output channel (transformers, integrations/gemma_quant.py and GemmaQuantizationConfig).

config.json maps regular expressions of module names to numbers of bits. The tensors of a module X:

    X.weight               (N, K) int8, or (N, K * bits / 8) uint8 with the lowest bits first, minus 2 or minus 8
    X.weight_scale         (N, 1) float32
    X.embedding_quantized, X.embedding_scale   the same of an embedding; (V, blocks) scales belong to K / blocks columns
    X.input_activation_scale, X.output_activation_scale   the scales of static rounding to 8 bits; 0 means none
    X.k_cache_scale, X.v_cache_scale   read by no forward pass of transformers, and ignored here as there
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ..quant import ROW, Codes
from ..quant.base import Array
from ..runtime.errors import CheckpointError, QuantizationError
from .checkpoint import ActivationScales, QuantizedTensors, StoredMatrix, Tensor
from .config import ConfigReader
from .safetensors_file import SafetensorsTensor

METHOD = "gemma"
WIDTHS = (2, 4, 8)
_CACHE_SCALES = ("k_cache_scale", "v_cache_scale")
_ACTIVATION_SCALES = ("input_activation_scale", "output_activation_scale")
_EMBEDDINGS = ("embed_tokens", "embed_tokens_per_layer")
# The modules that stay floats if the configuration has no list: the head, and the embedding that is tied to it.
_HEAD, _TABLE = "lm_head", "embed_tokens"


@dataclass(frozen=True, slots=True)
class GemmaQuantization:
    """``patterns``: regular expressions with their bits, in order. ``skipped``: modules that stay floats, None for the
    default.
    """

    where: str
    num_bits: int
    quantize_embeddings: bool
    patterns: Mapping[str, int]
    skipped: tuple[str, ...] | None

    def bits_of(self, module: str, tied: bool) -> int | None:
        """The bits of a module's weights; None if they are floats.

        As in transformers, the match that starts first in the name decides, and among these the first pattern.
        """
        default = (_HEAD, _TABLE) if tied else (_HEAD,)
        if any(_skips(key, module) for key in (default if self.skipped is None else self.skipped)):
            return None
        if is_embedding(module) and not self.quantize_embeddings:
            return None
        joined = "|".join(f"(?P<g{number}>{pattern})" for number, pattern in enumerate(self.patterns))
        match = re.search(joined, module) if joined else None
        if match is None:
            return self.num_bits
        groups = match.groupdict()
        return next(bits for number, bits in enumerate(self.patterns.values()) if groups[f"g{number}"] is not None)

    def read_tensors(self, tensors: Mapping[str, SafetensorsTensor], *, tied: bool) -> QuantizedTensors:
        """Replace the tensors of quantized modules by a `StoredMatrix` each. ``tied``: the head is the embedding.

        Raises CheckpointError if the tensors do not match the configuration.
        """
        found: dict[str, Tensor] = {}
        scales: dict[str, dict[str, float | None]] = {}
        used: set[str] = set()
        modules = [module for name, tensor in tensors.items() if (module := _module_of(name, tensor)) is not None]
        _require_matches(self, modules)
        for module in modules:
            bits = self.bits_of(module, tied)
            weight, scale = _names(module, tensors)
            if bits is None:
                if scale in tensors:
                    raise _wrong(
                        self, tensors[scale], f"is a scale, but {module} is not quantized by 'quantization_config'"
                    )
                found[f"{module}.weight"] = tensors[weight]
            else:
                found[f"{module}.weight"] = _matrix(self, module, bits, tensors, weight, scale)
            used |= {weight, scale}
            if not is_embedding(module):
                scales[module] = {}
        caches = 0
        for name, tensor in tensors.items():
            module, _, kind = name.rpartition(".")
            if kind in _CACHE_SCALES:
                caches += 1
            elif kind in _ACTIVATION_SCALES and module in scales:
                scales[module][kind] = _activation_scale(self, tensor)
            elif name not in used:
                found[name] = tensor
        rounded = {
            module: ActivationScales(each.get(_ACTIVATION_SCALES[0]), each.get(_ACTIVATION_SCALES[1]))
            for module, each in scales.items()
            if any(scale is not None for scale in each.values())
        }
        notes = (
            [f"{self.where}: {caches} scales of 8-bit keys and values are ignored, as in transformers"]
            if caches
            else []
        )
        return QuantizedTensors(found, rounded, tuple(notes))


def is_embedding(module: str) -> bool:
    return module.rpartition(".")[2] in _EMBEDDINGS


def read_quantization(config: ConfigReader) -> GemmaQuantization:
    """The section ``quantization_config``. Raises CheckpointError, and UnsupportedModel for an unknown key or width."""
    config.expect("quant_method", METHOD)
    modules = config.section("module_quant_configs")
    patterns: dict[str, int] = {}
    num_bits = _width(config, default=4)
    for pattern in modules.keys() if modules is not None else ():
        _require_pattern(config, "module_quant_configs", pattern)
        options = modules.section(pattern) if modules is not None else None
        patterns[pattern] = num_bits if options is None else _width(options, default=num_bits)
        if options is not None:
            options.finish()
    read = GemmaQuantization(
        config.where,
        num_bits,
        config.flag("quantize_embeddings", default=False),
        patterns,
        config.optional_texts("modules_to_not_convert"),
    )
    for key in read.skipped or ():
        _require_pattern(config, "modules_to_not_convert", key)
    config.finish()
    return read


def _matrix(
    quantization: GemmaQuantization,
    module: str,
    bits: int,
    tensors: Mapping[str, SafetensorsTensor],
    weight: str,
    scale: str,
) -> StoredMatrix:
    stored = tensors[weight]
    if scale not in tensors:
        raise CheckpointError(
            f"{stored.path}: tensor {scale} is missing, though {weight} has {bits} bits according to "
            f"{quantization.where}; without its scales the weights are unknown, so download the checkpoint again",
            tensor=scale,
        )
    dtype = "I8" if bits == 8 else "U8"
    if stored.dtype != dtype or len(stored.shape) != 2:
        raise _wrong(
            quantization,
            stored,
            f"has dtype {stored.dtype} and shape {list(stored.shape)}; {bits} bits are a matrix of {dtype}",
        )
    factors = tensors[scale]
    rows, width = stored.shape
    columns = width * 8 // bits
    blocks = factors.shape[1] if len(factors.shape) == 2 else 0
    if factors.shape[:1] != (rows,) or blocks < 1 or (blocks > 1 and not is_embedding(module)) or columns % blocks:
        expected = f"[{rows}, blocks], with a divisor of {columns} blocks" if is_embedding(module) else f"[{rows}, 1]"
        raise _wrong(quantization, factors, f"has shape {list(factors.shape)}; it must be {expected}")
    try:
        form = Codes(bits, ROW if blocks == 1 else columns // blocks)
    except QuantizationError as error:
        raise _wrong(quantization, factors, error.message) from error
    planes = partial(_read_planes, stored, factors, bits, form)
    return StoredMatrix(f"{module}.weight", (rows, columns), form, planes, padding=8 // bits - 1)


def _read_planes(
    stored: SafetensorsTensor, factors: SafetensorsTensor, bits: int, form: Codes, start: int, stop: int
) -> dict[str, Array]:
    return form.store(unpack(stored.integers(start, stop), bits), factors.rows(start, stop))


def unpack(stored: npt.NDArray[np.generic], bits: int) -> npt.NDArray[np.uint8]:
    """Codes (N, K) from their stored form: int8, or bytes with the lowest bits first."""
    if bits == 8:
        # -128 becomes 0, and 127 becomes 255.
        return stored.view(np.uint8) ^ np.uint8(128)
    parts = stored.view(np.uint8)[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)
    codes: npt.NDArray[np.uint8] = parts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(stored), -1)


def _activation_scale(quantization: GemmaQuantization, tensor: SafetensorsTensor) -> float | None:
    """None for 0, which means that nothing is rounded."""
    if tensor.shape not in ((), (1,)):
        raise _wrong(quantization, tensor, f"has shape {list(tensor.shape)}; it must be one number")
    scale = float(tensor.rows(0, 1).reshape(-1)[0])
    if not np.isfinite(scale) or scale < 0:
        raise _wrong(quantization, tensor, f"is {scale}; a scale must be zero or a positive number")
    return scale or None


def _require_matches(quantization: GemmaQuantization, modules: Iterable[str]) -> None:
    for pattern in quantization.patterns:
        if not any(re.search(pattern, module) for module in modules):
            raise CheckpointError(
                f"{quantization.where}: 'module_quant_configs': {pattern!r} matches no module with weights, so some "
                "widths may be wrong; correct the pattern or download the checkpoint again",
                key="module_quant_configs",
                pattern=pattern,
            )


def _module_of(name: str, tensor: SafetensorsTensor) -> str | None:
    """The module of a tensor that is an embedding or the weight of a linear layer; None for other tensors."""
    module, _, kind = name.rpartition(".")
    return module if kind in ("weight", "embedding_quantized") and len(tensor.shape) == 2 else None


def _names(module: str, tensors: Mapping[str, SafetensorsTensor]) -> tuple[str, str]:
    """The tensors that hold a module's integers and scales."""
    if f"{module}.embedding_quantized" in tensors:
        return f"{module}.embedding_quantized", f"{module}.embedding_scale"
    return f"{module}.weight", f"{module}.weight_scale"


def _require_pattern(config: ConfigReader, key: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise config.contradiction(key, f"{key!r}: {pattern!r} is not a regular expression: {error}") from error


def _width(config: ConfigReader, default: int) -> int:
    config.expect("num_bits", *WIDTHS)
    return config.integer("num_bits", default=default)


def _skips(key: str, module: str) -> bool:
    """Whether an entry of modules_to_not_convert names a module (transformers, quantizers_utils.py,
    should_convert_module).
    """
    return re.match(rf"(?:{key})(?:(?<=\.)|(?=\.|$))", module) is not None or module.endswith(key)


def _wrong(quantization: GemmaQuantization, tensor: SafetensorsTensor, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{tensor.path}: tensor {tensor.name} {problem} ({quantization.where}); download the checkpoint again",
        tensor=tensor.name,
    )
