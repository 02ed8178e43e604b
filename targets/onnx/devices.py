"""Devices: the properties of the graph for each of ONNX Runtime's execution providers, as data.

Ops that a provider lacks fall back to the CPU's kernels. So a graph consists of ops that the provider has; only
lengths, gathers and, for CoreML, attention run on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearfar.compiler.runtime.errors import RequestError


@dataclass(frozen=True, slots=True)
class Device:
    """``activations``: the dtypes for which the graph is correct, best first.

    ``norms_heads``: GroupQueryAttention normalizes queries and keys itself. ``takes_codes``: the provider has
    MatMulNBits. ``fused_norms``: RMS norms are one op, alone and with a preceding sum. ``int8_cache``:
    GroupQueryAttention supports keys and values of 8-bit integers. ``stacks_projections``: projections of the same
    input are one product, because threads synchronize after each product. ``soft_caps``: GroupQueryAttention caps
    scores; otherwise it ignores the attribute. ``mixtures``: MoE and QMoE were tried. ``state_keys``: the most elements
    that a key of LinearAttention may have, None for any.
    """

    activations: tuple[str, ...]
    norms_heads: bool = False
    takes_codes: bool = True
    fused_norms: bool = True
    int8_cache: bool = False
    stacks_projections: bool = False
    soft_caps: bool = True
    mixtures: bool = False
    state_keys: int | None = None


_DEVICES = {
    "cpu": Device(("float32",), int8_cache=True, stacks_projections=True, mixtures=True),
    "webgpu": Device(("float16", "float32"), norms_heads=True, soft_caps=False, state_keys=256),
    "cuda": Device(("float16", "float32"), norms_heads=True),
    # Its norms consist of single ops, whose squares exceed float16's range.
    "coreml": Device(("float32",), takes_codes=False, fused_norms=False),
}
_REFUSED = {
    "qnn": "Qualcomm's provider needs fixed shapes and activations quantized with samples, which this graph lacks; "
    "use --device cpu"
}
NAMES = (*_DEVICES, *_REFUSED)


def by_name(name: str) -> Device:
    """One of NAMES. Raises RequestError for a device that no graph of ours suits."""
    if name in _REFUSED:
        raise RequestError(f"--device {name}: {_REFUSED[name]}")
    return _DEVICES[name]
