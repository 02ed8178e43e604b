"""The benchmark runs to its end on an emulated GPU, so it will on a real one. Its figures mean nothing
here.
"""

from __future__ import annotations

from pathlib import Path

from bench_cuda import kernel_times, measure, print_result, print_times
from emulated_driver import EmulatedDriver

from nearfar.compiler.bundle.folder import open_bundle


def test_the_benchmark_runs_to_its_end(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    result = measure(open_bundle(cuda_bundle), driver, 3, (2, 9), prefill_tokens=16, steps=2, copies=1)
    assert result.sequences == 3
    assert 6 <= result.new_tokens <= 27
    assert result.new_tokens_per_second > 0
    # Decoding runs in graphs, one for each bucket of sequences.
    assert driver.captured >= 3
    print_result("tiny", result)


def test_every_kernel_that_fits_is_timed(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    bundle = open_bundle(cuda_bundle)
    times = kernel_times(bundle, driver, "float16", ((1, 1), (1, 33)), 1)
    driver.close()
    names = {time.variant for time in times}
    assert {time.op for time in times} == {step.op for step in bundle.manifest.plan("generate").steps}
    assert any("rows16" in name for name in names)
    assert any(name.startswith("attention_decode") for name in names)
    print_times(times)
