"""Complete bundles with the CUDA runner on an emulated driver, compared with the reference, with and without graphs.
These tests use no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_driver import EmulatedDriver
from ragged import chunked_logits
from tolerances import F16, F32, relative_error

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.sampling import COUNTS, Settings
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.compiler.runtime.variant import choose_activation
from nearfar.targets.cuda import decode_graphs
from nearfar.targets.cuda.arch import require_device
from nearfar.targets.cuda.decode_graphs import Bucket, bucket_of, bucket_sizes
from nearfar.targets.cuda.runner import CudaRunner

CompileTiny = Callable[..., Path]
# A bucket has 1, 2 or 4 sequences.
LIMITS = Limits(tokens=75, sequences=4, rows=75, pages=20)


@pytest.fixture(scope="module")
def driver(emulated_cuda: Path) -> EmulatedDriver:
    return EmulatedDriver(emulated_cuda)


@pytest.fixture(scope="module")
def runner(cuda_bundle: Path, driver: EmulatedDriver) -> Iterator[CudaRunner]:
    runner = CudaRunner(open_bundle(cuda_bundle), limits=LIMITS, driver=driver)
    yield runner
    runner.close()


def test_logits_are_those_of_the_reference_in_chunks_of_any_size(
    runner: CudaRunner, cuda_bundle: Path, prompt_token_ids: list[int], driver: EmulatedDriver
) -> None:
    expected = chunked_logits(ReferenceRunner(open_bundle(cuda_bundle), activation="float16"), prompt_token_ids, 75)
    runner.wait_for_graphs()
    for chunk in (75, 33, 1):
        replayed = driver.replayed
        prompt = prompt_token_ids[: 20 if chunk == 1 else 75]
        found = chunked_logits(runner, prompt, chunk)
        assert relative_error(found, expected[: len(prompt)]) < F16, chunk
        # Only single tokens are decode steps.
        assert driver.replayed - replayed == (20 if chunk == 1 else 0)


def test_a_decode_batch_that_is_padded_computes_what_each_sequence_alone_does(
    runner: CudaRunner, driver: EmulatedDriver
) -> None:
    tokens = [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
    pages = [[7], [2], [11]]
    for own, page in zip(tokens, pages, strict=True):
        runner.forward(make_batch([Chunk(own, 0, page)], 16))
    chunks = [Chunk([8], len(own), page, [0]) for own, page in zip(tokens, pages, strict=True)]
    together = runner.forward(make_batch(chunks, 16, alternatives=True))
    logits = together.logits
    # The same with a graph, because the step above ran without one.
    runner.wait_for_graphs()
    replayed = driver.replayed
    again = runner.forward(make_batch(chunks, 16, alternatives=True))
    np.testing.assert_array_equal(again.logits, logits)
    assert driver.replayed == replayed + 1
    # The other sequences in a batch of the same size do not change a sequence's result.
    others = runner.forward(make_batch([chunks[2], Chunk([9], 1, [3], [0]), chunks[0]], 16))
    np.testing.assert_array_equal(others.logits[[2, 0]], logits[[0, 2]])
    two = runner.forward(make_batch(chunks[:2], 16))
    assert relative_error(two.logits, logits[:2]) < F16
    for row, chunk in enumerate(chunks):
        alone = runner.forward(make_batch([chunk], 16, alternatives=True))
        assert relative_error(alone.logits, logits[row : row + 1]) < F16
        assert alone.next_token_ids[0] == alone.logits.argmax() == alone.top_token_ids[0, 0]
    assert together.top_token_ids.shape == (3, 20)
    assert two.top_token_ids.shape == (0, 20)


def test_steps_go_on_from_tokens_that_only_the_device_has_seen(runner: CudaRunner, cuda_bundle: Path) -> None:
    bundle = open_bundle(cuda_bundle)
    found = []
    for each in (runner, ReferenceRunner(bundle, limits=LIMITS, activation="float16")):
        settings = Settings(repetition_penalty=1.3)
        each.write_state("token_counts", 1, np.zeros(bundle.manifest.spec.vocab_size, np.int32))
        futures: list[Future[Output]] = []
        for step in range(6):
            token = [5, 6, 7] if not step else [-2]
            start = step + 2 if step else 0
            chunk = Chunk(token, start, [4], [len(token) - 1], settings, slot=1, flags=COUNTS)
            futures.append(each.submit(make_batch([chunk], 16)))
        found.append([int(future.result().next_token_ids[0]) for future in futures])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


def test_a_graph_is_right_for_every_context_of_its_bucket(
    cuda_bundle: Path, emulated_cuda: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bucket up to 300 tokens. Its graph divides the keys into two ranges; the second is empty for up to 256
    tokens.
    """
    monkeypatch.setattr(decode_graphs, "SHORTEST_CONTEXT", 300)
    token_ids = [(5 * i * i + 3 * i) % 509 for i in range(300)]
    driver = EmulatedDriver(emulated_cuda)
    runner = CudaRunner(open_bundle(cuda_bundle), limits=replace(LIMITS, sequences=1), driver=driver)
    reference = ReferenceRunner(open_bundle(cuda_bundle), limits=LIMITS, activation="float16")
    for each in (runner, reference):
        for start in range(0, 300, 75):
            each.forward(make_batch([Chunk(token_ids[start : start + 75], start, range(19))], 16))
    runner.wait_for_graphs()
    for replays, position in enumerate((299, 0, 1, 16, 130, 255, 256, 258), 1):
        batch = make_batch([Chunk([token_ids[position]], position, range(19), [0])], 16)
        found, expected = (each.forward(batch).logits for each in (runner, reference))
        assert driver.replayed == replays
        assert relative_error(found, expected) < F16, position
    assert driver.captured == 1
    runner.close()


def test_padding_sequences_touch_no_page_of_the_pool(cuda_bundle: Path, emulated_cuda: Path) -> None:
    """Page 0 belongs to a sequence, and every page without a sequence contains NaN."""
    driver = EmulatedDriver(emulated_cuda)
    runner = CudaRunner(open_bundle(cuda_bundle), limits=LIMITS, driver=driver)
    reference = ReferenceRunner(open_bundle(cuda_bundle), limits=LIMITS, activation="float16")
    pages = runner.num_pages
    memory = {
        name: driver._at(runner._memory.addresses[name], (pages + 1) * runner._memory.page_bytes(name)).reshape(
            pages + 1, -1
        )
        for name in runner.manifest.page_states(0)
    }
    for array in memory.values():
        array[...] = 0xFF
    sequences = {0: [3, 1, 4], 7: [1, 5, 9, 2, 6], 19: [5]}
    for each in (runner, reference):
        for page, tokens in sequences.items():
            each.forward(make_batch([Chunk(tokens, 0, [page])], 16))
    runner.wait_for_graphs()
    for step in range(2):
        before = {name: array.copy() for name, array in memory.items()}
        # Four sequences, of which one is padding.
        chunks = [Chunk([8], len(tokens) + step, [page], [0]) for page, tokens in sequences.items()]
        found, expected = (each.forward(make_batch(chunks, 16)).logits for each in (runner, reference))
        assert driver.replayed == step + 1
        assert relative_error(found, expected) < F16
        for name, array in memory.items():
            changed = (array != before[name]).sum(axis=1)
            # Each sequence has one more token, and the padding sequence writes after the end of the pool.
            assert set(np.flatnonzero(changed)) | {pages} == {*sequences, pages}
            assert changed[:pages].max() <= array.shape[1] // runner.manifest.page_size
    runner.close()


def test_every_sequence_of_a_batch_has_its_own_adapter_in_graphs_too(
    compile_base: CompileTiny, emulated_cuda: Path
) -> None:
    lora = {"lora_rank": 2, "context": 64, "activations": ("float32",), "self_test": False}
    bundle = open_bundle(compile_base("qwen3", "q4f16", target="cuda", **lora))
    limits = Limits(tokens=8, sequences=3, rows=3, pages=6, adapters=2)
    rng = np.random.default_rng(8)
    assert bundle.manifest.lora is not None
    shapes = {name: bundle.manifest.states[name].shape[1:] for name in bundle.manifest.lora.states}
    states = [
        {
            name: rng.normal(size=shape).astype(np.float32) * 0.1  # type: ignore[arg-type]
            for name, shape in shapes.items()
        }
        for _ in range(2)
    ]
    found = []
    for runner in (
        CudaRunner(bundle, limits=limits, driver=EmulatedDriver(emulated_cuda)),
        ReferenceRunner(bundle, limits=limits),
    ):
        for place, values in enumerate(states):
            for name, value in values.items():
                runner.write_state(name, place, value)
        for step in range(2):
            chunks = [Chunk([7] * (2 - step), 2 * step, [page], [1 - step], adapter=page - 1) for page in range(3)]
            found.append(runner.forward(make_batch(chunks, 16)).logits)
        runner.close()
    for mine, expected in zip(found[:2], found[2:], strict=True):
        assert relative_error(mine, expected) < F32
        assert relative_error(mine[0], mine[1]) > F32


def test_weights_beyond_the_free_memory_are_refused_with_both_sizes(
    cuda_bundle: Path, emulated_cuda: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, driver = open_bundle(cuda_bundle), EmulatedDriver(emulated_cuda)
    monkeypatch.setattr(driver, "available_bytes", lambda: 1000)
    size = sum(shard.size for shard in bundle.manifest.shards)
    with pytest.raises(DeviceError, match=f"take {size:,} bytes, and 1,000 of the GPU's memory are free"):
        CudaRunner(bundle, limits=LIMITS, driver=driver)


def test_submitted_work_cannot_be_cancelled(runner: CudaRunner) -> None:
    futures = [runner.submit(make_batch([Chunk([1], 0, [0], [0])], 16)) for _ in range(6)]
    assert not any(future.cancel() for future in futures)
    assert len({int(future.result().next_token_ids[0]) for future in futures}) == 1


def test_a_failure_on_the_device_is_the_futures_and_the_runner_can_be_closed(
    cuda_bundle: Path, emulated_cuda: Path
) -> None:
    driver = EmulatedDriver(emulated_cuda)
    runner = CudaRunner(open_bundle(cuda_bundle), limits=Limits(tokens=8, pages=2), driver=driver)
    driver.broken = True
    # More batches than may be in flight at once, so none may keep its slot.
    futures = [runner.submit(make_batch([Chunk([1], 0, [0], [0])], 16)) for _ in range(6)]
    for future in futures:
        with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            future.result(timeout=30)
    runner.close()


def test_a_gpu_of_another_generation_is_refused_with_advice_on_what_to_compile(
    cuda_bundle: Path, emulated_cuda: Path
) -> None:
    bundle = open_bundle(cuda_bundle)
    for arch in ("sm_80", "sm_89", "sm_100"):
        with pytest.raises(
            DeviceError,
            match=f"was compiled for sm_90, .* is {arch}; compile the model with --target cuda --arch {arch}",
        ):
            CudaRunner(bundle, driver=EmulatedDriver(emulated_cuda, arch))
    found = EmulatedDriver(emulated_cuda)
    for arch, gpu in (("sm_90a", "sm_90"), ("sm_100f", "sm_103"), ("sm_80-cuda12", "sm_89")):
        found.arch = gpu
        require_device(cuda_bundle, arch, found)
    for arch, gpu, advice in (("sm_100a", "sm_103", "sm_103"), ("sm_90-cuda12", "sm_89", "sm_89-cuda12")):
        found.arch = gpu
        with pytest.raises(DeviceError, match=f"compile the model with --target cuda --arch {advice}$"):
            require_device(cuda_bundle, arch, found)
    with pytest.raises(DeviceError, match="compiled for float16 activations, not for bfloat16"):
        choose_activation(bundle.manifest, "bfloat16", cuda_bundle)


def test_an_older_driver_is_refused_with_what_to_do(cuda_bundle: Path, emulated_cuda: Path) -> None:
    driver = EmulatedDriver(emulated_cuda)
    driver.cuda_version = (12, 4)
    with pytest.raises(
        DeviceError,
        match=r"its cubins need CUDA 13\.0, this driver supports CUDA 12\.4; update NVIDIA's driver to 580 or newer, "
        r"or compile the model with --target cuda --arch sm_90-cuda12, whose cubins run on driver 525 or newer$",
    ):
        CudaRunner(open_bundle(cuda_bundle), driver=driver)
    require_device(cuda_bundle, "sm_90-cuda12", driver)
    driver.cuda_version = (11, 8)
    with pytest.raises(DeviceError, match=r"need CUDA 12\.0, .* CUDA 11\.8; update NVIDIA's driver to 525 or newer$"):
        require_device(cuda_bundle, "sm_90-cuda12", driver)


def test_scratch_for_ranges_of_keys_is_bounded_however_many_tokens_and_sequences_a_batch_has(
    cuda_bundle: Path,
) -> None:
    manifest = open_bundle(cuda_bundle).manifest
    (elements,) = manifest.scratch["partials"].shape
    dims = {"S": 8192, "R": 256, "T": 131072}

    def rows(sequences: int) -> int:
        size = 8 * manifest.spec.num_heads * (manifest.spec.head_dim + 4)
        return evaluate(elements, {**dims, "B": sequences}) // size

    # For one sequence, every range of 256 keys; otherwise the limit on ranges that workgroups share.
    assert [rows(sequences) for sequences in (1, 2, 32, 256)] == [512, 1024, 1024, 1024]
    assert {"q", "rows16", "row_factors"} <= manifest.scratch.keys()


def test_a_batch_takes_the_smallest_graph_that_holds_it() -> None:
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(5) == (1, 2, 4, 5)
    assert bucket_sizes(100) == (1, 2, 4, 8, 16, 32, 48, 64, 96, 100)
    decode = {"S": 5, "B": 5, "R": 5, "T": 257, "A": 0, "W": 5, "G": 0}
    assert bucket_of(decode, (1, 8, 9), 4096) == Bucket(8, 512, adjusts=False, alternatives=True, adapted=False)
    assert bucket_of({**decode, "T": 4000}, (8,), 4096) == Bucket(
        8, 4096, adjusts=False, alternatives=True, adapted=False
    )
    assert bucket_of({**decode, "T": 290}, (8,), 300) == Bucket(8, 300, adjusts=False, alternatives=True, adapted=False)
    for other in ({"S": 6}, {"R": 4}, {"S": 0, "B": 0, "R": 0}):
        assert bucket_of({**decode, **other}, (1, 8), 4096) is None
