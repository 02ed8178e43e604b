"""Every candidate shape of CUDA's projection kernels on an NVIDIA GPU: the best for each matrix and number of rows,
beside the choice of `targets/cuda/tuning.py`.

``make bench-cuda-projections`` compiles the candidates, times them, and writes ``cuda_projections.json`` into the
folder after every matrix. ``--models``, ``--rows`` and ``--kernels`` select some of them. The two halves also run by
themselves: ``prepare`` needs TVM and NVRTC but no GPU, and ``measure`` only the driver. Each kernel reads several
copies of its weights in turn, more than the cache holds, in a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nearfar.compiler.ir.expr import evaluate
from nearfar.targets.cuda.driver import Arguments, Driver, NvidiaDriver

if TYPE_CHECKING:
    from nearfar.compiler.kernels.cuda.linear_mma import MmaShape
    from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape
    from nearfar.compiler.kernels.projection import Projection
    from nearfar.compiler.quant.kernel_format import WeightFormat
    from nearfar.targets.cuda.source import CudaKernel
    from nearfar.targets.cuda.tuning import Tuning
    from nearfar.targets.variant import Variant

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "bench" / "cuda-projections"
CANDIDATES_FILE, RESULTS_FILE = "candidates.json", "cuda_projections.json"
# (columns, outputs, options of the projection) of Qwen3-0.6B and Llama-3.1-8B.
# The parts are those that kernels get.
NORM = {"op": "rms_norm", "eps": 1e-6, "centered": False, "row": None, "bias": False, "keep": False}
NORMED: dict[str, Any] = {"load": [NORM], "x_dtype": "float32"}
GATE = {"op": "gate_halves", "activation": "silu", "limit": None, "slope": 1.0, "shift": 0.0}
GATED: dict[str, Any] = {"store": [GATE]}
ADDED: dict[str, Any] = {"store": [{"op": "add"}], "y_dtype": "float32"}
MATRICES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "0.6B qkv": (1024, 4096, NORMED),
    "0.6B o": (2048, 1024, ADDED),
    "0.6B gate, up": (1024, 3072, {**NORMED, **GATED}),
    "0.6B down": (3072, 1024, ADDED),
    "0.6B head": (1024, 151936, {**NORMED, "y_dtype": "float32"}),
    "8B qkv": (4096, 6144, NORMED),
    "8B o": (4096, 4096, ADDED),
    "8B gate, up": (4096, 14336, {**NORMED, **GATED}),
    "8B down": (14336, 4096, ADDED),
    "8B head": (4096, 128256, {**NORMED, "y_dtype": "float32"}),
}
MODELS = ("0.6B", "8B")
# linear_async, linear_few, linear_mma and linear_wgmma.
KERNELS = ("vector", "few", "mma", "wgmma")
BATCHES = (1, 2, 4, 16, 32, 64, 128, 256, 1024)
# More than the last cache of any GPU.
COLD_BYTES = 256 << 20
KERNELS_PER_FILE = 24


@dataclass(frozen=True)
class Candidate:
    """A shape for one matrix and number of rows, with the names of its kernels. ``chosen``: the rules choose it."""

    matrix: str
    batch: int
    shape: Mapping[str, Any]
    chosen: bool
    kernels: Sequence[str]


@dataclass(frozen=True)
class Timing:
    matrix: str
    batch: int
    shape: Mapping[str, Any]
    chosen: bool
    microseconds: float
    weight_gigabytes_per_second: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("half", choices=("prepare", "measure", "both"), nargs="?", default="both")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--arch", help="default: that of this machine's GPU, or sm_90 for prepare")
    parser.add_argument("--quantization", default="q4f16")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--rows", type=int, nargs="+", default=BATCHES, help="input rows (default: %(default)s)")
    parser.add_argument("--kernels", nargs="+", default=KERNELS, choices=KERNELS)
    options = parser.parse_args()
    if options.half in ("prepare", "both"):
        arch = options.arch or (NvidiaDriver().arch if options.half == "both" else "sm_90")
        matrices = {name: each for name, each in MATRICES.items() if name.split()[0] in options.models}
        prepare(options.folder, arch, options.quantization, matrices, options.rows, options.kernels)
    if options.half in ("measure", "both"):
        driver = NvidiaDriver()
        timings: list[Timing] = []
        for measured in measure(options.folder, driver):
            timings += measured
            document = {"device": driver.name, "timings": [asdict(each) for each in timings]}
            (options.folder / RESULTS_FILE).write_text(json.dumps(document, indent=1))
        driver.close()
        print_best(timings)


# --- prepare ---


def prepare(
    folder: Path,
    arch: str,
    quantization: str,
    matrices: Mapping[str, tuple[int, int, dict[str, Any]]],
    batches: Sequence[int],
    selected: Sequence[str] = KERNELS,
) -> None:
    """Compile the candidates of the selected kernels into cubins, and describe their launches in a JSON file."""
    from nearfar.compiler import quant
    from nearfar.compiler.quant.kernel_format import weight_format
    from nearfar.targets.cuda.nvrtc import check_arch, compile_cubin
    from nearfar.targets.cuda.source import cuda, source_file
    from nearfar.targets.cuda.tuning import tuning_for

    tuning = tuning_for(check_arch(arch))
    form = quant.form_by_name(quantization)
    lowered: dict[str, CudaKernel] = {}
    candidates: list[Candidate] = []
    weights: dict[str, dict[str, int]] = {}
    for matrix, (columns, outputs, options) in matrices.items():
        facts = projection(columns, outputs, weight_format(form), options)
        weights[matrix] = {
            f"weight.{plane.name}": facts.weight_rows * plane.row_bytes for plane in form.planes(columns)
        }
        for batch in batches:
            for shape, chosen, variant in variants_for(facts, tuning, batch):
                if shape["kernel"] not in selected:
                    continue
                for call in variant.kernels:
                    if call.name not in lowered:
                        lowered[call.name] = cuda(call.build(), arch)
                names = [call.name for call in variant.kernels]
                candidates.append(Candidate(matrix, batch, shape, chosen, names))
    folder.mkdir(parents=True, exist_ok=True)
    names = list(lowered)
    parts = [names[i : i + KERNELS_PER_FILE] for i in range(0, len(names), KERNELS_PER_FILE)]
    sources = [source_file(lowered[name] for name in part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        cubins = pool.map(lambda source: compile_cubin(source, arch, "projections.cu")[0], sources)
        for number, (source, cubin) in enumerate(zip(sources, cubins, strict=True)):
            (folder / f"{number}.cu").write_text(source)
            (folder / f"{number}.cubin").write_bytes(cubin)
    kernels = {
        name: {
            "file": f"{number}.cubin",
            "entry": lowered[name].entry,
            "buffers": lowered[name].buffers,
            "scalars": lowered[name].scalars,
            "grid": lowered[name].kernel.grid,
            "threads": lowered[name].kernel.workgroup_size,
            "scratch": lowered[name].kernel.scratch,
            "shared_bytes": lowered[name].dynamic_bytes,
        }
        for number, part in enumerate(parts)
        for name in part
    }
    document = {"kernels": kernels, "candidates": [asdict(each) for each in candidates], "weights": weights}
    (folder / CANDIDATES_FILE).write_text(json.dumps(document))


def projection(columns: int, outputs: int, weight: WeightFormat, options: dict[str, Any]) -> Projection:
    from nearfar.compiler.kernels.projection import Projection

    return replace(Projection("S", columns, outputs, weight, "float16", "float16"), **options)


def variants_for(facts: Projection, tuning: Tuning, batch: int) -> Iterator[tuple[dict[str, Any], bool, Variant]]:
    """The shapes that make sense for a number of rows, whether the rules choose them, and their kernels."""
    from nearfar.compiler.kernels.cuda.linear_async import linear_async
    from nearfar.compiler.kernels.cuda.linear_few import linear_few
    from nearfar.compiler.kernels.cuda.linear_mma import MmaShape
    from nearfar.targets.cuda.tuning import (
        FEW_ROW_COUNTS,
        few_shapes,
        tensor_core_shapes,
        vector_shape,
        vector_shapes,
    )
    from nearfar.targets.cuda.variants import NUMBERS, tensor_core_variant
    from nearfar.targets.variant import Variant, kernel

    few_rows = next((rows for rows in FEW_ROW_COUNTS if rows >= batch), None)
    fews = few_shapes(facts, tuning, few_rows) if few_rows is not None else []
    for few in fews:
        call = kernel(linear_few, facts=facts, shape=few)
        yield {"kernel": "few", **asdict(few)}, few == fews[0], Variant((call,))
    if batch <= NUMBERS.max_vector_rows:
        best = None if fews else vector_shape(facts, tuning, batch)
        for widest in vector_shapes(facts, tuning, batch):
            for stages in range(2, widest.stages + 1):
                vector = replace(widest, stages=stages)
                call = kernel(linear_async, facts=facts, shape=vector)
                yield {"kernel": "vector", **asdict(vector)}, vector == best, Variant((call,))
    # The tensor cores' kernels for one and two rows show from how many rows on they pay off.
    shapes = tensor_core_shapes(facts, tuning, "float16")
    chosen = next(shape for shape, most in shapes if most is None or batch <= most)
    candidates: list[MmaShape | WgmmaShape] = [chosen, *mma_candidates(facts, tuning, batch)]
    candidates += wgmma_candidates(facts, tuning, batch)
    for shape in dict.fromkeys(candidates):
        if shape.splits == 1 or batch <= shape.max_batch:
            is_chosen = shape == chosen and not fews and batch > NUMBERS.max_vector_rows
            name = "mma" if isinstance(shape, MmaShape) else "wgmma"
            yield {"kernel": name, **asdict(shape)}, is_chosen, tensor_core_variant(facts, "float16", shape, None)


def mma_candidates(facts: Projection, tuning: Tuning, batch: int) -> Iterator[MmaShape]:
    """Tiles of at most twice the rows, with the two pipelines with the most columns in flight that fit, and splits up
    to four workgroups for each multiprocessor.
    """
    from nearfar.compiler.kernels.cuda.linear_mma import MmaShape, shared_bytes
    from nearfar.compiler.kernels.cuda.rows16 import MAX_SPLIT_TILES, blocks_of
    from nearfar.targets.cuda.source import MAX_SHARED_BYTES
    from nearfar.targets.cuda.tuning import SPLIT_BYTES, column_blocks

    halves, blocks = 2 if facts.gated else 1, blocks_of(facts.columns)
    for rows in (rows for rows in (16, 32, 64, 128) if rows == 16 or rows < 2 * batch):
        for tiles in (tiles // halves for tiles in (2, 4) if rows * tiles <= 512):
            shapes = [MmaShape(rows, tiles, 4, "float16", *pipeline) for pipeline in tuning.pipelines]
            room = MAX_SHARED_BYTES - SPLIT_BYTES
            fitting = [each for each in shapes if shared_bytes(facts.weight, each, gated=facts.gated) <= room]
            for shape in fitting[:2]:
                yield shape
                result_tiles = column_blocks(facts, shape) * -(-batch // rows)
                for splits in (2, 3, 4, 6, 8, 12, 16):
                    even = -(-blocks // -(-blocks // splits)) == splits
                    few = result_tiles <= MAX_SPLIT_TILES and result_tiles * splits <= 4 * tuning.multiprocessors
                    if even and few and batch <= 256:
                        yield replace(shape, splits=splits, max_batch=batch)


def wgmma_candidates(facts: Projection, tuning: Tuning, batch: int) -> Iterator[WgmmaShape]:
    """Tiles of at most twice the rows, with as many blocks in flight as fit and with four, early or not, and splits up
    to two workgroups for each multiprocessor.
    """
    from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape, shared_bytes
    from nearfar.compiler.kernels.cuda.rows16 import blocks_of
    from nearfar.targets.cuda.arch import max_dynamic_bytes
    from nearfar.targets.cuda.tuning import SPLIT_BYTES, WGMMA_STAGES

    blocks, room = blocks_of(facts.columns), max_dynamic_bytes("sm_90") - SPLIT_BYTES
    for rows in (rows for rows in (64, 128, 192) if tuning.wgmma and rows < 2 * batch):
        for tiles in (1,) if facts.gated or rows == 192 else (1, 2):
            shapes = [WgmmaShape(rows, tiles, 2, "float16", stages) for stages in WGMMA_STAGES]
            fitting = [each for each in shapes if shared_bytes(facts.weight, each, gated=facts.gated) <= room]
            for shape in dict.fromkeys((*fitting[:1], *(each for each in fitting if each.stages == 4))):
                yield from (shape, replace(shape, early=True))
                result_tiles = -(-facts.outputs // shape.outputs) * -(-batch // rows)
                for splits in (2, 3, 4, 6, 8):
                    even = -(-blocks // -(-blocks // splits)) == splits
                    if even and result_tiles * splits <= 2 * tuning.multiprocessors and batch <= 256:
                        yield replace(shape, splits=splits, max_batch=batch)


# --- measure ---


def measure(folder: Path, driver: Driver, *, repeats: int = 20, cold_bytes: int = COLD_BYTES) -> Iterator[list[Timing]]:
    """Time every candidate, one matrix after the other. Kernels of a matrix share their arrays."""
    document = json.loads((folder / CANDIDATES_FILE).read_text())
    kernels, modules = document["kernels"], {}
    for file in sorted({kernel["file"] for kernel in kernels.values()}):
        modules[file] = driver.load(folder / file)
    functions = {
        name: driver.function(modules[each["file"]], each["entry"], each["shared_bytes"])
        for name, each in kernels.items()
    }
    for matrix, planes in document["weights"].items():
        timings = []
        candidates = [Candidate(**each) for each in document["candidates"] if each["matrix"] == matrix]
        arrays = Arrays(driver, planes, cold_bytes)
        for each in candidates:
            launches = [
                (functions[name], *sized(kernels[name], each.batch, arrays, copy))
                for copy in range(arrays.copies)
                for name in each.kernels
            ]
            seconds = graph_seconds(driver, launches, repeats) / arrays.copies
            rate = arrays.weight_bytes / seconds / 1e9
            timings.append(Timing(matrix, each.batch, each.shape, each.chosen, seconds * 1e6, rate))
        arrays.free()
        yield timings


class Arrays:
    """The arrays of one matrix's kernels by role, allocated when they are first used; ``copies`` of its weights."""

    def __init__(self, driver: Driver, planes: Mapping[str, int], cold_bytes: int) -> None:
        self._driver, self._planes = driver, planes
        self.weight_bytes = sum(planes.values())
        self.copies = -(-cold_bytes // self.weight_bytes)
        self._addresses: dict[str, tuple[int, int]] = {}
        self._allocated: list[int] = []

    def address(self, role: str, size: int, copy: int) -> int:
        """An array of at least ``size`` bytes of zeros; that of a weight's plane for one of the copies."""
        name = f"{role} {copy}" if role in self._planes else role
        size = self._planes.get(role, size)
        if name not in self._addresses or self._addresses[name][1] < size:
            address = self._driver.allocate(size)
            self._allocated.append(address)
            self._addresses[name] = address, size
            self._driver.clear(address, size)
        return self._addresses[name][0]

    def free(self) -> None:
        self._driver.wait(self._driver.record())
        for address in self._allocated:
            self._driver.free(address)


def sized(kernel: Mapping[str, Any], batch: int, arrays: Arrays, copy: int) -> tuple[tuple[int, int], int, Arguments]:
    """A kernel's grid, threads and arguments for a number of rows."""
    dims = {"S": batch}
    x, y = (evaluate(size, dims) for size in kernel["grid"])
    # No input or result of these matrices has more columns than this, in float32.
    widest = 4 * max(1, batch) * (1 << 18)
    addresses = [
        arrays.address(
            role, 4 * evaluate(kernel["scratch"][role[8:]], dims) if role[:8] == "scratch." else widest, copy
        )
        for role in kernel["buffers"]
    ]
    values = np.array([*addresses, *(evaluate(scalar, dims) for scalar in kernel["scalars"])], np.uint64)
    return (x, y), kernel["threads"], Arguments(values)


def graph_seconds(
    driver: Driver, launches: Sequence[tuple[Any, tuple[int, int], int, Arguments]], repeats: int
) -> float:
    """The median time of a graph of launches."""

    def submit(launch: Any = driver.launch) -> None:
        for each in launches:
            launch(*each)

    graph = driver.capture(submit)
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        driver.replay(graph)
        driver.wait(driver.record())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def print_best(timings: Sequence[Timing]) -> None:
    """The fastest shape of each matrix and number of rows, and that which the rules choose."""
    table = Table(title="projections on CUDA: the best of all candidates, and the choice of tuning.py")
    columns = ("matrix", "rows", "best", "us", "GB/s of weights", "chosen", "us", "times slower", "us, best of each")
    for column in columns:
        table.add_column(column)
    for matrix, batch in dict.fromkeys((each.matrix, each.batch) for each in timings):
        own = [each for each in timings if (each.matrix, each.batch) == (matrix, batch)]
        best = min(own, key=lambda each: each.microseconds)
        # The rules may choose another kernel than those that were selected.
        rule = next((each for each in own if each.chosen), best)
        ratio = rule.microseconds / best.microseconds
        texts = [
            (described(each.shape), f"{each.microseconds:.1f}", f"{each.weight_gigabytes_per_second:.0f}")
            for each in (best, rule)
        ]
        each_best = {
            name: min(each.microseconds for each in own if each.shape["kernel"] == name)
            for name in KERNELS
            if any(each.shape["kernel"] == name for each in own)
        }
        of_kernels = " ".join(f"{name} {microseconds:.1f}" for name, microseconds in each_best.items())
        table.add_row(matrix, str(batch), *texts[0], *texts[1][:2], f"{ratio:.2f}", of_kernels)
    Console(width=260).print(table)


def described(shape: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in shape.items() if name not in ("dtype", "max_batch"))


if __name__ == "__main__":
    main()
