"""The arithmetic of CPU kernels against float64: accurate over all of float32, no overflow, and NaN stays NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nearfar.compiler.ir.ops import Array
from nearfar.compiler.ir.ops.op import ACTIVATIONS
from nearfar.compiler.kernels.builder import Scalar, magnitude
from nearfar.compiler.kernels.cpu import activations
from nearfar.compiler.kernels.cpu import math as cpu_math
from nearfar.compiler.kernels.cpu.builder import CpuKernelBuilder
from nearfar.compiler.kernels.vectors import ramp
from nearfar.compiler.pipeline.lower import OBJECT_PREFIX, lower_object
from nearfar.targets.cpu.levels import by_name
from nearfar.targets.cpu.library import Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target
from nearfar.targets.cpu.runner import aligned

ARCH = by_name(None)
LANES = 4
TINY = float(np.finfo(np.float32).tiny)
# Dense around zero and where the definitions change from one polynomial to another, then all magnitudes up to the
# largest.
POSITIVE = np.concatenate([np.linspace(0, 20, 20_001), np.geomspace(TINY, 3e38, 2_003)])
X = np.concatenate([POSITIVE, -POSITIVE]).astype(np.float32)


def gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_tanh(x: float) -> float:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    # x / 2 * (1 + tanh(inner)) without the cancellation.
    return x / (1 + math.exp(min(-2 * inner, 700)))


# The function in float64, and the tolerances of the kernel: relative to the result, and an absolute one times max(1,
# |x|).
EXACT: dict[str, tuple[Callable[[float], float], float, float]] = {
    "tanh": (math.tanh, 3e-7, 0),
    "erf": (math.erf, 3e-7, 0),
    "silu": (lambda x: x / (1 + math.exp(min(-x, 700))), 1e-6, 1e-12),
    "gelu": (gelu, 0, 2e-7),
    "gelu_tanh": (gelu_tanh, 0, 3e-7),
    "relu2": (lambda x: max(x, 0) ** 2, 1e-7, 0),
    "asinh": (math.asinh, 3e-7, 2e-7),
    "none": (lambda x: x, 0, 0),
}
FUNCTIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "tanh": cpu_math.tanh,
    "erf": cpu_math.erf,
    "falling_exp": lambda x: cpu_math.falling_exp(-magnitude(x)),
    **activations.ACTIVATIONS,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    kernels = []
    for name, function in FUNCTIONS.items():
        kernel = CpuKernelBuilder(name)
        x, y = kernel.buffer("x", ("S", LANES), "float32"), kernel.buffer("y", ("S", LANES), "float32", write=True)
        with kernel.tasks("row", "S") as row:
            y[row, ramp(0, LANES)] = function(kernel.let("value", x[row, ramp(0, LANES)]))
        kernels.append(kernel.finish())
    file: Path = tmp_path_factory.mktemp("math") / "kernels.so"
    file.write_bytes(link([lower_object(kernels, tvm_target(ARCH, ARCH.levels[-1]))], ARCH.triple))
    library = Library(file)
    library.start_threads(1)
    return library


def compute(library: Library, name: str, x: Array) -> Array:
    padded = aligned(np.pad(x, (0, -len(x) % LANES)))
    y = aligned(np.zeros_like(padded))
    calls = [(f"{OBJECT_PREFIX}{name}", [padded.ctypes.data, y.ctypes.data], 1)]
    library.run(library.prepare(calls), np.array([len(padded) // LANES], np.int64))
    return y[: len(x)]


@pytest.mark.parametrize("name", EXACT)
def test_a_function_is_accurate_over_all_of_float32(name: str, library: Library) -> None:
    function, relative, absolute = EXACT[name]
    expected = np.array([function(float(value)) for value in X])
    # Squares and cubes of the largest numbers overflow, as they do in float32.
    inside = np.abs(expected) < np.finfo(np.float32).max
    found = compute(library, name, X)
    assert np.isposinf(found[~inside]).all()
    error = np.abs(found[inside] - expected[inside])
    limit = relative * np.abs(expected[inside]) + absolute * np.maximum(1, np.abs(X[inside])) + TINY
    worst = int(np.argmax(error - limit))
    assert (error <= limit).all(), (X[inside][worst], found[inside][worst], expected[inside][worst])


@pytest.mark.parametrize("name", EXACT)
def test_nan_stays_nan_and_infinity_reaches_the_limit(name: str, library: Library) -> None:
    found = compute(library, name, np.array([np.nan, np.inf], np.float32))
    assert np.isnan(found[0])
    assert found[1] == (1 if name in ("tanh", "erf") else np.inf)


def test_the_exponential_of_falling_numbers_is_accurate(library: Library) -> None:
    found, expected = compute(library, "falling_exp", X), np.exp(-np.abs(X.astype(np.float64)))
    assert found[0] == 1
    assert (np.abs(found - expected) <= 2.5e-7 * expected + TINY).all()


def test_every_activation_of_the_ops_has_its_definition() -> None:
    assert tuple(activations.ACTIVATIONS) == ACTIVATIONS
