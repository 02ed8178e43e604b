"""A dry run: report what a compile would write and how long it would take, without writing.

Everything but the time is exact: the spec, graph, kernels and layout of the weights are made as in a compile, and they
need no weights. Kernels are lowered, because their sizes are unknown until then.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bundle.check import manifest_file
from ..bundle.entries import FileEntry
from ..bundle.manifest import MANIFEST_FILE, ExportManifest, Manifest
from ..formats.checkpoint import Checkpoint
from ..ir.plan import union
from ..names import EXPORTS
from ..pipeline.compile import build, prepare, require_export
from ..pipeline.export import export_manifest, prepare_export
from ..pipeline.options import CompileOptions, Note, Progress
from ..pipeline.self_test import LENGTH
from ..pipeline.store import NO_HASH, SizeStore
from ..pipeline.weights import PACKING_THREADS, StoredWeight, lay_out_weights, read_and_pack
from ..quant import Quantization
from ..quant.layout import rows_per_tile
from .report import ExportReport, Report, make_export_report, make_report

# Elements that are converted as a sample: 0.1 s or less on a desktop.
SAMPLE_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of the phases that a dry run skips, in seconds of wall time.

    The first rows of the largest matrix (``sample_elements`` weights) were read, packed, unpacked, and multiplied as in
    the self-test. The time for all ``elements`` is proportional; packing runs on PACKING_THREADS threads.
    """

    elements: int
    sample_elements: int
    weights_seconds: float
    self_test_seconds: float


@dataclass(frozen=True, slots=True)
class DryRun:
    """``sizes``: bytes of every file by its path in the bundle. A self-test adds a few kB to the manifest's; with
    one, a bundle for WebGPU has a probe besides, of up to 100 kB.
    """

    report: Report | ExportReport
    sizes: Mapping[str, int]
    has_self_test: bool
    estimate: Estimate


def dry_run(
    model: str, options: CompileOptions, progress: Progress = lambda *_: None, note: Note = lambda _: None
) -> DryRun:
    """Raises what `compile_any` raises for everything but the weights' values and the output."""
    if options.target in EXPORTS:
        return dry_export(model, options, progress, note)
    job = prepare(model, options, progress, note)
    store = SizeStore()
    manifest: Manifest = build(job, store, progress)
    estimate = estimate_time(job.checkpoint, store.stored, job.quantization, self_test=options.self_test)
    return DryRun(make_report(manifest), store.sizes, options.self_test, estimate)


def dry_export(model: str, options: CompileOptions, progress: Progress, note: Note) -> DryRun:
    require_export(options)
    job = prepare_export(model, options, progress, note)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        sizes = dict(job.exporter.file_sizes(job.checkpoint, job.graphs, job.options, Path(folder)))
    files = [FileEntry(file=file, size=size, sha256=NO_HASH) for file, size in sorted(sizes.items())]
    manifest: ExportManifest = export_manifest(job, files)
    sizes[MANIFEST_FILE] = len(manifest_file(manifest, indent=1))
    parameters = union(graph.parameters for graph in job.graphs.values())
    stored = lay_out_weights(parameters, job.options.quantization, "rows")
    estimate = estimate_time(job.checkpoint, stored, job.options.quantization, self_test=False)
    return DryRun(make_export_report(manifest), sizes, False, estimate)


def estimate_time(
    checkpoint: Checkpoint, stored: Sequence[StoredWeight], quantization: Quantization, *, self_test: bool
) -> Estimate:
    """See `Estimate`. Raises CheckpointError or QuantizationError for the sample's values."""
    elements = sum(each.parameter.rows * (each.parameter.columns or 1) for each in stored)
    largest = max(
        (each for each in stored if each.parameter.columns),
        key=lambda each: each.parameter.rows * (each.parameter.columns or 1),
    )
    columns = largest.parameter.columns or 1
    tile = rows_per_tile(largest.entry.layout)
    rows = min(largest.parameter.rows, max(1, SAMPLE_ELEMENTS // (columns * tile)) * tile)
    sample = rows * columns
    started = time.perf_counter()
    read_and_pack(checkpoint, largest, 0, rows, quantization)
    packing = time.perf_counter() - started
    threads = min(PACKING_THREADS, os.cpu_count() or 1)
    testing = self_test_seconds(rows, columns, quantization) if self_test else 0.0
    return Estimate(elements, sample, elements / sample * packing / threads, elements / sample * testing)


def self_test_seconds(rows: int, columns: int, quantization: Quantization) -> float:
    """The time to unpack a matrix of zeros and multiply its rows by the self-test's tokens in two dtypes."""
    planes = quantization.pack(np.zeros((rows, columns), np.float32))
    tokens = np.zeros((LENGTH, columns), np.float32)
    started = time.perf_counter()
    weights = quantization.unpack(planes, columns)
    for _ in range(2):
        tokens @ weights.T
    return time.perf_counter() - started
