"""The weight formats, by the names that ``--quantization`` takes: weights' bits, then the dtype of scales and activations."""

from __future__ import annotations

from ..errors import QuantizationError
from .base import PlaneLayout, Quantization
from .dense import Dense
from .q4 import Q4
from .q8 import Q8

__all__ = ["NAMES", "PlaneLayout", "Quantization", "by_name"]

# A device without f16 runs the f16 formats too, with f32 activations: scales and weights are unpacked from u32.
_FORMATS: dict[str, Quantization] = {
    "q4f16": Q4("q4f16", "float16", ("float16", "float32")),
    "q4f32": Q4("q4f32", "float32", ("float32",)),
    "q8f16": Q8("q8f16", "float16", ("float16", "float32")),
    "f16": Dense("f16", "float16", ("float16", "float32")),
    "f32": Dense("f32", "float32", ("float32",)),
}
NAMES = tuple(_FORMATS)


def by_name(name: str) -> Quantization:
    """Raises QuantizationError for a name that is not in NAMES."""
    if name not in _FORMATS:
        raise QuantizationError(f"quantization {name!r} is not known; known: {', '.join(NAMES)}")
    return _FORMATS[name]
