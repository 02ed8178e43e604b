"""Projections over tiles of weights: the same bits at every level, block size and batch, and what exact integers in numpy give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from cpu_cases import in_tiles
from kernel_cases import EPS, FORMATS, projection_run
from kernel_harness import Run
from test_cpu_kernels import ARCH, Kernels, run_kernels
from tolerances import OF_KERNEL, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.kernels.cpu.builder import Isa
from nearfar.compiler.kernels.cpu.integer_dot import RowLayout, row_layout
from nearfar.compiler.kernels.cpu.linear_tiles import linear_tiles
from nearfar.compiler.kernels.cpu.prepare_rows import prepare_rows
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.pipeline.lower import lower_object
from nearfar.compiler.quant.base import GROUP
from nearfar.targets.cpu.levels import AVX2, AVX512, VNNI, Level, features
from nearfar.targets.cpu.library import Library
from nearfar.targets.cpu.link import link
from nearfar.targets.cpu.lower import tvm_target

pytestmark = pytest.mark.skipif(ARCH.name != "x86_64", reason="the levels compared here are those of x86-64")

# By the quantization: more columns than a whole number of groups, outputs that end within a tile, halves that do and do not.
FACTS = {
    "q4f16": Projection("S", 200, 40, FORMATS["q4f16"], "float32", "float32", norm_eps=EPS, bias=True, residual=True),
    "q4f32": Projection("S", 64, 32, FORMATS["q4f32"], "float32", "float32", gated=True, bias=True),
    "q8f16": Projection("S", 72, 24, FORMATS["q8f16"], "float32", "float32", gated=True, norm_eps=EPS),
    "f16": Projection("S", 72, 35, FORMATS["f16"], "float32", "float32", norm_eps=EPS),
}
# By the bits of activations.
CASES = {16: tuple(FACTS), 8: ("q4f32", "q8f16")}
BITS_AND_FORMATS = [(bits, quantization) for bits, formats in CASES.items() for quantization in formats]
SIZES = (1, 5, 19)


@dataclass(frozen=True)
class Way:
    """A level's instructions, compiled for ``level``, and the rows of a block."""

    isa: Isa
    level: Level
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.isa.name}_{self.tokens}"


# Instructions that every CPU has are tried here in vectors of four, as on Arm.
PLAIN = Isa("neon", 4, 32)
WAYS = {
    way.name: way
    for way in (
        Way(AVX2.isa, AVX2, 1), Way(AVX2.isa, AVX2, 4), Way(PLAIN, AVX2, 2), Way(AVX512.isa, AVX512, 1), Way(AVX512.isa, AVX512, 4),
        Way(VNNI.isa, VNNI, 1), Way(VNNI.isa, VNNI, 4), Way(VNNI.isa, VNNI, 8),
    )
    if set(way.level.needs) <= features()
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernels]:
    made: dict[str, Kernels] = {}
    for way in WAYS.values():
        for bits, quantization in BITS_AND_FORMATS:
            name, facts = kernel_name(bits, quantization, way.name), FACTS[quantization]
            layout = row_layout(way.isa.name, facts.weight, bits)
            before = prepare_rows(f"{name}_before", way.isa, facts, layout)
            made[name] = (before, linear_tiles(name, way.isa, facts, way.tokens, bits))
    return made


def kernel_name(bits: int, quantization: str, way: str) -> str:
    return f"{quantization}_int{bits}_{way}"


@pytest.fixture(scope="module")
def library(kernels: dict[str, Kernels], tmp_path_factory: pytest.TempPathFactory) -> Library:
    objects = []
    for level in (AVX2, AVX512, VNNI):
        names = [kernel_name(*each, way.name) for way in WAYS.values() if way.level == level for each in BITS_AND_FORMATS]
        mine = [kernel for name in names for kernel in kernels[name]]
        objects += [lower_object(mine, tvm_target(ARCH, level))] if mine else []
    file = tmp_path_factory.mktemp("linear") / "kernels.so"
    file.write_bytes(link(objects, ARCH.triple))
    library = Library(file)
    library.start_threads(2)
    return library


@cache
def made(quantization: str) -> Run:
    """The largest batch; smaller ones are its first rows."""
    return projection_run(quantization, FACTS[quantization], quantization, SIZES[-1])


def result(library: Library, kernels: Kernels, run: Run) -> Array:
    (size,) = run.dims.values()
    return np.frombuffer(run_kernels(library, kernels, in_tiles(run))["y"], np.float32).reshape(size, -1)


def first_rows(run: Run, size: int) -> Run:
    batched = {role: array[:size] if role in ("x", "residual", "y") else array for role, array in run.arrays.items()}
    return Run({"S": size}, batched, {"y": run.expected["y"][:size]})


@pytest.mark.parametrize(("bits", "quantization"), BITS_AND_FORMATS)
def test_a_row_is_the_same_to_the_last_bit_at_every_level_in_every_block_and_batch(
    bits: int, quantization: str, kernels: dict[str, Kernels], library: Library
) -> None:
    run = made(quantization)
    expected = result(library, kernels[kernel_name(bits, quantization, "avx2_1")], run)
    for way in WAYS:
        for size in SIZES:
            found = result(library, kernels[kernel_name(bits, quantization, way)], first_rows(run, size))
            np.testing.assert_array_equal(found, expected[:size], f"{way}, {size} rows")


@pytest.mark.parametrize(("bits", "quantization"), [each for each in BITS_AND_FORMATS if each[1] != "f16"])
def test_integers_are_exact(bits: int, quantization: str, kernels: dict[str, Kernels], library: Library) -> None:
    run = made(quantization)
    expected = emulated(FACTS[quantization], quantization, bits, run)
    # Both take float32; only sums are in another order.
    assert relative_error(result(library, kernels[kernel_name(bits, quantization, "avx2_4")], run), expected) < 1e-5
    assert relative_error(expected, run.expected["y"]) < OF_KERNEL[f"int{bits}"]


@pytest.mark.parametrize("bits", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_the_largest_codes_do_not_overflow(way: str, bits: int, kernels: dict[str, Kernels], library: Library) -> None:
    for quantization, largest in (("q4f32", 8.0), ("q8f16", 127.0)):
        facts = FACTS[quantization]
        fmt, run = quant.by_name(quantization), made(quantization)
        # One weight of the other sign makes the scale, so that all others have the largest code or the smallest.
        matrix = np.full((facts.weight_rows, facts.columns), largest, np.float32)
        matrix[::2] *= -1
        matrix[:, ::GROUP] *= -1
        x = np.tile(np.array([[1], [-1]], np.float32), (10, facts.columns))[: SIZES[-1]]
        planes = {f"weight.{plane}": array for plane, array in fmt.pack(matrix).items()}
        wrong_sign = Run(run.dims, {**run.arrays, **planes, "x": x}, run.expected)
        expected = emulated(facts, quantization, bits, wrong_sign)
        found = result(library, kernels[kernel_name(bits, quantization, way)], wrong_sign)
        assert relative_error(found, expected) < 1e-5, quantization


@pytest.mark.parametrize(("bits", "quantization"), BITS_AND_FORMATS)
def test_a_row_of_zeros_and_one_that_is_not_finite_stay_by_themselves(
    bits: int, quantization: str, kernels: dict[str, Kernels], library: Library
) -> None:
    run = made(quantization)
    for way in WAYS:
        kernel = kernels[kernel_name(bits, quantization, way)]
        before = result(library, kernel, run)
        x = run.arrays["x"].copy()
        x[2], x[3, 1], x[4, 7] = 0, np.nan, np.inf
        found = result(library, kernel, Run(run.dims, {**run.arrays, "x": x}, run.expected))
        others = [0, 1, *range(5, SIZES[-1])]
        np.testing.assert_array_equal(found[others], before[others])
        assert np.isfinite(found[2]).all()
        assert not np.isfinite(found[3]).any(), way
        assert not np.isfinite(found[4]).all(), way


def emulated(facts: Projection, quantization: str, bits: int, run: Run) -> Array:
    """The projection with activations of so many bits, the integers exact, the rest in float64."""
    arrays, layout = run.arrays, RowLayout(bits, as_bytes=False)
    x, factor = arrays["x"], np.ones(len(arrays["x"]))
    if facts.norm_eps is not None:
        factor = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1) + facts.norm_eps)
        x = x * arrays["norm"]
    groups = np.pad(x, ((0, 0), (0, -facts.columns % GROUP))).reshape(len(x), -1, GROUP).astype(np.float32)
    of_groups = np.abs(groups).max(axis=-1)
    of_blocks = np.maximum.reduceat(of_groups, range(0, of_groups.shape[1], layout.scale_groups), axis=1)
    largest = np.repeat(of_blocks, layout.scale_groups, axis=1)[:, : of_groups.shape[1]]
    inverse = np.divide(np.float32(layout.largest), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(groups * inverse[..., None]).astype(np.int64)
    fmt = quant.by_name(quantization)
    planes = {plane: arrays[f"weight.{plane}"] for plane in ("q", "s")}
    ones = {"q": planes["q"], "s": np.ones_like(planes["s"])}
    weights = fmt.unpack(ones, codes.shape[1] * GROUP).astype(np.int64).reshape(facts.weight_rows, -1, GROUP)
    dots = np.einsum("sgk,ngk->sgn", codes, weights)
    scales = largest[..., None] * planes["s"].astype(np.float64).T / layout.largest
    sums: Array = (dots * scales).sum(axis=1) * factor[:, None]
    if facts.bias:
        sums = sums + arrays["bias"]
    if facts.gated:
        gate, up = np.split(sums, 2, axis=1)
        sums = gate / (1 + np.exp(-gate)) * up
    if facts.residual:
        sums = sums + arrays["residual"]
    return sums
