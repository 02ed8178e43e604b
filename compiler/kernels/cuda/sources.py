"""The CUDA C++ that kernels call, as text: `device.cuh`, `wgmma.cuh`, `functions.cuh` and `persistent.cuh` beside this
file.
"""

from __future__ import annotations

from pathlib import Path

# The function by which a kernel waits for the previous one.
WAIT = "wait_for_previous_kernel"


def device_source() -> str:
    """The functions that need a GPU: 16-bit floats, asynchronous copies and tensor cores, as PTX."""
    return f"{source('device.cuh')}\n\n{source('wgmma.cuh')}"


def functions_source() -> str:
    """The functions in plain CUDA C++ that use `device_source`."""
    return source("functions.cuh")


def source(file: str) -> str:
    return (Path(__file__).parent / file).read_text().strip()
