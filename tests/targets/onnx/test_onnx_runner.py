"""ONNX bundles on ONNX Runtime with continuous batching: compared with the reference runner, alone and in batches, and
with the engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx_cases import relative_rms
from plain_target import compile_plain
from ragged import chunked_logits, ragged_logits, sequences_alone
from tiny_models import VOCAB_SIZE
from tolerances import ONNX_F32, ONNX_INT8_MODEL

from nearfar.compiler.bundle.folder import Bundle, ExportBundle
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import BundleError, DeviceError, RequestError, ToolError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.kv_rows import FILLER_TOKENS, KvRows
from nearfar.targets.onnx.runner import OnnxRunner

CONTEXT = 96
LIMITS = Limits(tokens=96, sequences=4, rows=96, pages=5)
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(75)]

Compile = Callable[[str, str], tuple[ExportBundle, Bundle]]


@pytest.fixture(scope="module")
def compiled(onnx_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """compiled(checkpoint, quantization) -> an ONNX bundle, and one with a plan of the same weights for the reference
    runner.
    """
    folder = tmp_path_factory.mktemp("onnx")
    done: dict[tuple[str, str], tuple[ExportBundle, Bundle]] = {}

    def compile_both(checkpoint: str, quantization: str) -> tuple[ExportBundle, Bundle]:
        model, key = onnx_checkpoints[checkpoint], (checkpoint, quantization)
        if key not in done:
            options = CompileOptions(target="onnx", quantization=quantization, context=CONTEXT)
            exported = compile_any(str(model), folder / f"{checkpoint}-{quantization}", options)
            assert isinstance(exported, ExportBundle)
            done[key] = (
                exported,
                compile_plain(model, folder / f"{checkpoint}-{quantization}-plan", quantization, CONTEXT),
            )
        return done[key]

    return compile_both


@pytest.fixture(scope="module")
def bundle(compiled: Compile) -> ExportBundle:
    return compiled("qwen3", "q4f16")[0]


def reference(bundle: Bundle) -> ReferenceRunner:
    return ReferenceRunner(bundle, limits=Limits(sequences=4, pages=24), activation="float32")


@pytest.mark.parametrize(
    ("checkpoint", "quantization"),
    [("llama", "f32"), ("qwen2", "f32"), ("qwen3", "f32"), ("qwen2", "q8f16"), ("qwen3", "q4f16")],
)
def test_logits_are_those_of_the_reference_in_chunks_alone_and_side_by_side(
    checkpoint: str, quantization: str, compiled: Compile
) -> None:
    exported, planned = compiled(checkpoint, quantization)
    runner, limit = OnnxRunner(exported, limits=LIMITS), ONNX_F32 if quantization == "f32" else ONNX_INT8_MODEL
    right = chunked_logits(reference(planned), PROMPT, 75)
    for chunk in (1, 33, 75):
        assert relative_rms(chunked_logits(runner, PROMPT, chunk), right) < limit
    together = ragged_logits(runner)
    by_itself = sequences_alone(runner)
    expected = sequences_alone(reference(planned))
    for mine, mine_alone, wanted in zip(together, by_itself, expected, strict=True):
        assert relative_rms(mine, mine_alone) < limit
        assert relative_rms(mine, wanted) < limit
    runner.close()


def test_8_bit_keys_and_values_are_appended_shared_and_copied_as_others_are(
    onnx_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    options = CompileOptions(target="onnx", quantization="f32", context=CONTEXT, kv="q8")
    exported = compile_any(str(onnx_checkpoints["qwen3"]), tmp_path / "q8", options)
    assert isinstance(exported, ExportBundle)
    runner = OnnxRunner(exported, limits=LIMITS)
    whole = chunked_logits(runner, PROMPT, 75)
    assert relative_rms(chunked_logits(runner, PROMPT, 33), whole) < ONNX_F32
    for mine, alone_ in zip(ragged_logits(runner), sequences_alone(runner), strict=True):
        assert relative_rms(mine, alone_) < ONNX_F32
    runner.submit(make_batch([Chunk(PROMPT[:20], 0, [1])], CONTEXT))
    runner.copy_pages([(1, 3)])
    assert relative_rms(decode(runner, 3, 20), whole[20]) < ONNX_F32
    runner.close()


def decode(runner: OnnxRunner, page: int, start: int, *others: tuple[int, int]) -> Array:
    """The logits of one more token of PROMPT in a page, beside others (page, start)."""
    chunks = [Chunk([PROMPT[at]], at, [which], [0]) for which, at in ((page, start), *others)]
    logits: Array = runner.forward(make_batch(chunks, CONTEXT)).logits[0]
    return logits


def test_memory_between_the_sequences_of_a_step_is_not_changed(compiled: Compile) -> None:
    exported, planned = compiled("qwen3", "f32")
    right = chunked_logits(reference(planned), PROMPT, 75)
    longest = (PROMPT * 2)[:CONTEXT]
    expected = chunked_logits(reference(planned), longest, CONTEXT)
    runner = OnnxRunner(exported, limits=LIMITS)
    # Page 1 is full, page 2 is in the middle of a prompt, page 3 is empty: steps on pages 0 and 4 pass over them.
    runner.forward(make_batch([Chunk(longest, 0, [1])], CONTEXT))
    for page in (0, 2, 4):
        runner.forward(make_batch([Chunk(PROMPT[:20], 0, [page])], CONTEXT))
    for start in range(20, 60):
        assert relative_rms(decode(runner, 0, start, (4, start)), right[start]) < ONNX_F32
    last = runner.forward(make_batch([Chunk(longest[-1:], CONTEXT - 1, [1], [0])], CONTEXT))
    assert relative_rms(last.logits[0], expected[-1]) < ONNX_F32
    rest = runner.forward(make_batch([Chunk(PROMPT[20:], 20, [2], [54]), Chunk(PROMPT[:1], 0, [3], [0])], CONTEXT))
    assert relative_rms(rest.logits, right[[74, 0]]) < ONNX_F32
    runner.close()


def test_logits_follow_the_rows_of_a_batch_whatever_the_previous_batch_had(compiled: Compile) -> None:
    exported, planned = compiled("qwen3", "f32")
    right = chunked_logits(reference(planned), PROMPT, 75)
    runner = OnnxRunner(exported, limits=LIMITS)
    at = dict.fromkeys(range(3), 20)
    runner.forward(make_batch([Chunk(PROMPT[:20], 0, [page]) for page in at], CONTEXT))
    found = []
    # The number of tokens for each page. Pages 0 and 1 share a call, at indices 0 and 2, 0 and 1, 1 and 2, in the other
    # order, and again.
    for batch in ({0: 1, 2: 3, 1: 1}, {0: 1, 1: 1}, {2: 2, 0: 1, 1: 1}, {1: 1, 0: 1}, {0: 1, 1: 1}):
        chunks = [
            Chunk(PROMPT[at[page] : at[page] + count], at[page], [page], [count - 1]) for page, count in batch.items()
        ]
        at |= {page: at[page] + count for page, count in batch.items()}
        found.append((runner.forward(make_batch(chunks, CONTEXT)).logits, right[[at[page] - 1 for page in batch]]))
    # Later runs do not change logits that were read.
    for logits, expected in found:
        for mine, wanted in zip(logits, expected, strict=True):
            assert relative_rms(mine, wanted) < ONNX_F32
    runner.close()


def test_gaps_close_once_they_have_cost_more_than_a_move() -> None:
    rows = KvRows([(1, 2), (1, 2)], pages=4, context=200, dtype="float32")
    for page, length in enumerate((100, 50, 0, 200)):
        for plane in rows.planes:
            plane[page, :, :length] = page + 1
        rows.wrote(page, length)
    assert FILLER_TOKENS == 64
    # After two steps, the fillers have cost as much as swapping page 0 with page 1 (150 tokens), and then with page 2
    # (100 tokens).
    assert [len(rows.span([0, 3])) for _ in range(3)] == [4, 2, 2]
    for page, length in enumerate((100, 50, 0, 200)):
        row = rows.row(page)
        assert rows.filled(row) == length
        for plane in rows.planes:
            assert (plane[row, 0, :length] == page + 1).all()
    with rows.fillers([rows.row(page) for page in range(4)]) as positions:
        assert positions == [100, 50, 0, 199]
        for plane in rows.planes:
            plane[rows.row(3), :, 199] = -1
    assert (rows.planes[1][rows.row(3)] == 4).all()


def test_a_sequence_goes_on_in_a_copied_page_and_after_refused_drafts(bundle: ExportBundle) -> None:
    runner = OnnxRunner(bundle, limits=LIMITS)
    runner.submit(make_batch([Chunk(PROMPT[:20], 0, [1])], CONTEXT))
    runner.copy_pages([(1, 3), (3, 0)])
    first = decode(runner, 1, 20)
    # Page 3 checks drafts that are rejected, then continues after the first token.
    drafts = runner.forward(make_batch([Chunk([PROMPT[20], 1, 2, 3], 20, [3], range(4))], CONTEXT))
    assert relative_rms(drafts.logits[0], first) < ONNX_INT8_MODEL
    assert relative_rms(decode(runner, 3, 21), decode(runner, 1, 21)) < ONNX_INT8_MODEL
    np.testing.assert_array_equal(decode(runner, 0, 20), first)
    runner.close()


def test_a_bundle_that_cannot_run_here_is_refused_with_advice(
    bundle: ExportBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = ExportBundle(bundle.path, bundle.manifest.model_copy(update={"device": "cuda"}))
    with pytest.raises(DeviceError, match=r"was made for cuda.* --device cpu"):
        open_runner("onnx", elsewhere, LIMITS)
    with pytest.raises(RequestError, match="was compiled for onnx; the cpu runner cannot run it"):
        open_runner("cpu", bundle, LIMITS)
    with pytest.raises(DeviceError, match=r"no memory for the keys and values of \d+ sequences .* --kv-memory"):
        OnnxRunner(bundle, limits=replace(LIMITS, pages=1 << 40))
    broken = tmp_path / "broken"
    (broken / "onnx").mkdir(parents=True)
    (broken / "onnx/model.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match="cannot be read as a graph"):
        OnnxRunner(ExportBundle(broken, bundle.manifest))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ToolError, match=r"pip install 'nearfar\[onnx\]'"):
        OnnxRunner(bundle)


def test_too_little_memory_for_the_weights_is_reported(bundle: ExportBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

    def fails(*_: object, **__: object) -> None:
        raise RuntimeException(
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: std::bad_alloc"
        )

    monkeypatch.setattr(onnxruntime, "InferenceSession", fails)
    with pytest.raises(DeviceError, match=r"bad_alloc; free memory"):
        OnnxRunner(bundle)


def test_run_score_and_inspect_accept_the_bundle(
    bundle: ExportBundle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from nearfar.compiler.cli import main

    assert main(["run", str(bundle.path), "hello", "--raw", "--max-tokens", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["token_ids"]) == 3
    assert answer["device"].startswith("ONNX Runtime on the CPU")
    tokens = ",".join(map(str, PROMPT))
    assert main(["score", str(bundle.path), "--tokens", tokens, "-o", str(tmp_path / "logits.npy"), "--json"]) == 0
    assert np.load(tmp_path / "logits.npy").shape == (75, VOCAB_SIZE)
    capsys.readouterr()
    assert main(["inspect", str(bundle.path), "--verify", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    spec = report["spec"]
    assert report["kv_bytes_per_token"] == 2 * spec["num_layers"] * spec["num_kv_heads"] * spec["head_dim"] * 4
    assert report["runtime_memory_bytes"] == report["weight_bytes"] + CONTEXT * report["kv_bytes_per_token"]
    assert report["files"]["onnx/model.onnx"] < report["weight_bytes"]
    assert main(["inspect", str(bundle.path)]) == 0
    printed = capsys.readouterr().out
    assert "for onnx, cpu" in printed
    assert "q4f16, activations float32, groups of 32" in printed
    assert "genai_config.json" in printed
