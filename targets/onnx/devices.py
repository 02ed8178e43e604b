"""Devices: what the graph is like for each of ONNX Runtime's execution providers, as data.

What a provider lacks falls back to the CPU's kernels. So a graph is made of what the provider has; only lengths, gathers and, for CoreML,
attention are the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.errors import RequestError


@dataclass(frozen=True, slots=True)
class Device:
    """``activations``: the dtypes for which the graph is right, best first.

    ``norms_heads``: GroupQueryAttention norms queries and keys itself. ``takes_codes``: there is a MatMulNBits. ``fused_norms``: there are
    RMS norms as one op, alone and with a sum before them. ``int8_cache``: GroupQueryAttention takes keys and values of 8-bit integers.
    ``stacks_projections``: those of the same input are one product, for each product costs threads a meeting. ``soft_caps``:
    GroupQueryAttention caps scores; without it, it ignores the attribute.
    """

    activations: tuple[str, ...]
    norms_heads: bool = False
    takes_codes: bool = True
    fused_norms: bool = True
    int8_cache: bool = False
    stacks_projections: bool = False
    soft_caps: bool = True


_DEVICES = {
    "cpu": Device(("float32",), int8_cache=True, stacks_projections=True),
    "webgpu": Device(("float16", "float32"), norms_heads=True, soft_caps=False),
    "cuda": Device(("float16", "float32"), norms_heads=True),
    # Its norms are of single ops, whose squares leave float16's range.
    "coreml": Device(("float32",), takes_codes=False, fused_norms=False),
}
_REFUSED = {
    "qnn": "Qualcomm's provider wants fixed shapes and activations quantized by samples, which this graph has not; take --device cpu"
}
NAMES = (*_DEVICES, *_REFUSED)


def by_name(name: str) -> Device:
    """One of NAMES. Raises RequestError for a device that no graph of ours suits."""
    if name in _REFUSED:
        raise RequestError(f"--device {name}: {_REFUSED[name]}")
    return _DEVICES[name]
