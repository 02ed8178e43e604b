"""Decode steps as one persistent kernel each, beside CUDA graphs in the same process: equal tokens and logits, and the
times of both. A kernel that hangs gives up by itself after some seconds, or its worker is ended, and the next one goes
on.

`prepare` compiles the kernels on the machine that has NVRTC, because the GPU's may have none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .case_worker import CASE_SECONDS, run_cases, work
from .cases import CUDA
from .prepared import DEMO_CUDA, FACTS_FILE, bundle_name
from .random_weights import with_random_weights
from .report import Report
from .sizes import sizes

if TYPE_CHECKING:
    from nearfar.compiler.runtime.batch import Batch
    from nearfar.compiler.runtime.runner import Output
    from nearfar.targets.cuda.persistent import PersistentOptions
    from nearfar.targets.cuda.runner import CudaRunner

    from .part import Job

FOLDER, ROWS = "persistent", "persistent.jsonl"
# Threads of a workgroup. A runner takes the second, or the third if the second spills registers.
THREADS = (512, 384, 256)
SANITIZER = "compute-sanitizer"
SANITIZER_FOLDER = "/usr/local/cuda/bin"
# It slows kernels down, and must not make them give up.
SANITIZER_SECONDS, SANITIZER_PATIENCE_SECONDS = 120.0, 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A model by the name of its bundle, the batch, and the threads of the kernel's workgroups. Each sequence has
    ``context`` tokens before ``steps`` more.
    """

    model: str
    bundle: str
    sequences: int
    threads: int
    context: int
    steps: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.sequences} sequences, {self.threads} threads"


def cases(*, rehearse: bool) -> Iterator[Case]:
    """One sequence with every number of threads, more with the runner's first."""
    chosen = sizes(rehearse=rehearse)
    for model in ("demo", *chosen.far):
        bundle = DEMO_CUDA if model == "demo" else bundle_name(model, CUDA)
        for sequences in (1,) if rehearse else (1, 2, 4):
            for threads in THREADS if sequences == 1 and not rehearse else THREADS[1:2]:
                yield Case(model, bundle, sequences, threads, chosen.lengths[0], chosen.alone_tokens)


def prepare(folder: Path, *, rehearse: bool) -> None:
    """Compile the kernels of all cases, whose bundles are in ``folder``. Weights may be missing."""
    from nearfar.compiler.bundle.folder import Bundle
    from nearfar.compiler.bundle.manifest import GENERATE, MANIFEST_FILE, Manifest
    from nearfar.targets.cuda.nvrtc import compile_cubin
    from nearfar.targets.cuda.persistent import compile_persistent
    from nearfar.targets.cuda.runner import SAME_DIMS

    kernels = folder / FOLDER
    kernels.mkdir()
    for case in cases(rehearse=rehearse):
        path = folder / case.bundle
        bundle = Bundle(path, Manifest.model_validate_json((path / MANIFEST_FILE).read_bytes()))
        activation = bundle.manifest.activations[0].dtype
        reports: dict[str, str] = {}

        def compile_now(source: str, arch: str, name: str, reports: dict[str, str] = reports) -> tuple[bytes, str]:
            cubin, reports["text"] = compile_cubin(source, arch, name)
            return cubin, reports["text"]

        options = options_of(case, compile_now)
        same = dict.fromkeys(SAME_DIMS, 0)
        compiled = compile_persistent(bundle, GENERATE, activation, case.sequences, same, options)
        file = kernels / compiled.entry
        file.with_suffix(".cu").write_text(compiled.source)
        file.with_suffix(".cubin").write_bytes(compiled.cubin)
        file.with_suffix(".txt").write_text(reports["text"])


def options_of(case: Case, compile_now: Any, patience_seconds: float = 2.0) -> PersistentOptions:
    from nearfar.targets.cuda.persistent import PersistentOptions

    return PersistentOptions((case.threads,), 1 << 20, patience_seconds, compile_now)


def run(job: Job, report: Report) -> None:
    import cuda.bindings.driver  # noqa: F401

    for case in cases(rehearse=job.rehearse):
        with_random_weights(job.prepared / case.bundle)
    command = [sys.executable, "-m", "gpu_check.persistent_kernel", str(job.prepared), str(job.work)]
    report.add_figures(sanitizer=sanitized(command, report))
    rows = job.work / ROWS
    try:
        run_cases(command, report, job.limit(CASE_SECONDS))
    finally:
        if rows.exists():
            report.add_figures(models=[json.loads(line) for line in rows.read_text().splitlines()])


def sanitized(command: list[str], report: Report) -> str:
    """Two steps of the demo model under NVIDIA's detector of races in shared memory, if the machine has it."""
    found = shutil.which(SANITIZER) or shutil.which(SANITIZER, path=SANITIZER_FOLDER)
    if found is None:
        return f"{SANITIZER} was not found"
    checked = [found, "--tool", "racecheck", "--error-exitcode", "9", *command, "sanitize"]
    try:
        done = subprocess.run(checked, capture_output=True, text=True, timeout=SANITIZER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"took more than {SANITIZER_SECONDS:g} s"
    print(done.stdout[-4000:], done.stderr[-4000:])
    if done.returncode:
        report.fail(f"{SANITIZER} ended with {done.returncode}: {done.stdout[-300:]}")
        return "hazards"
    return "no hazards"


def main(folder: Path, work_folder: Path, first: str) -> None:
    """The main function of the worker; ``first`` "sanitize" instead of a number: two steps of the first case."""
    from nearfar.targets.cuda.driver import NvidiaDriver

    rehearse = bool(json.loads((folder / FACTS_FILE).read_text())["rehearsal"])
    listed = list(cases(rehearse=rehearse))

    if first == "sanitize":
        case = next(case for case in listed if case.threads == THREADS[1])
        small = Case(case.model, case.bundle, case.sequences, case.threads, context=3, steps=2)
        measure(folder, small, SANITIZER_PATIENCE_SECONDS)
        return

    def run_one(case: Case) -> None:
        row = measure(folder, case)
        with (work_folder / ROWS).open("a") as file:
            file.write(json.dumps(row) + "\n")

    driver = NvidiaDriver()
    facts = {"device": driver.name, "arch": driver.arch}
    driver.close()
    work(listed, facts, lambda case: case.name, run_one, int(first))


def measure(folder: Path, case: Case, patience_seconds: float = 2.0) -> dict[str, Any]:
    """The times of both. Raises AssertionError if the tokens or the last logits differ."""
    import numpy as np

    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.errors import ToolError
    from nearfar.compiler.runtime.runner import Limits
    from nearfar.targets.cuda.runner import CudaRunner

    def prepared(source: str, arch: str, name: str) -> tuple[bytes, str]:  # noqa: ARG001
        for file in (folder / FOLDER).glob("*.cu"):
            if file.read_text() == source:
                return file.with_suffix(".cubin").read_bytes(), file.with_suffix(".txt").read_text()
        raise ToolError("this persistent kernel was not prepared")

    bundle = open_bundle(folder / case.bundle)
    pages = bundle.manifest.pages_for(case.context + case.steps)
    count = case.sequences
    limits = Limits(tokens=case.context * count, sequences=count, rows=count, pages=pages * count)
    graphs = CudaRunner(bundle, limits=limits)
    expected, expected_logits, graph_seconds = decode(graphs, case, pages)
    graphs.close()
    runner = CudaRunner(bundle, limits=limits, persistent=options_of(case, prepared, patience_seconds))
    kernel = runner.persistent_kernel
    try:
        assert kernel is not None, "no persistent kernel; the log says why"
        assert case.sequences in kernel.programs, kernel.refused[case.sequences]
        tokens, logits, seconds = decode(runner, case, pages)
        assert case.sequences in kernel.programs, kernel.refused[case.sequences]
        program = kernel.programs[case.sequences]
    finally:
        runner.close()
    assert tokens == expected, f"tokens {tokens[:20]} instead of {expected[:20]}"
    assert np.array_equal(logits, expected_logits, equal_nan=True), "the last logits differ"
    time_of = "milliseconds_per_token" if case.sequences == 1 else "milliseconds_per_step"
    return {
        **asdict(case),
        f"graph_{time_of}": graph_seconds * 1e3,
        time_of: seconds * 1e3,
        "workgroups": program.workgroups,
        "registers": program.compiled.registers,
        "spilled_bytes": program.compiled.spilled_bytes,
        "shared_bytes": program.compiled.shared_bytes,
    }


def decode(runner: CudaRunner, case: Case, pages: int) -> tuple[list[int], Any, float]:
    """Greedy tokens of all steps, the logits after the last one, and the seconds of a step. Ids stay on the device."""
    from nearfar.compiler.runtime.batch import Chunk, make_batch

    page_size = runner.manifest.page_size
    own = [range(i * pages, (i + 1) * pages) for i in range(case.sequences)]

    def first_chunk(number: int) -> Chunk:
        token_ids = [1 + (7 * i + number) % 97 for i in range(case.context)]
        return Chunk(token_ids, 0, own[number], [case.context - 1], slot=number)

    def step(start: int) -> Batch:
        return make_batch([Chunk([-1 - i], start, own[i], [0], slot=i) for i in range(case.sequences)], page_size)

    def all_steps() -> tuple[list[Output], float]:
        runner.forward(make_batch([first_chunk(i) for i in range(case.sequences)], page_size))
        started = time.perf_counter()
        futures = [runner.submit(step(case.context + i)) for i in range(case.steps)]
        outputs = [future.result() for future in futures]
        return outputs, (time.perf_counter() - started) / case.steps

    all_steps()
    # Steps launch kernel by kernel until their graph has been captured in the background.
    runner.wait_for_graphs()
    outputs, seconds = all_steps()
    return [int(token) for output in outputs for token in output.next_token_ids], outputs[-1].logits, seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
