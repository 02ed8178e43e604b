"""The weight formats, by the names that ``--quantization`` accepts: bits of the weights, then the dtype of scales and
activations.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import QuantizationError
from .base import GROUPS, PlaneLayout, Quantization
from .dense import Dense
from .q4 import Q4
from .q8 import Q8

__all__ = ["GROUPS", "NAMES", "PlaneLayout", "Quantization", "by_name"]

# A device without f16 also runs the f16 formats, with f32 activations: kernels unpack scales and weights from u32.
_FORMATS: dict[str, Q4 | Q8 | Dense] = {
    "q4f16": Q4("q4f16", "float16", ("float16", "float32")),
    "q4f32": Q4("q4f32", "float32", ("float32",)),
    "q8f16": Q8("q8f16", "float16", ("float16", "float32")),
    "f16": Dense("f16", "float16", ("float16", "float32")),
    "f32": Dense("f32", "float32", ("float32",)),
}
NAMES = tuple(_FORMATS)


def by_name(name: str, group: int | None = None) -> Quantization:
    """``group`` is the number of weights that share a scale, None for the format's default. Raises QuantizationError
    for an unknown name or group.
    """
    if name not in _FORMATS:
        raise QuantizationError(f"quantization {name!r} is not known; known: {', '.join(NAMES)}")
    quantization = _FORMATS[name]
    if group is None:
        return quantization
    if group not in GROUPS or isinstance(quantization, Dense):
        raise QuantizationError(
            f"quantization {name!r} with groups of {group} is not known; q4 and q8 take {', '.join(map(str, GROUPS))}"
        )
    return replace(quantization, group=group)
