"""The weight formats, by the names that ``--quantization`` accepts: bits of the weights, then the dtype of scales and
activations. A checkpoint's own integers have the formats of `codes.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ..names import QUANTIZATIONS
from ..runtime.errors import QuantizationError
from .base import GROUPS, ROW, PlaneLayout, Quantization, WeightForm
from .codes import Codes, Products, codes_by_name
from .dense import Dense
from .q4 import Q4
from .q8 import Q8

__all__ = [
    "DEFAULT",
    "ENCODER_DEFAULT",
    "GROUPS",
    "NAMES",
    "ROW",
    "Codes",
    "PlaneLayout",
    "Products",
    "Quantization",
    "WeightForm",
    "by_name",
    "form_by_name",
    "form_of",
]

# A device without f16 also runs the f16 formats, with f32 activations: kernels unpack scales and weights from u32.
_FORMATS: dict[str, Q4 | Q8 | Dense] = {
    "q4f16": Q4("q4f16", "float16", ("float16", "float32")),
    "q4f32": Q4("q4f32", "float32", ("float32",)),
    "q8f16": Q8("q8f16", "float16", ("float16", "float32")),
    "f16": Dense("f16", "float16", ("float16", "float32")),
    "f32": Dense("f32", "float32", ("float32",)),
}
NAMES = QUANTIZATIONS
DEFAULT = "q4f16"
# With 4 bits, the vectors of a small encoder are far from the original's.
ENCODER_DEFAULT = "q8f16"


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


def form_by_name(name: str) -> WeightForm:
    """The format of a stored matrix: one of NAMES, or of a checkpoint's own integers. Raises QuantizationError for an
    unknown name.
    """
    return codes_by_name(name) or by_name(name)


def form_of(name: str | None, quantization: Quantization) -> WeightForm:
    """The format of a matrix: the one that it names, or the bundle's."""
    return quantization if name is None else form_by_name(name)
