"""Decode steps of few sequences as one launch each: a persistent kernel (`persistent_source.py`), compiled when the
model is loaded, and for each size of batches the phases that it computes, which are those that a CUDA graph would
launch.

It is used only on request, and after a trial on the GPU with the same logits. A launch whose workgroups wait for each
other too long gives up, and says so in a word that is read after every batch; then the batch fails, and the runner uses
graphs.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError, ToolError
from nearfar.compiler.runtime.variant import KernelChoice

from .arch import max_dynamic_bytes, parse_arch
from .decode_graphs import Bucket, contexts_up_to
from .driver import Arguments, Driver
from .launches import Launches
from .memory import ALIGNMENT
from .nvrtc import compile_cubin
from .persistent_source import (
    MOST_VALUES,
    PHASE_BYTES,
    NotPossible,
    persistent_source,
    pool_bytes_of,
    split_kernels,
    team_function,
)

# Set to 1 to ask for it.
VARIABLE = "NEARFAR_PERSISTENT_KERNEL"
# Larger batches are bound by the matrices' products.
MOST_SEQUENCES = 4
# GPUs run at 2.1 GHz at most.
CYCLES_PER_SECOND = 2.1e9
# The inputs of the plans that it runs: of models that read text and keep keys and values only.
INPUTS = frozenset(
    ("token_ids", "positions", "slots", "seq_starts", "page_indptr", "page_ids", "sample_rows", "sample_slots",
     "sample_settings", "adapters", "window_slots", "window_page_indptr", "window_page_ids")
)  # fmt: skip
SPILLED = re.compile(r"(\d+) bytes spill stores")
REGISTERS = re.compile(r"Used (\d+) registers")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PersistentOptions:
    """``threads`` of a workgroup, of which each multiprocessor has one: the first number is used that spills at most
    ``most_spilled_bytes`` of registers, because more threads have more bytes in flight. A workgroup gives up after
    ``patience_seconds`` of waiting for the others. ``compile`` makes a cubin, as `nvrtc.compile_cubin`.
    """

    threads: Sequence[int] = (384, 256)
    most_spilled_bytes: int = 64
    patience_seconds: float = 2.0
    compile: Callable[[str, str, str], tuple[bytes, str]] = compile_cubin


def requested_options() -> PersistentOptions | None:
    """None if the environment does not ask for persistent kernels. Raises RequestError for a wrong value."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise RequestError(f"{VARIABLE}={value}: must be 1, or 0 for CUDA graphs")
    return PersistentOptions() if value == "1" else None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A persistent kernel for one number of sequences: the kernels that are its functions, by name in their order; the
    threads and the shared memory of a workgroup; and what the compiler reports.
    """

    kernels: tuple[str, ...]
    entry: str
    source: str
    cubin: bytes
    threads: int
    shared_bytes: int
    registers: int
    spilled_bytes: int


def compile_persistent(
    bundle: Bundle,
    plan: str,
    activation: str,
    size: int,
    dims: Mapping[str, int],
    options: PersistentOptions,
) -> Compiled:
    """The persistent kernel that computes decode steps of ``size`` sequences of any length. ``dims`` are those that are
    equal for all batches. Raises NotPossible, BundleError for source that is not the manifest's, and ToolError.
    """
    manifest = bundle.manifest
    assert manifest.arch is not None
    entry = manifest.plan(plan)
    if others := sorted(entry.inputs.keys() - INPUTS):
        raise NotPossible(f"the model reads {', '.join(others)} with every batch")
    batches = [Bucket(size, context).dims(dims) for context in contexts_up_to(manifest.context)]
    choice = KernelChoice(manifest, activation, ())
    # In the order of the steps.
    kernels = {
        name: manifest.kernels[name]
        for batch in batches
        for names in choice.of(plan, batch).values()
        for name in names
        if all(evaluate(count, batch) for count in manifest.kernels[name].grid)
    }
    head, texts = "", dict[str, str]()
    for file in sorted({kernel.file for kernel in kernels.values()}):
        # All files have the same head.
        head, more = split_kernels(bundle.kernel_file(Path(file).with_suffix(".cu").as_posix()).decode())
        texts |= more
    functions = {
        name: team_function(kernel.entry, texts[kernel.entry], kernel.shared_bytes) for name, kernel in kernels.items()
    }
    most_bytes = max_dynamic_bytes(parse_arch(manifest.arch).gpu)
    reasons = []
    for count in options.threads:
        entry_name, source = persistent_source(head, functions, count, most_bytes)
        cubin, report = options.compile(source, manifest.arch, "persistent.cu")
        registers, spilled = (int(match[1]) if (match := each.search(report)) else 0 for each in (REGISTERS, SPILLED))
        if spilled <= options.most_spilled_bytes:
            shared_bytes = pool_bytes_of(functions, count, most_bytes)
            return Compiled(tuple(functions), entry_name, source, cubin, count, shared_bytes, registers, spilled)
        reasons.append(f"{count} threads spill {spilled} bytes of registers")
    raise NotPossible("; ".join(reasons))


@dataclass(frozen=True, slots=True)
class Program:
    """A persistent kernel on the device, and its workgroups."""

    function: Any
    workgroups: int
    compiled: Compiled


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a bucket on the device, and the kernel of each."""

    address: int
    kernels: tuple[str, ...]


class PersistentKernel:
    """``sizes`` as for `decode_graphs.bucket_of`; ``dims`` are those that are equal for all batches.
    Calls come from one thread at a time. ``refused`` has the reason for each number of sequences that it does not run.
    ``gave_up``: a launch has given up, and all later ones do nothing.
    """

    def __init__(
        self,
        driver: Driver,
        bundle: Bundle,
        plan: str,
        activation: str,
        launches: Launches,
        sizes: Sequence[int],
        dims: Mapping[str, int],
        options: PersistentOptions,
    ) -> None:
        self._driver, self._plan, self._dims, self._launches = driver, plan, dims, launches.for_another_thread()
        self._patience_seconds = options.patience_seconds
        # The arrivals at all ends of phases so far, and the word that says whether a launch has given up.
        self._arrivals = driver.allocate(2 * ALIGNMENT)
        driver.clear(self._arrivals, 2 * ALIGNMENT)
        self._arrived = 0
        self._phases: dict[Bucket, Phases] = {}
        self._last: Phases | None = None
        self.programs: dict[int, Program] = {}
        self.refused: dict[int, str] = {}
        self.gave_up = False
        for size in (size for size in sizes if size <= MOST_SEQUENCES):
            try:
                self.programs[size] = self._loaded(compile_persistent(bundle, plan, activation, size, dims, options))
            except (NotPossible, ToolError, BundleError, DeviceError) as reason:
                self.refuse(size, str(reason))

    def run(self, bucket: Bucket) -> bool:
        """Submit a step of a bucket. False: nothing was submitted, because it does not adjust logits, return
        alternatives or use adapters, or has no kernel for this many sequences.
        """
        program = self.programs.get(bucket.sequences)
        if program is None or bucket != Bucket(bucket.sequences, bucket.context):
            return False
        if bucket not in self._phases:
            try:
                self._phases[bucket] = self._describe(program, bucket)
            except NotPossible as reason:
                self.refuse(bucket.sequences, str(reason))
                return False
        phases = self._last = self._phases[bucket]
        values = [phases.address, len(phases.kernels), self._arrivals, self._failed, self._arrived]
        values.append(int(self._patience_seconds * CYCLES_PER_SECOND))
        arguments = Arguments(np.array(values, np.uint64))
        self._driver.launch_together(program.function, program.workgroups, program.compiled.threads, arguments)
        self._arrived = (self._arrived + len(phases.kernels) * program.workgroups) % 2**32
        return True

    def refuse(self, size: int, reason: str) -> None:
        """Do not run batches of this many sequences."""
        self.programs.pop(size, None)
        self.refused[size] = reason
        log.warning("no persistent kernel for %d sequences: %s", size, reason)

    def watch(self, word: npt.NDArray[np.uint32]) -> Callable[[], None]:
        """Start to read whether a launch up to now has given up, into a word of pinned memory. Call the result once the
        word is there: it raises DeviceError in that case.
        """
        self._driver.download(word, self._failed)
        kernels = self._last.kernels if self._last is not None else ()

        def check() -> None:
            phase = int(word[0])
            if not phase:
                return
            self.gave_up = True
            name = f" ({kernels[phase - 1]})" if phase <= len(kernels) else ""
            waited = f"more than {self._patience_seconds:g} s in front of phase {phase} of {len(kernels)}{name}"
            raise DeviceError(
                f"{self._driver.name}: the workgroups of the persistent kernel waited for each other for {waited}; "
                "later steps run as CUDA graphs, so send the request again"
            )

        return check

    @property
    def _failed(self) -> int:
        return self._arrivals + ALIGNMENT

    def _loaded(self, compiled: Compiled) -> Program:
        """Raises NotPossible and DeviceError."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "persistent.cubin"
            file.write_bytes(compiled.cubin)
            file.with_suffix(".cu").write_text(compiled.source)
            function = self._driver.function(self._driver.load(file), compiled.entry, compiled.shared_bytes)
        workgroups = self._driver.resident_workgroups(function, compiled.threads)
        if not workgroups:
            size = f"{compiled.threads} threads with {compiled.shared_bytes} bytes of shared memory"
            raise NotPossible(f"this GPU has no room for {size}")
        return Program(function, workgroups, compiled)

    def _describe(self, program: Program, bucket: Bucket) -> Phases:
        """Upload the phases of a bucket, as `persistent.cuh` declares them. Raises NotPossible for other kernels."""
        dims = bucket.dims(self._dims)
        numbers = {name: number for number, name in enumerate(program.compiled.kernels)}
        kernels, rows = [], []
        for name, sized, arguments in self._launches.sized(self._plan, self._launches.steps(self._plan, dims), dims):
            if name not in numbers:
                raise NotPossible(f"a step of {bucket.context} tokens needs {name}, which longer ones do not")
            columns, lines = sized.grid
            values = np.zeros(MOST_VALUES, np.uint64)
            values[: len(arguments.values)] = arguments.values
            head = np.array([numbers[name], columns * lines, columns, 0], np.uint32)
            rows.append(np.concatenate([head.view(np.uint64), values]))
            kernels.append(name)
        data = np.stack(rows)
        assert data.nbytes == PHASE_BYTES * len(kernels)
        address = self._driver.allocate(data.nbytes)
        self._driver.upload(address, data)
        return Phases(address, tuple(kernels))
