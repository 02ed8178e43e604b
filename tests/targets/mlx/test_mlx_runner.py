"""The MLX runner against the reference runner on a plan of the same weights, alone and side by side."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plain_target import compile_plain
from ragged import CHUNK_SIZES, chunked_logits, ragged_logits, sequences_alone
from tiny_models import VOCAB_SIZE
from tolerances import F16, F32, KV_Q8, KV_Q8_F16, relative_error

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, file_entry, open_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError, ToolError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner

CompileTiny = Callable[..., Path]
Plans = Callable[[str, str], Bundle]
LIMITS = Limits(tokens=75, sequences=3, rows=75, pages=20)

pytestmark = pytest.mark.usefixtures("mlx")


@pytest.fixture(scope="module")
def plans(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Plans:
    """plans(checkpoint, quantization) -> a bundle for the reference runner, with the same weights."""

    def compile_plan(checkpoint: str, quantization: str) -> Bundle:
        return compile_plain(
            tiny_checkpoints[checkpoint], tmp_path_factory.mktemp("plan") / "bundle", quantization, 256
        )

    return compile_plan


def mlx_runner(path: Path, limits: Limits = LIMITS) -> Runner:
    bundle = open_any(path)
    assert isinstance(bundle, ExportBundle)
    return open_runner("mlx", bundle, limits)


@pytest.mark.parametrize(
    ("checkpoint", "quantization", "group_size"),
    [
        ("llama", "f32", None),
        # The 4 bits of the next one, in float32.
        pytest.param("llama_plain_wide", "q4f32", 32, marks=pytest.mark.exhaustive),
        ("qwen2_wide", "q4f16", 32),
        ("qwen3_wide", "q8f16", 32),
    ],
)
def test_logits_are_those_of_the_reference_in_chunks_of_any_size(
    checkpoint: str,
    quantization: str,
    group_size: int | None,
    compile_tiny: CompileTiny,
    plans: Plans,
    prompt_token_ids: list[int],
) -> None:
    path = compile_tiny(checkpoint, quantization, target="mlx", group_size=group_size, activations=("float32",))
    expected = chunked_logits(ReferenceRunner(plans(checkpoint, quantization)), prompt_token_ids, 75)
    runner = mlx_runner(path)
    for chunk in CHUNK_SIZES:
        assert relative_error(chunked_logits(runner, prompt_token_ids, chunk), expected) < F32 / 10, chunk
    runner.close()


def test_norms_and_scales_of_float16_are_near_those_of_float32(
    compile_tiny: CompileTiny, prompt_token_ids: list[int]
) -> None:
    whole = []
    for activation in ("float32", "float16"):
        runner = mlx_runner(
            compile_tiny("qwen3_wide", "q8f16", target="mlx", group_size=128, activations=(activation,))
        )
        whole.append(chunked_logits(runner, prompt_token_ids, 33))
        runner.close()
    assert relative_error(whole[1], whole[0]) < F16


def test_8_bit_keys_and_values_are_near_those_of_float32(
    compile_tiny: CompileTiny, prompt_token_ids: list[int]
) -> None:
    runners = [
        mlx_runner(compile_tiny("llama_wide", "q8f16", target="mlx", activations=("float32",), kv=kv))
        for kv in ("activation", "q8")
    ]
    exact, whole = (chunked_logits(runner, prompt_token_ids, 75) for runner in runners)
    assert 0 < relative_error(whole, exact) < KV_Q8
    for chunk in CHUNK_SIZES:
        assert relative_error(chunked_logits(runners[1], prompt_token_ids, chunk), whole) < KV_Q8_F16, chunk
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("kv", ["activation", "q8"])
def test_sequences_side_by_side_are_each_as_alone(kv: str, compile_tiny: CompileTiny) -> None:
    path = compile_tiny("qwen3_wide", "q4f16", target="mlx", activations=("float32",), kv=kv)
    runner = mlx_runner(path)
    for mine, alone in zip(ragged_logits(runner), sequences_alone(runner), strict=True):
        assert relative_error(mine, alone) < (F32 / 10 if kv == "activation" else KV_Q8_F16)
    runner.close()


def test_a_sequence_outgrows_its_memory_and_a_copy_of_it_goes_its_own_way(compile_tiny: CompileTiny) -> None:
    path = compile_tiny("qwen2_wide", "q4f16", target="mlx", activations=("float32",), context=300)
    runner = mlx_runner(path, Limits(tokens=300, sequences=2, rows=300, pages=3))
    tokens = [(5 * i * i + 3 * i) % VOCAB_SIZE for i in range(300)]
    expected = runner.forward(make_batch([Chunk(tokens, 0, [0], range(300))], 300)).logits
    runner.forward(make_batch([Chunk(tokens[:250], 0, [2])], 300))
    runner.copy_pages([(2, 1)])
    # Another token on one of the two pages, then both continue beyond 256 tokens, the size by which pages grow.
    runner.forward(make_batch([Chunk([9], 250, [2])], 300))
    runner.forward(make_batch([Chunk(tokens[250:290], 250, [1]), Chunk([7] * 20, 251, [2])], 300))
    found = runner.forward(make_batch([Chunk(tokens[290:], 290, [1], range(10))], 300)).logits
    assert relative_error(found, expected[290:]) < F32 / 10
    # Rows are overwritten, as after rejected drafts.
    again = runner.forward(make_batch([Chunk(tokens[260:], 260, [1], range(40))], 300)).logits
    assert relative_error(again, expected[260:]) < F32 / 10
    runner.close()


def test_a_runner_may_be_opened_on_one_thread_and_used_on_others(compile_tiny: CompileTiny) -> None:
    # As in the server, because MLX has separate streams for each thread.
    runner = mlx_runner(compile_tiny("llama", "f32", target="mlx"))
    expected = runner.forward(make_batch([Chunk([1, 2, 3], 0, [0], [2])], 256)).logits
    with ThreadPoolExecutor(1) as pool:
        runner.forward(make_batch([Chunk([1, 2], 0, [1])], 256))
        found = pool.submit(lambda: runner.forward(make_batch([Chunk([3], 2, [1], [0])], 256)).logits).result()
    assert relative_error(found, expected) < F32 / 10
    runner.close()


def test_weights_that_mlx_cannot_read_are_named(compile_tiny: CompileTiny, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(compile_tiny("llama", "f32", target="mlx"), path)
    (path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{]")
    bundle = open_any(compile_tiny("llama", "f32", target="mlx"))
    assert isinstance(bundle, ExportBundle)
    files = [file_entry(path, entry.file) for entry in bundle.manifest.files]
    damaged = ExportBundle(path, bundle.manifest.model_copy(update={"files": files}))
    with pytest.raises(DeviceError, match="damaged: MLX cannot load the weights"):
        open_runner("mlx", damaged, LIMITS)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    compile_tiny: CompileTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compile_tiny("llama", "f32", target="mlx")
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(ToolError, match=r"pip install 'nearfar\[mlx\]'"):
        mlx_runner(path)


def test_on_a_mac_metal_computes_what_the_reference_does(
    compile_tiny: CompileTiny, plans: Plans, prompt_token_ids: list[int], mlx: Any
) -> None:
    if not mlx.metal.is_available():
        pytest.skip("needs a Mac: MLX finds no Metal device")
    expected = chunked_logits(ReferenceRunner(plans("qwen3_wide", "q4f16")), prompt_token_ids, 75)
    for activation, limit in (("float16", F16), ("float32", F32)):
        runner = mlx_runner(compile_tiny("qwen3_wide", "q4f16", target="mlx", activations=(activation,)))
        assert f"({activation})" in runner.device
        for chunk in CHUNK_SIZES:
            assert relative_error(chunked_logits(runner, prompt_token_ids, chunk), expected) < limit, (
                activation,
                chunk,
            )
        runner.close()
