"""Every architecture on every kernel target, without any pass and with all of them.

Without passes a plan consists of the ops that architectures are written in, so these tests run the plain kernels. The
bundle's self-test, which `open_runner` runs, compares with `ir/ops/` on the graph before the passes. In addition, the
results are compared with transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import FAMILIES, HYBRIDS, TOKENS, make_family
from draft_assistant import ASSISTED, DraftAssistant, require_assistant_guesses
from draft_heads import DraftHeads
from emulated_driver import EmulatedDriver
from large_activations import make_large
from light_bundle import kernels_of_models
from ragged import chunk_of, chunked_logits, ragged_logits, sequences_alone
from tiny_models import CHECKPOINTS
from tolerances import F16, F16_PRODUCTS_MODEL, F32, relative_error

from nearfar.compiler import passes
from nearfar.compiler.bundle.entries import KernelEntry
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import DRAFT
from nearfar.compiler.cli.inspect import draft_facts
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import load_target
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner
from nearfar.targets.webgpu.runner import WebGPURunner

LIMITS = Limits(tokens=75, sequences=3, rows=75, pages=20, draft_pages=5)
OPTIONS = {"quantization": "f32", "context": 256, "activations": ("float32",)}
TARGETS = ("webgpu", "cpu", "cuda")
UNFUSED_OPS = {"rms_norm", "rope", "append_kv", "attention", "add", "gate", "linear"}


def on_targets(names: Iterable[str], usual: Collection[tuple[str, str]]) -> list[Any]:
    """The pairs of a name and a target. `make test` runs the ``usual`` ones: the kernels and the runner of each target
    have tests of their own.
    """
    return [
        pytest.param(name, target, marks=() if (name, target) in usual else pytest.mark.exhaustive)
        for name in names
        for target in TARGETS
    ]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    for fixture in {"webgpu": ("vulkan",), "cuda": ("nvrtc", "emulated_cuda"), "cpu": ()}[name]:
        request.getfixturevalue(fixture)
    return name


@pytest.fixture
def kernels_that_run() -> Iterator[None]:
    """Bundles contain only the kernels that their test runs, since lowering takes most of its time."""
    with kernels_of_models(LIMITS):
        yield


@pytest.fixture
def opened(target: str, request: pytest.FixtureRequest) -> Iterator[Callable[[Bundle], PlanRunner]]:
    """Opens runners of the target, which have passed the bundle's self-test."""
    runners: list[PlanRunner] = []

    def open_one(bundle: Bundle) -> PlanRunner:
        runner: PlanRunner
        # Check the manifest, too.
        bundle = open_bundle(bundle.path)
        if target == "webgpu":
            from nearfar.targets.webgpu.runner import WebGPURunner

            runner = WebGPURunner(bundle, limits=LIMITS)
        elif target == "cpu":
            from nearfar.targets.cpu.runner import CpuRunner

            runner = CpuRunner(bundle, limits=LIMITS)
        else:
            from nearfar.targets.cuda.runner import CudaRunner

            runner = CudaRunner(bundle, limits=LIMITS, driver=EmulatedDriver(request.getfixturevalue("emulated_cuda")))
        runners.append(runner)
        check_runner(runner, bundle.manifest)
        return runner

    yield open_one
    for runner in runners:
        runner.close()


# Other files run Qwen3 on every target, and the families below have the other ops.
@pytest.mark.parametrize(
    ("architecture", "target"),
    on_targets(CHECKPOINTS, ()),
    indirect=["target"],
)
@pytest.mark.usefixtures("kernels_that_run")
def test_an_architecture_runs_on_every_kernel_target(
    architecture: str,
    target: str,
    opened: Callable[[Bundle], PlanRunner],
    tiny_checkpoints: Mapping[str, Path],
    tmp_path: Path,
    transformers_logits: Callable[[str], npt.NDArray[np.float32]],
    prompt_token_ids: list[int],
) -> None:
    options = CompileOptions(target=target, **OPTIONS)  # type: ignore[arg-type]
    runner = opened(compile_model(str(tiny_checkpoints[architecture]), tmp_path / "bundle", options))
    expected = transformers_logits(architecture)
    for chunk in (75, 16, 1):
        length = 20 if chunk == 1 else 75
        found = chunked_logits(runner, prompt_token_ids[:length], chunk)
        assert relative_error(found, expected[:length]) < F32, chunk
    require_same_together(runner)


# Qwen3 has norms of queries and keys. The others have no other ops, but for biases. On GPUs, test_every_op.py runs the
# rows that need nothing, and each kernel of theirs has cases.
@pytest.mark.parametrize(
    ("architecture", "target"),
    on_targets(CHECKPOINTS, {("qwen3", "cpu")}),
    indirect=["target"],
)
@pytest.mark.usefixtures("kernels_that_run")
def test_an_architecture_runs_without_passes(
    architecture: str,
    target: str,
    opened: Callable[[Bundle], PlanRunner],
    tiny_checkpoints: Mapping[str, Path],
    transformers_logits: Callable[[str], npt.NDArray[np.float32]],
    prompt_token_ids: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(passes, "FUSIONS", ())
        options = CompileOptions(target=target, **OPTIONS)  # type: ignore[arg-type]
        bundle = compile_model(str(tiny_checkpoints[architecture]), tmp_path / "unfused", options)
    assert {step.op for step in bundle.manifest.plan("generate").steps} >= UNFUSED_OPS
    runner = opened(bundle)
    found = chunked_logits(runner, prompt_token_ids, 33)
    assert relative_error(found, transformers_logits(architecture)) < F32
    require_same_together(runner)


def require_same_together(runner: PlanRunner) -> None:
    """Sequences that run side by side have the logits that each has alone."""
    for together, alone in zip(ragged_logits(runner), sequences_alone(runner), strict=True):
        assert relative_error(together, alone) < F32


# A longer context would change their rotations.
SHORT = ("llama_dynamic", "phi3_short")


@pytest.mark.parametrize(
    ("family", "target"),
    on_targets(
        {**FAMILIES, **HYBRIDS},
        {
            ("falcon_h1", "cpu"),
            ("qwen3_5_text", "webgpu"),
            ("gemma4_text", "cpu"),
            ("gpt_oss", "cpu"),
            ("qwen3_moe", "cpu"),
        },
    ),
    indirect=["target"],
)
@pytest.mark.usefixtures("kernels_that_run")
def test_a_family_runs_on_every_kernel_target(
    family: str, target: str, opened: Callable[[Bundle], PlanRunner], tmp_path: Path
) -> None:
    """Those that `make test` runs have all kinds of memory and experts: Gemma 4 windows on some layers, heads of two
    sizes, layers that share keys and values, and a second embedding; Qwen3's mixture and gpt-oss experts; Qwen3.5 and
    Falcon-H1 states. The cases of kernels have the other families' ops: Gemma 2's soft-caps of scores, and Command
    R7B's LayerNorms and its rotation of interleaved pairs.
    """
    heads = DraftHeads(tmp_path / "checkpoint") if family == "qwen3_5_text" else None
    assistant = DraftAssistant(tmp_path, family=family) if family in ASSISTED else None
    drafting = heads or assistant
    expected = make_family(family, tmp_path / "checkpoint") if drafting is None else drafting.logits
    context = len(TOKENS) if family in SHORT else 256
    options = CompileOptions(target=target, **{**OPTIONS, "context": context})  # type: ignore[arg-type]
    if assistant is not None:
        options = replace(options, assistant=str(tmp_path / "assistant"))
    bundle = compile_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options)
    runner = opened(bundle)
    for chunk in (len(TOKENS), 9):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F32
    if family in HYBRIDS:
        require_same_together(runner)
    if family in ("gemma2", "gemma4_text"):
        assert relative_error(poisoned(runner), expected[32:]) < F32
    if family == "qwen3_moe":
        require_chosen_bytes(bundle)
    if heads is not None:
        require_state_bytes(runner)
        require_guesses(runner, heads)
    if assistant is not None:
        require_assistant_guesses(runner, assistant)
        assert "an assistant, " in draft_facts(make_report(bundle.manifest))["drafts"]
    if target == "webgpu":
        require_dispatches(runner)
    if family == "gemma4_text":
        require_table_on_host(target, bundle, runner)
        assert relative_error(sampled_in_part(runner), expected[[3, 12, 26, 39, 38, 40, 39]]) < F32


def require_guesses(runner: PlanRunner, heads: DraftHeads) -> None:
    """The model's heads guess what transformers' layer guesses: from the rows that the model keeps of two chunks, the
    first of which a page was copied of, then from their own, with tokens that are still on the device.
    """
    pages, own, slot, tokens = [7, 2, 9], [1, 4, 0], 2, TOKENS
    for start, stop, copies in ((0, 30, [(7, 5)]), (30, len(tokens), [])):
        used = pages[: -(-stop // 16)]
        runner.forward(make_batch([chunk_of(runner, tokens[start:stop], start, used, [])], 16))
        runner.copy_pages(copies)
        pages[0] = 5
    kept = [pages[position // 16] * 16 + position % 16 for position in range(len(tokens) - 1)]
    for start, stop in ((0, 17), (17, len(kept))):
        settings: dict[str, Any] = {"sample": [stop - start - 1], "slot": slot} if stop == len(kept) else {}
        chunk = Chunk(
            tokens[start + 1 : stop + 1], start, own[: -(-stop // 16)], kept_rows=kept[start:stop], **settings
        )
        output = runner.submit(make_batch([chunk], 16), DRAFT).result()
    found, guesses = [output.logits[0]], [int(output.next_token_ids[0])]
    for position in range(len(kept), len(kept) + 2):
        chunk = Chunk([-1 - slot], position, own, [0], slot=slot, kept_rows=[-1 - slot])
        output = runner.submit(make_batch([chunk], 16), DRAFT).result()
        found.append(output.logits[0])
        guesses.append(int(output.next_token_ids[0]))
    assert relative_error(np.stack(found), heads.guessed(tokens, guesses[:2])) < F32


def poisoned(runner: PlanRunner) -> npt.NDArray[np.float32]:
    """The logits of a chunk and of a decode step, after the pages before the window were filled with NaN."""
    assert len(runner.groups) == 2
    # Page 1 of window layers is page 18 in reverse.
    pages, rows = [18, 3, 7], []
    for start, stop in ((0, 32), (32, 40), (40, 41)):
        if start == 32:
            for name in runner.manifest.page_states(1):
                layout = runner.layout(runner.manifest.states[name], runner.largest)
                runner._write_row(name, 1, np.full(layout.shape[1:], np.nan, layout.dtype))
        chunk = chunk_of(runner, TOKENS[start:stop], start, pages[: -(-stop // 16)], range(stop - start))
        chunk = replace(chunk, window_pages=[1, *(chunk.window_pages or [])[1:]])
        rows.append(runner.forward(make_batch([chunk], 16)).logits.copy())
    return np.concatenate(rows[1:])


@pytest.mark.parametrize(
    "target", ["cpu", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("webgpu", "cuda"))], indirect=True
)
@pytest.mark.usefixtures("kernels_that_run")
def test_a_residual_stream_beyond_float16_is_right_with_float16_activations(
    target: str, opened: Callable[[Bundle], PlanRunner], tmp_path: Path
) -> None:
    """Only q, k, v and the attention's results are float16; norms and weights bound them."""
    expected = make_large(tmp_path / "checkpoint")
    options = CompileOptions(target=target, quantization="f16", context=256, activations=("float16",))
    runner = opened(compile_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options))
    assert runner.activation == "float16"
    for chunk in (len(TOKENS), 9):
        assert relative_error(chunked_logits(runner, TOKENS, chunk), expected) < F16
    assert relative_error(chunked_logits(runner, TOKENS[:12], 1), expected[:12]) < F16


@pytest.mark.exhaustive
@pytest.mark.usefixtures("vulkan")
def test_products_in_float16_are_right_beyond_float16(tmp_path: Path) -> None:
    """Inputs of projections exceed 65,504, and so would sums of their products."""
    make_large(tmp_path / "checkpoint")
    options = CompileOptions(target="webgpu", quantization="q8f16", context=256, activations=("float16",))
    bundle = compile_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options)
    found = []
    for _ in range(2):
        with closing(WebGPURunner(bundle, limits=LIMITS)) as runner:
            found.append([chunked_logits(runner, TOKENS, chunk) for chunk in (len(TOKENS), 1)])
        # The second time, products in float16 come first, the last one, a tile, for all batches with many rows.
        for rows in bundle.manifest.variants.values():
            own = [row for row in rows if any(multiplies_halves(bundle.manifest.kernels[name]) for name in row.kernels)]
            rows[:0] = [*own[:-1], *(row.model_copy(update={"when": None}) for row in own[-1:])]
    for exact, logits in zip(*found, strict=True):
        assert 0 < relative_error(logits, exact) < F16_PRODUCTS_MODEL


def multiplies_halves(kernel: KernelEntry) -> bool:
    return (kernel.facts.get("shape") or {}).get("products") == "float16"


def sampled_in_part(runner: PlanRunner) -> npt.NDArray[np.float32]:
    """The logits of some rows of TOKENS in two sequences: several rows of a chunk, no rows, and the rows of a decode
    step.
    """
    own, other = [4, 1, 3], [0, 5, 2]
    steps: tuple[tuple[tuple[list[int], int, list[int], list[int]], ...], ...] = (
        ((TOKENS[:13], 0, own[:1], [3, 12]), (TOKENS[:7], 0, other[:1], [])),
        ((TOKENS[13:26], 13, own[:2], []), (TOKENS[7:38], 7, other, [])),
        ((TOKENS[26:40], 26, own, [0, 13]), (TOKENS[38:39], 38, other, [0])),
        ((TOKENS[40:41], 40, own, [0]), (TOKENS[39:40], 39, other, [0])),
    )
    batches = [
        make_batch([replace(chunk_of(runner, *chunk), slot=slot) for slot, chunk in enumerate(chunks)], 16)
        for chunks in steps
    ]
    return np.concatenate([runner.forward(batch).logits.copy() for batch in batches])


def require_chosen_bytes(bundle: Bundle) -> None:
    """Check that a token reads the weights of 3 of 5 experts, one row of the embedding, and all other weights."""
    report, weights = make_report(bundle.manifest), bundle.manifest.weights
    sizes = {name: sum(plane.size for plane in weight.planes) for name, weight in weights.items()}
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    rows, embedding = weights["model.embed_tokens.weight"].shape[0], sizes["model.embed_tokens.weight"]
    # Targets pad the embedding by whole tiles, so a row's share need not be a whole number of bytes.
    others = sum(sizes.values()) - experts - embedding
    assert report.weight_bytes_per_token == math.ceil(others + Fraction(3 * experts, 5) + Fraction(embedding, rows))


def require_state_bytes(runner: PlanRunner) -> None:
    """Check that a token reads and writes the states of its sequence, and reads the keys and values before it."""
    manifest, context = runner.manifest, 100
    layouts = [runner.layout(state, runner.largest) for state in manifest.sequence_states.values()]
    state_bytes = sum(math.prod(layout.shape[1:]) * np.dtype(layout.dtype).itemsize for layout in layouts)
    # The last of four layers has attention.
    kv_bytes = 2 * manifest.spec.num_kv_heads * manifest.spec.head_dim * 4
    report = make_report(manifest, context=context)
    assert (report.state_bytes, report.kv_bytes_per_token) == (state_bytes, kv_bytes)
    moved = context * kv_bytes + 2 * state_bytes
    assert report.bytes_per_token_at_context == report.weight_bytes_per_token + moved


def require_dispatches(runner: PlanRunner) -> None:
    """Check that a runner launches as many kernels for a token as the report counts, and one more if it keeps rows for
    heads.
    """
    launch, launched = runner._launches, []  # type: ignore[attr-defined]

    def counted(plan: str, dims: Mapping[str, int]) -> Iterator[Any]:
        for pipeline, group, grid in launch(plan, dims):
            launched.append(all(grid))
            yield pipeline, group, grid

    runner._launches = counted  # type: ignore[attr-defined]
    runner.forward(make_batch([chunk_of(runner, TOKENS[:1], 0, [0], [0])], 16))
    assert sum(launched) == make_report(runner.manifest).dispatches_per_token + (runner.limits.draft_pages > 0)


def require_table_on_host(target: str, bundle: Bundle, runner: PlanRunner) -> None:
    """Check that a device's memory does not contain the second embedding, and that reports count it for the host."""
    manifest = bundle.manifest
    assert bool(manifest.host_weights) == load_target(target).HOST_TABLES
    on_device, on_host = (
        sum(plane.size for weight in weights.values() for plane in weight.planes)
        for weights in (manifest.weights, manifest.host_weights)
    )
    report = make_report(manifest)
    assert (report.weight_bytes, report.host_weight_bytes) == (on_device + on_host, on_host)
    for name in manifest.host_weights:
        row = bundle.plane(name, "w", 3, 4).tobytes()
        if target == "cuda":
            driver: EmulatedDriver = runner._driver  # type: ignore[attr-defined]
            assert all(row not in memory.tobytes() for memory in driver._memory.values())
        else:
            assert f"{name}.w" not in runner._regions  # type: ignore[attr-defined]
