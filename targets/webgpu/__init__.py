"""WebGPU: kernels as WGSL within the default limits of every device, run by the TypeScript runtime or, from Python, by `runner.py`."""

from __future__ import annotations

from .lower import KERNEL_SUFFIX, MAX_BINDING_BYTES, lower_plan

__all__ = ["KERNEL_SUFFIX", "MAX_BINDING_BYTES", "lower_plan"]
