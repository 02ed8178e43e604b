"""The benchmark runs to its end on an emulated GPU. Its figures mean nothing here."""

from __future__ import annotations

from pathlib import Path

import bench_cuda_projections
import bench_cuda_sass
import pytest
import sass
from bench_cuda import (
    kernel_times,
    measure_alone,
    measure_copies,
    measure_many,
    print_result,
    print_times,
    step_shares,
    weight_bytes_read,
)
from emulated_driver import EmulatedDriver

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.quant.kernel_format import WeightFormat
from nearfar.targets.cuda.tuning import tuning_for


# test_cuda_served.py has an engine of many sequences.
@pytest.mark.exhaustive
def test_many_sequences_run_in_mixed_steps_and_through_the_engine(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    result = measure_many(open_bundle(cuda_bundle), driver, 3, (2, 9), step_tokens=6)
    assert result.sequences == 3
    assert 6 <= result.new_tokens <= 27
    # Three prompts of 2 to 9 tokens do not fit into one step of 6.
    assert result.mixed_steps >= 2
    assert result.decode_steps > 0
    assert 0 < result.first_tokens_seconds < result.seconds
    assert result.new_tokens_per_second == result.new_tokens / result.seconds
    assert result.engine_new_tokens_per_second == result.new_tokens / result.engine_seconds
    # Decoding runs in graphs, one for each bucket of sequences.
    assert result.graphs is not None
    assert result.graphs.captured >= 2
    assert result.graphs.replayed > result.graphs.launched
    print_result("tiny", result)


# The next ones time kernels, and test_cuda_runner.py replays graphs.
@pytest.mark.exhaustive
def test_one_sequence_is_measured_against_copies(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    speed = measure_copies(driver, 1 << 20)
    result = measure_alone(open_bundle(cuda_bundle), driver, speed, 2, 2)
    read = result.bytes_per_token / (result.milliseconds_per_token / 1e3)
    assert result.of_copy_bandwidth == pytest.approx(read / speed)
    # The measured steps are graphs.
    assert driver.replayed >= 2
    print_result("tiny", result)


def test_a_token_reads_all_weights_except_an_embedding_that_is_not_the_head(cuda_bundle: Path) -> None:
    manifest = open_bundle(cuda_bundle).manifest
    embed, *others = manifest.plan("generate").steps
    assert embed.op == "embed"
    table = embed.inputs["table"]

    def read(head: str) -> int:
        """The result for the head's matrix ``head``."""
        steps = [step.model_copy(update={"inputs": {**step.inputs}}) for step in others]
        next(step for step in reversed(steps) if step.op == "linear").inputs["weight"] = head
        plan = manifest.plan("generate").model_copy(update={"steps": [embed, *steps]})
        return weight_bytes_read(manifest.model_copy(update={"plans": {"generate": plan}}))

    table_bytes = sum(plane.size for plane in manifest.weights[table].planes)
    assert table_bytes > 0
    assert read(table) - read("another") == table_bytes


# The next test times the kernels of one op.
@pytest.mark.exhaustive
def test_every_kernel_that_fits_is_timed(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    bundle = open_bundle(cuda_bundle)
    times = kernel_times(bundle, driver, "float16", ((1, 1), (1, 33)))
    driver.close()
    names = {time.variant for time in times}
    plan = bundle.manifest.plan("generate")
    assert {time.op for time in times} == {step.op for step in plan.steps}
    assert any("rows16" in name for name in names)
    assert any(name.startswith("attention_decode") for name in names)
    for time_of_batch in step_shares(times):
        assert sum(time_of_batch["shares"].values()) == pytest.approx(1)
    # A forward runs one variant of every step.
    assert sum(time.steps for time in times if time.chosen) == 2 * len(plan.steps)
    # The kernels of a variant that a forward runs are also timed one by one.
    several = [time for time in times if time.chosen and " + " in time.variant]
    assert {name for time in several for name in time.variant.split(" + ")} <= names
    assert several
    print_times(times)


def test_the_choice_of_tokens_is_timed_by_its_settings(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    settings = Settings(temperature=1, top_p=0.5, draw=0.5)
    times = kernel_times(open_bundle(cuda_bundle), driver, "float16", [(3, 1)], settings)
    driver.close()
    assert {time.op for time in times} == {"sample"}
    assert [time.chosen for time in times].count(True) == 1


# The next test measures candidates as well, for one row.
@pytest.mark.exhaustive
def test_candidates_of_projections_are_compiled_and_timed(tmp_path: Path, emulated_cuda: Path) -> None:
    bench = bench_cuda_projections
    matrices = {"tiny": (256, 24, bench.NORMED), "gated": (256, 24, {**bench.NORMED, **bench.GATED})}
    bench.prepare(tmp_path, "sm_90", "q4f16", matrices, (3,))
    driver = EmulatedDriver(emulated_cuda)
    plain, gated = bench.measure(tmp_path, driver, repeats=1, cold_bytes=4000)
    driver.close()
    timings = [*plain, *gated]
    assert sum(each.chosen for each in plain) == sum(each.chosen for each in gated) == 1
    assert {each.shape["splits"] for each in plain} == {1, 2}
    assert all(each.microseconds > 0 for each in timings)
    bench_cuda_projections.print_best(timings)


@pytest.mark.exhaustive
def test_both_kernels_for_one_row_are_timed(tmp_path: Path, emulated_cuda: Path) -> None:
    matrix = {"tiny": (700, 20, {**bench_cuda_projections.NORMED, **bench_cuda_projections.GATED})}
    bench_cuda_projections.prepare(tmp_path, "sm_90", "q4f16", matrix, (1,))
    driver = EmulatedDriver(emulated_cuda)
    (timings,) = bench_cuda_projections.measure(tmp_path, driver, repeats=1, cold_bytes=4000)
    driver.close()
    assert {each.shape["kernel"] for each in timings} == {"vector", "few", "mma"}
    (chosen,) = (each for each in timings if each.chosen)
    assert chosen.shape["kernel"] == "few"
    bench_cuda_projections.print_best(timings)


def test_narrow_matrices_are_timed_with_wgmma_too() -> None:
    columns, outputs, options = bench_cuda_projections.MATRICES["0.6B o"]
    facts = bench_cuda_projections.projection(columns, outputs, WeightFormat("q4", "float16"), options)
    kinds = {shape["kernel"] for shape, _, _ in bench_cuda_projections.variants_for(facts, tuning_for("sm_90"), 64)}
    assert kinds == {"mma", "wgmma"}


def test_the_rules_choose_one_of_the_candidates_for_every_matrix() -> None:
    for columns, outputs, options in bench_cuda_projections.MATRICES.values():
        facts = bench_cuda_projections.projection(columns, outputs, WeightFormat("q4", "float16"), options)
        for batch in bench_cuda_projections.BATCHES:
            shapes = list(bench_cuda_projections.variants_for(facts, tuning_for("sm_90"), batch))
            assert [chosen for _, chosen, _ in shapes].count(True) == 1
            assert len(shapes) == len({str(shape) for shape, _, _ in shapes})


# test_sass.py counts the instructions of the kernels.
@pytest.mark.exhaustive
@pytest.mark.usefixtures("nvrtc")
def test_instructions_of_both_kernels_for_one_row_are_counted() -> None:
    if sass.disassembler() is None:
        from conftest import lacks

        lacks("nvdisasm is not installed; pip install nvidia-cuda-nvdisasm")
    columns, outputs, options = bench_cuda_projections.MATRICES["8B down"]
    facts = bench_cuda_projections.projection(columns, outputs, WeightFormat("q4", "float16"), options)
    before, after = bench_cuda_sass.counts_of("8B down", facts, 1)
    assert (before.template, after.template) == ("linear_async", "linear_few")
    assert before.spilled_bytes == after.spilled_bytes == 0
    assert before.instructions_per_weight > 3.5
    assert after.instructions_per_weight < 2.1
    bench_cuda_sass.print_counts([before, after])
