"""The behaviour of every runner: results equal to the reference's, limits, refused inputs, and the order of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from emulated_driver import EmulatedDriver
from onnx_cases import relative_rms
from plain_target import compile_plain
from ragged import chunked_logits, ragged_logits, sequences_alone
from slot_answers import assert_same_choices
from tolerances import F16, F32, INT16_MODEL, ONNX_F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any, open_bundle
from nearfar.compiler.runtime.base_runner import BaseRunner
from nearfar.compiler.runtime.batch import Batch, Chunk, make_batch
from nearfar.compiler.runtime.encoder_batch import make_text_batch
from nearfar.compiler.runtime.errors import BundleError, RequestError
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.targets.cpu import runner as cpu_runner

CompileTiny = Callable[..., Path]
Distance = Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], float]

RUNNERS = ("numpy", "webgpu", "cpu", "cuda", "onnx", "mlx")
PLAN_RUNNERS = RUNNERS[:4]
LIMITS = Limits(tokens=75, sequences=4, rows=75, pages=20)
SMALL = Limits(tokens=8, sequences=2, rows=2, pages=2)


@dataclass(frozen=True, slots=True)
class Case:
    """``bundle`` and ``reference`` have the same weights, ``limit`` bounds the distance of their logits."""

    name: str
    bundle: Bundle | ExportBundle
    reference: Bundle
    activation: str
    limit: float
    distance: Distance
    emulated: Path | None = None

    def open(self, limits: Limits = LIMITS) -> BaseRunner:  # type: ignore[type-arg]
        return open_on(self.name, self.bundle, limits, self.activation, self.emulated)

    def open_reference(self, limits: Limits = LIMITS) -> ReferenceRunner:
        return ReferenceRunner(self.reference, limits=replace(limits, pages=20), activation=self.activation)

    @property
    def page_size(self) -> int:
        return self.bundle.manifest.page_size

    def pages(self, first: int, tokens: int) -> list[int]:
        """The pages for the tokens of one sequence, from page ``first`` on."""
        return list(range(first, first + self.bundle.manifest.pages_for(tokens)))

    def batch(self, *chunks: Chunk) -> Batch:
        return make_batch(chunks, self.page_size)


def open_on(
    name: str,
    bundle: Bundle | ExportBundle,
    limits: Limits,
    activation: str,
    emulated: Path | None,
) -> BaseRunner:  # type: ignore[type-arg]
    from nearfar.targets.cpu.runner import CpuRunner
    from nearfar.targets.cuda.runner import CudaRunner
    from nearfar.targets.mlx.runner import MlxRunner
    from nearfar.targets.onnx.runner import OnnxRunner
    from nearfar.targets.webgpu.runner import WebGPURunner

    if isinstance(bundle, ExportBundle):
        return OnnxRunner(bundle, limits=limits) if name == "onnx" else MlxRunner(bundle, limits)
    if name == "cuda":
        assert emulated is not None
        return CudaRunner(bundle, limits=limits, driver=EmulatedDriver(emulated))
    runner = {"numpy": ReferenceRunner, "webgpu": WebGPURunner, "cpu": CpuRunner}[name]
    return runner(bundle, limits=limits, activation=activation)


def emulation_for(name: str, request: pytest.FixtureRequest) -> Path | None:
    """The emulated driver for cuda. Skips a test of a runner that this machine lacks."""
    for fixture in {"webgpu": ("vulkan",), "cuda": ("nvrtc",)}.get(name, ()):
        request.getfixturevalue(fixture)
    return request.getfixturevalue("emulated_cuda") if name == "cuda" else None


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest,
    compile_tiny: CompileTiny,
    compile_base: CompileTiny,
    tiny_checkpoints: Mapping[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Case]:
    """cases(name) -> the runner's case, for which this machine must have what it needs."""
    done: dict[str, Case] = {}

    def make(name: str) -> Case:
        folder = tmp_path_factory.mktemp(name) / "plan"
        if name in ("numpy", "webgpu"):
            if name == "webgpu":
                request.getfixturevalue("vulkan")
            bundle = open_bundle(request.getfixturevalue("tiny_bundle"))
            return Case(name, bundle, bundle, "float32", F32, relative_error)
        if name == "cpu":
            bundle = open_bundle(compile_base("qwen3", "q4f16", target="cpu", context=320, activations=("float32",)))
            return Case(name, bundle, bundle, "float32", INT16_MODEL, relative_error)
        if name == "cuda":
            bundle = open_bundle(request.getfixturevalue("cuda_bundle"))
            return Case(name, bundle, bundle, "float16", F16, relative_error, request.getfixturevalue("emulated_cuda"))
        if name == "onnx":
            exported = open_any(request.getfixturevalue("export_onnx")("qwen3", "f32", context=96))
            checkpoint, limit, distance = request.getfixturevalue("onnx_checkpoints")["qwen3"], ONNX_F32, relative_rms
            plan = compile_plain(checkpoint, folder, "f32", 96)
        else:
            request.getfixturevalue("mlx")
            exported = open_any(compile_tiny("qwen3_wide", "q4f16", target="mlx", activations=("float32",)))
            plan, limit, distance = (
                compile_plain(tiny_checkpoints["qwen3_wide"], folder, "q4f16", 256),
                F32 / 10,
                relative_error,
            )
        return Case(name, exported, plan, "float32", limit, distance)

    def case_of(name: str) -> Case:
        if name not in done:
            done[name] = make(name)
        return done[name]

    return case_of


@pytest.fixture(params=RUNNERS)
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    return cases(request.param)


@pytest.fixture
def runner(case: Case) -> Iterator[Runner]:
    runner = case.open()
    yield runner
    runner.close()


def test_prefills_and_decodes_side_by_side_compute_what_each_sequence_alone_does_on_the_reference(
    case: Case, runner: Runner
) -> None:
    expected = sequences_alone(case.open_reference())
    for together, right in zip(ragged_logits(runner), expected, strict=True):
        assert case.distance(together, right) < case.limit


def test_a_prompt_in_chunks_computes_the_same_as_in_one_piece(
    case: Case, runner: Runner, prompt_token_ids: list[int]
) -> None:
    expected = chunked_logits(case.open_reference(), prompt_token_ids, 75)
    for chunk, length in ((75, 75), (33, 75), (1, 20)):
        found = chunked_logits(runner, prompt_token_ids[:length], chunk)
        assert case.distance(found, expected[:length]) < case.limit, chunk


def test_penalties_bias_mask_and_tokens_left_in_slots_are_those_of_the_reference(case: Case) -> None:
    atol = 1e-2 if case.activation == "float16" else 1e-3
    assert_same_choices(case.open(SMALL), case.open_reference(SMALL), atol=atol)


def test_submitted_work_happens_in_order(case: Case, runner: Runner, prompt_token_ids: list[int]) -> None:
    """A prompt, a copy of its pages, and another prompt in the first pages are in flight before any result is read."""
    first, second = case.pages(0, 21), case.pages(2, 21)
    futures = [runner.submit(case.batch(Chunk(prompt_token_ids[:20], 0, first, [19])))]
    runner.copy_pages(list(zip(first, second, strict=True))[::-1])
    futures += [runner.submit(case.batch(Chunk(prompt_token_ids[40:60], 0, first, [19])))]
    futures += [runner.submit(case.batch(Chunk([prompt_token_ids[20]], 20, second, [0])))]
    last = futures[-1].result()
    logits = last.logits
    expected = chunked_logits(case.open_reference(), prompt_token_ids[:21], 21)
    assert case.distance(logits[0], expected[20]) < case.limit
    assert futures[0].result().next_token_ids[0] == expected[19].argmax()
    assert last.next_token_ids[0] == logits[0].argmax()


def logits_in_copied_pages(case: Case, runner: Runner) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The logits of the next token of a sequence in its own pages, and in a copy after these hold another one."""
    first, second = case.pages(0, 21), case.pages(2, 21)
    runner.forward(case.batch(Chunk(list(range(1, 21)), 0, first, [19])))
    runner.copy_pages(list(zip(first, second, strict=True)))
    one = np.array(runner.forward(case.batch(Chunk([5], 20, first, [0]))).logits)
    runner.forward(case.batch(Chunk(list(range(40, 60)), 0, first, [19])))
    return one, np.array(runner.forward(case.batch(Chunk([5], 20, second, [0]))).logits)


def test_a_sequence_goes_on_in_copied_pages(case: Case, runner: Runner) -> None:
    np.testing.assert_array_equal(*logits_in_copied_pages(case, runner))
    with pytest.raises(RequestError, match="page 20 is not in the pool, which has pages 0 to 19"):
        runner.copy_pages([(0, 20)])


def test_a_cpu_reads_layers_while_it_computes_later_ones(
    cases: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_runner, "FEWEST_TOKENS", 20)
    case = cases("cpu")
    runner = case.open()
    assert isinstance(runner, cpu_runner.CpuRunner)
    first, second = case.pages(0, 21), case.pages(7, 21)[::-1]
    # What was in the pages before is other than what is read.
    runner.submit(case.batch(Chunk(list(range(40, 60)), 0, first, [19])))
    with runner._turn:
        filling = runner.submit(case.batch(Chunk(list(range(1, 21)), 0, first, [19])))
        read = runner.read_layers([first])
        early = list[bool]()
        for part in read:
            part.add_done_callback(lambda _: early.append(not filling.done()))
        other = runner.submit(case.batch(Chunk(list(range(60, 80)), 0, first, [19])))
    data = b"".join(part.result() for part in read)
    other.result()
    assert len(read) > 1
    assert early == [True] * len(read)
    runner.write_layers([second], data)
    expected = case.open()
    expected.forward(case.batch(Chunk(list(range(1, 21)), 0, first, [19])))
    assert runner.read_pages([second]).result() == expected.read_pages([first]).result()
    # Of a batch that is done, and of one that fails.
    after = runner.read_layers([second])
    assert b"".join(part.result() for part in after) == data
    monkeypatch.setattr(runner._library, "_launch", lambda _, count: count)
    with runner._turn:
        failing = runner.submit(case.batch(Chunk(list(range(1, 21)), 0, first, [19])))
        read = runner.read_layers([first])
    for future in (failing, *read):
        with pytest.raises(BundleError, match="refuses its arguments"):
            future.result()
    with pytest.raises(RequestError, match=r"pages of .* bytes, not"):
        runner.write_layers([second], data[:-1])


@pytest.mark.parametrize("name", PLAN_RUNNERS)
def test_a_sequence_goes_on_in_pages_that_were_read_and_written(name: str, cases: Callable[[str], Case]) -> None:
    """The pages are read while the step that fills them is in flight, and written into others, in another order, before
    a step that is in flight when the first ones hold another sequence.
    """
    case = cases(name)
    runner = case.open()
    first, second = case.pages(0, 21), case.pages(7, 21)[::-1]
    filling = runner.submit(case.batch(Chunk(list(range(1, 21)), 0, first, [19])))
    read = runner.read_pages([first])
    one = np.array(runner.forward(case.batch(Chunk([5], 20, first, [0]))).logits)
    other = runner.submit(case.batch(Chunk(list(range(40, 60)), 0, first, [19])))
    data = read.result()
    runner.write_pages([second], data)
    two = np.array(runner.forward(case.batch(Chunk([5], 20, second, [0]))).logits)
    np.testing.assert_array_equal(one, two)
    # The step after the first read has written one more position.
    assert runner.read_pages([second]).result() != data
    for each in (filling, other):
        each.result()
    assert runner.read_pages([[]]).result() == b""
    with pytest.raises(RequestError, match="page 20 is not in the pool, which has pages 0 to 19"):
        runner.read_pages([[20]])
    with pytest.raises(RequestError, match=f"1 pages of .* are {len(data) // len(first)} bytes, not {len(data)}"):
        runner.write_pages([[3]], data)
    with pytest.raises(RequestError, match="has 1 kinds of pages and states, and 2 lists of them came"):
        runner.read_pages([[3], [0]])
    runner.close()
    with pytest.raises(RequestError, match="the runner is closed"):
        runner.read_pages([[3]])


@pytest.mark.parametrize("name", RUNNERS[4:])
def test_a_runner_of_a_framework_refuses_to_read_and_write_pages(name: str, cases: Callable[[str], Case]) -> None:
    runner = cases(name).open(SMALL)
    with pytest.raises(RequestError, match=f"runners of the target {name} neither read nor write pages"):
        runner.read_pages([[0]])
    with pytest.raises(RequestError, match="use a bundle for cpu, cuda or webgpu"):
        runner.write_pages([[0]], b"")
    runner.close()


@pytest.mark.parametrize(
    "name", ["numpy", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in PLAN_RUNNERS[1:])]
)
def test_a_sequence_goes_on_in_copied_pages_of_4_bits(
    name: str,
    compile_tiny: CompileTiny,
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if name == "webgpu":
        request.getfixturevalue("vulkan")
    emulated = request.getfixturevalue("emulated_cuda") if name == "cuda" else None
    if name == "numpy":
        bundle = compile_plain(tiny_checkpoints["qwen3"], tmp_path / "bundle", "q4f16", 96, kv="q4")
    else:
        bundle = open_bundle(compile_tiny("qwen3", "q4f16", target=name, kv="q4"))
    activation = "float16" if name == "cuda" else "float32"
    case = Case(name, bundle, bundle, activation, F16, relative_error, emulated)
    runner = case.open()
    np.testing.assert_array_equal(*logits_in_copied_pages(case, runner))
    runner.close()


# The reference allocates nothing for a batch, so it accepts a batch of any size.
@pytest.mark.parametrize("name", RUNNERS[1:])
def test_a_batch_beyond_the_limits_is_refused_by_its_dim(name: str, cases: Callable[[str], Case]) -> None:
    case = cases(name)
    context = case.bundle.manifest.context
    runner = case.open(SMALL)
    too_large = {
        "S": [Chunk([1] * 9, 0, [0])],
        "R": [Chunk([1] * 4, 0, [0], [0, 1, 2])],
        "B": [Chunk([1], 0, [page]) for page in (0, 1, 0)],
        "T": [Chunk([1], context, [0] * (context // case.page_size + 1))],
        "L": [Chunk([1], 0, [0] * 5)],
    }
    for dim, chunks in too_large.items():
        with pytest.raises(RequestError, match=f"the batch has {dim} = ") as refused:
            runner.submit(case.batch(*chunks))
        assert refused.value.details["dim"] == dim
    runner.close()


def test_adapters_are_refused_without_slots(case: Case, runner: Runner) -> None:
    with pytest.raises(
        RequestError,
        match="has LoRA adapters, which the runner does not support; compile with --lora-rank",
    ):
        runner.submit(case.batch(Chunk([1], 0, [0], adapter=0)))


def test_inputs_that_the_plan_does_not_declare_or_declares_otherwise_are_refused_by_name(
    case: Case, runner: Runner
) -> None:
    batch = case.batch(Chunk([1, 2], 0, [0], [1]))
    with pytest.raises(RequestError, match="the batch has input 'pixels', which the plan does not declare"):
        runner.submit(replace(batch, extra={"pixels": np.zeros((2, 3), np.float32)}))
    with pytest.raises(RequestError, match="the batch has input 'slots'"):
        runner.submit(replace(batch, extra={"slots": batch.slots}))
    with pytest.raises(
        RequestError, match=r"input 'positions' of the batch is \[2\] of int64; the plan needs \[2\] of int32"
    ):
        runner.submit(replace(batch, positions=batch.positions.astype(np.int64)))
    with pytest.raises(
        RequestError, match=r"input 'sample_settings' of the batch is \[1, 4\] of float32; the plan needs \[1, 8\]"
    ):
        runner.submit(replace(batch, sample_settings=batch.sample_settings[:, :4]))
    with pytest.raises(RequestError, match="generates text and makes no embeddings"):
        runner.embed(batch)


def test_states_are_written_by_slot_and_name(case: Case, runner: Runner) -> None:
    vocab_size = case.bundle.manifest.spec.vocab_size
    bias = np.zeros(vocab_size, np.float32)
    with pytest.raises(RequestError, match=r"has no state 'temperature' by slot; it has .*logit_bias"):
        runner.write_state("temperature", 0, bias)
    with pytest.raises(RequestError, match="slot 4 of state 'logit_bias' is out of range; it has slots 0 to 3"):
        runner.write_state("logit_bias", 4, bias)
    with pytest.raises(RequestError, match=rf"a slot of state 'logit_bias' has shape \[{vocab_size}\], not \[7\]"):
        runner.write_state("logit_bias", 0, bias[:7])


def test_a_runner_is_closed_once_and_refuses_batches_then(case: Case) -> None:
    runner = case.open(SMALL)
    runner.close()
    runner.close()
    with pytest.raises(RequestError, match="the runner is closed"):
        runner.submit(case.batch(Chunk([1], 0, [0])))


@pytest.mark.parametrize("name", PLAN_RUNNERS)
def test_a_bundle_with_two_plans_generates_and_embeds_on_the_same_pages(
    name: str, cases: Callable[[str], Case], two_plans: Callable[..., Bundle], prompt_token_ids: list[int]
) -> None:
    case = cases(name)
    bundle = two_plans({"numpy": "webgpu"}.get(name, name), **({"activations": ("float16",)} if name == "cuda" else {}))
    runner = open_on(name, bundle, LIMITS, case.activation, case.emulated)
    reference = ReferenceRunner(bundle, limits=LIMITS, activation=case.activation)
    found = []
    for each in (runner, reference):
        logits = each.forward(make_batch([Chunk(prompt_token_ids[:40], 0, [3, 1, 2], [39])], 16)).logits
        # One token after the tokens whose pages the other plan has written.
        vectors = each.embed(make_batch([Chunk([prompt_token_ids[40]], 40, [3, 1, 2], [0])], 16))
        found.append((logits, vectors, each.forward(make_batch([Chunk([7], 41, [3, 1, 2], [0])], 16)).logits))
    for mine, right in zip(*found, strict=True):
        assert relative_error(mine, right) < case.limit
    runner.close()


# The runners for cpu and cuda make embeddings in the test before this one.
@pytest.mark.parametrize(
    "name",
    ["numpy", "webgpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("cpu", "cuda"))],
)
def test_embeddings_are_those_of_the_reference_and_text_is_refused(
    name: str, cases: Callable[[str], Case], compile_tiny: CompileTiny, prompt_token_ids: list[int]
) -> None:
    case = cases(name)
    options = {
        "cpu": {"target": "cpu", "activations": ("float32",)},
        "cuda": {"target": "cuda", "activations": ("float16",)},
    }.get(name, {})
    bundle = open_bundle(compile_tiny("embedding", "q4f16", **options))
    batch = make_text_batch([prompt_token_ids[:4], prompt_token_ids[4:]])
    runner = open_on(name, bundle, LIMITS, case.activation, case.emulated)
    assert isinstance(runner, PlanRunner)
    found, expected = runner.embed(batch), ReferenceRunner(bundle, activation=case.activation).embed(batch)
    assert relative_error(found, expected) < case.limit
    with pytest.raises(RequestError, match="makes embeddings and generates no text"):
        runner.submit(batch)
    runner.close()
