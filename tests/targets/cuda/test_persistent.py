"""Decode steps as one launch of a persistent kernel, on the emulator: the logits and tokens of the plan's own kernels
in many orders of workgroups, the faults that the emulator finds, what is refused, and what follows a launch that gave
up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from light_bundle import one_compilation
from tiny_models import make_checkpoint

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import COUNTS, Settings
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError, RequestError, ToolError
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cuda import persistent
from nearfar.targets.cuda.persistent import VARIABLE, PersistentOptions, requested_options
from nearfar.targets.cuda.persistent_source import NotPossible, persistent_source, team_function
from nearfar.targets.cuda.runner import CudaRunner

CompileTiny = Callable[..., Path]
LIMITS = Limits(tokens=16, sequences=4, rows=4, pages=8)
ALONE = replace(LIMITS, sequences=1)
TOKENS = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [7, 7]]
# The emulator compiles the source.
OPTIONS = PersistentOptions(compile=lambda *_: (b"\x7fELF", ""))
# Plausible faults of the source, each a pattern and its replacement.
FAULTS = {
    "nobody waits for the workgroup's own teams": (r"any_of\(0, \d+, gave_up\)", "gave_up"),
    "the counter is read without acquiring it": (r"load_acquire\(all->arrivals\)", "load_relaxed(all->arrivals)"),
    "phases wait for the one before the previous": (r"phase \* gridDim\.x", "(phase - 1) * gridDim.x"),
    "teams without a tile do not wait": (r"gave_up = !team\.may_go_on\(\)", "gave_up = team.gave_up"),
    "only one thread of a workgroup waits": (r"gave_up = any_of\(0, blockDim\.x, late\)", "gave_up = late"),
}


@pytest.fixture(scope="module")
def wide_bundle(tmp_path_factory: pytest.TempPathFactory, nvrtc: None) -> Path:  # noqa: ARG001
    """Its attention is on tensor cores, in one kernel whose workgroups count their arrivals. Two layers, because every
    launch is emulated word by word.
    """
    folder = tmp_path_factory.mktemp("wide")
    make_checkpoint("qwen3_wide", folder / "checkpoint", num_hidden_layers=2)
    options = CompileOptions(
        target="cuda", quantization="q4f16", context=300, activations=("float16",), self_test=False
    )
    with one_compilation():
        compile_model(str(folder / "checkpoint"), folder / "bundle", options)
    return folder / "bundle"


@pytest.fixture
def opened(wide_bundle: Path, emulated_cuda: Path) -> Iterator[Callable[..., CudaRunner]]:
    """Opens runners of a small qwen3 with a persistent kernel."""
    runners = []

    def open_one(
        limits: Limits = ALONE, missing: int = 0, multiprocessors: int = 3, options: PersistentOptions = OPTIONS
    ) -> CudaRunner:
        driver = EmulatedDriver(emulated_cuda)
        driver.missing, driver.multiprocessors = missing, multiprocessors
        runners.append(CudaRunner(open_bundle(wide_bundle), limits=limits, driver=driver, persistent=options))
        return runners[-1]

    yield open_one
    for runner in runners:
        runner.close()


def decode(size: int) -> Batch:
    return make_batch([Chunk([8], len(own), [page], [0]) for page, own in enumerate(TOKENS[:size])], 16)


def read_prompts(runner: CudaRunner) -> None:
    for page, own in enumerate(TOKENS[: runner.limits.sequences]):
        runner.forward(make_batch([Chunk(own, 0, [page])], 16))


def driver_of(runner: CudaRunner) -> EmulatedDriver:
    assert isinstance(runner._driver, EmulatedDriver)
    return runner._driver


def test_a_step_has_the_logits_of_its_graph_in_any_order_of_workgroups(opened: Callable[..., CudaRunner]) -> None:
    runner = opened(LIMITS)
    kernel = runner.persistent_kernel
    assert kernel is not None
    assert set(kernel.programs) == {1, 2, 4}
    read_prompts(runner)
    # Three sequences run in the program of four.
    for size, numbers in ((1, (1, 3)), (2, (2,)), (3, (1, 3)), (4, (2,))):
        runner._persistent = None
        expected = runner.forward(decode(size))
        expected_logits = expected.logits
        runner._persistent = kernel
        for multiprocessors in numbers:
            driver_of(runner).multiprocessors = multiprocessors
            for number, program in kernel.programs.items():
                kernel.programs[number] = replace(program, workgroups=multiprocessors)
            before = driver_of(runner).launched_together
            found = runner.forward(decode(size))
            assert driver_of(runner).launched_together == before + 1
            np.testing.assert_array_equal(found.logits, expected_logits)
            np.testing.assert_array_equal(found.next_token_ids, expected.next_token_ids)


def test_steps_go_on_from_tokens_that_only_the_device_has_seen(opened: Callable[..., CudaRunner]) -> None:
    found = []
    for uses in (True, False):
        runner = opened()
        if not uses:
            runner._persistent = None
        first = runner.submit(make_batch([Chunk([5, 6, 7], 0, [4], [2], slot=0)], 16))
        rest = [runner.submit(make_batch([Chunk([-1], 3 + i, [4], [0], slot=0)], 16)) for i in range(5)]
        found.append([int(each.result().next_token_ids[0]) for each in (first, *rest)])
        assert driver_of(runner).launched_together == (6 if uses else 1)
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("checkpoint", "options"),
    [
        ("llama", {}),
        ("mistral", {}),
        ("phi3", {}),
        ("qwen2", {"activations": ("bfloat16",)}),
        ("qwen3", {"kv": "q8"}),
        ("qwen3", {"kv": "fp8"}),
    ],
)
def test_other_models_and_formats_have_the_logits_of_their_graphs(
    compile_base: CompileTiny, emulated_cuda: Path, checkpoint: str, options: dict[str, Any]
) -> None:
    """Windows in pages of their own, fused tensors, biases, and 8-bit keys and values."""
    bundle = open_bundle(compile_base(checkpoint, target="cuda", self_test=False, **options))
    runner = CudaRunner(bundle, limits=LIMITS, driver=EmulatedDriver(emulated_cuda), persistent=OPTIONS)
    kernel = runner.persistent_kernel
    assert kernel is not None, "see the log"
    assert set(kernel.programs) == {1, 2, 4}
    read_prompts(runner)
    for size in (1, 4):
        found = runner.forward(decode(size)).logits
        runner._persistent = None
        np.testing.assert_array_equal(runner.forward(decode(size)).logits, found)
        runner._persistent = kernel
    runner.close()


def test_weights_are_being_copied_when_a_function_waits(opened: Callable[..., CudaRunner]) -> None:
    kernel = opened().persistent_kernel
    assert kernel is not None
    functions = kernel.programs[1].compiled.source.split("__device__ __forceinline__ void linear_")[1:]
    assert len(functions) >= 4
    for function in functions:
        assert function.index("copy_16_bytes(") < function.index("team.may_go_on()")


def test_more_workgroups_than_tiles_are_right(opened: Callable[..., CudaRunner]) -> None:
    """Most of ten workgroups have no tile in most phases. The trial compares the logits."""
    kernel = opened(multiprocessors=10).persistent_kernel
    assert kernel is not None
    assert kernel.programs[1].workgroups == 10


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[pytest.mark.exhaustive] * (i > 0)) for i, each in enumerate(FAULTS)]
)
def test_a_fault_of_the_source_is_found(
    opened: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with_source(monkeypatch, *FAULTS[fault])
    with pytest.raises(AssertionError, match=r"without an order between them|emulated CUDA"):
        opened(multiprocessors=10)


def test_a_trial_with_other_logits_ends_with_graphs(
    opened: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_source(monkeypatch, r"rsqrtf\(", "1.01f * rsqrtf(", most=100)
    runner = opened()
    assert runner.persistent_kernel is None
    assert "no persistent kernel for 1 sequences: its trial had other logits than the plan's own kernels" in caplog.text
    assert runner.forward(decode(1)).logits.shape == (1, 509)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_trial_that_gives_up_ends_with_graphs(
    opened: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arrives: bool
) -> None:
    """One arrival too few is expected, or nobody arrives."""
    if not arrives:
        with_source(monkeypatch, r"if \(threadIdx\.x == 0\) release_add\(arrivals\);", "")
    runner = opened(missing=int(arrives))
    phase = "phase 1 of" if arrives else "phase 2 of"
    assert f"waited for each other for more than 2 s in front of {phase}" in caplog.text
    runner.forward(decode(1))
    assert runner.persistent_kernel is None


def test_after_a_launch_that_gave_up_all_batches_in_flight_fail_and_later_ones_are_graphs(
    opened: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = opened()
    read_prompts(runner)
    expected = runner.forward(decode(1)).logits
    submitted, right = Event(), driver_of(runner).wait

    def wait(event: object) -> None:
        submitted.wait()
        right(event)

    driver_of(runner).missing = 1
    with monkeypatch.context() as patch:
        patch.setattr(driver_of(runner), "wait", wait)
        failing = [runner.submit(decode(1)) for _ in range(3)]
        submitted.set()
    # The launch might have left this in the middle of a phase.
    addresses = runner._memory.addresses
    counters = [driver_of(runner)._at(addresses[name], 4) for name in addresses if name.startswith("scratch.zeroed")]
    assert counters
    for counter in counters:
        counter[...] = 1
    for future in failing:
        with pytest.raises(
            DeviceError,
            match=r"waited for each other for more than 2 s in front of phase 1 of \d+ \(embed_\w+\); later",
        ):
            future.result()
    launched = driver_of(runner).launched_together
    np.testing.assert_array_equal(runner.forward(decode(1)).logits, expected)
    assert not any(counter.any() for counter in counters)
    assert driver_of(runner).launched_together == launched
    assert runner.persistent_kernel is None


def test_what_a_persistent_kernel_does_not_compute_is_a_graph(opened: Callable[..., CudaRunner]) -> None:
    runner = opened()
    launched = driver_of(runner).launched_together
    adjusted = Chunk([8], 3, [0], [0], Settings(repetition_penalty=1.3), slot=0, flags=COUNTS)
    for batch in (
        make_batch([Chunk([3, 1, 4], 0, [0], [2])], 16),
        make_batch([Chunk([8], 3, [0], [0])], 16, alternatives=True),
        make_batch([adjusted], 16),
    ):
        runner.forward(batch)
    assert driver_of(runner).launched_together == launched
    runner.forward(decode(1))
    assert driver_of(runner).launched_together == launched + 1


def test_a_persistent_kernel_is_used_only_on_request(
    cuda_bundle: Path, emulated_cuda: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then compiled by NVRTC."""
    for value, expected in ((None, False), ("0", False), ("1", True)):
        if value is not None:
            monkeypatch.setenv(persistent.VARIABLE, value)
        runner = CudaRunner(open_bundle(cuda_bundle), limits=ALONE, driver=EmulatedDriver(emulated_cuda))
        kernel = runner.persistent_kernel
        assert (kernel is not None) == expected
        runner.close()
    assert kernel is not None
    (compiled,) = (program.compiled for program in kernel.programs.values())
    assert (compiled.threads, compiled.spilled_bytes <= 64) == (384, True)
    assert 100 < compiled.registers <= 168


def test_reasons_against_a_persistent_kernel_are_in_the_log(
    opened: Callable[..., CudaRunner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_nvrtc(*_: object) -> tuple[bytes, str]:
        raise ToolError("compiling for CUDA 13 needs its NVRTC")

    def spilling(*_: object) -> tuple[bytes, str]:
        return b"\x7fELF", "ptxas . 80 bytes stack frame, 122 bytes spill stores, 436 bytes spill loads"

    for reason, compile_now in (("needs its NVRTC", no_nvrtc), ("256 threads spill 122 bytes", spilling)):
        assert opened(options=PersistentOptions(compile=compile_now)).persistent_kernel is None
        assert reason in caplog.text
    assert opened(multiprocessors=0).persistent_kernel is None
    assert "this GPU has no room for 384 threads" in caplog.text
    monkeypatch.setattr(persistent, "INPUTS", persistent.INPUTS - {"positions"})
    assert opened().persistent_kernel is None
    assert "the model reads positions with every batch" in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("create_barrier(x);", "uses create_barrier"),
        ("wait_for_previous_kernel();", "does not wait for the previous kernel once, with all threads"),
        ("if (S) {\n    wait_for_previous_kernel();\n    allow_next_kernel();\n  }", "with all threads"),
    ],
)
def test_kernels_that_cannot_be_functions_are_refused(body: str, reason: str) -> None:
    text = f'extern "C" __global__ void __launch_bounds__(32) one(float* x, int S) {{\n  {body}\n}}'
    with pytest.raises(NotPossible, match=reason):
        team_function("one", text, 0)


def with_source(monkeypatch: pytest.MonkeyPatch, pattern: str, replacement: str, most: int = 1) -> None:
    """Replace a pattern of the source of persistent kernels, which occurs up to ``most`` times."""

    def faulty(*arguments: Any, right: Callable[..., tuple[str, str]] = persistent_source) -> tuple[str, str]:
        entry, source = right(*arguments)
        source, count = re.subn(pattern, replacement, source)
        assert 0 < count <= most
        return entry, source

    monkeypatch.setattr(persistent, "persistent_source", faulty)


@pytest.mark.parametrize(("value", "requested"), [("1", True), ("0", False), ("", False)])
def test_the_environment_requests_the_kernel(value: str, requested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert (requested_options() is not None) == requested


def test_a_wrong_value_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "true")
    with pytest.raises(RequestError, match="NEARFAR_PERSISTENT_KERNEL=true: must be 1, or 0"):
        requested_options()
