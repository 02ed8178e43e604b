"""LoRA adapters on bundles for GPUs, and on top of integers that a checkpoint stores, against the numpy runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from conftest import CompileTiny
from gguf import GGMLQuantizationType as Type
from gguf_files import WIDE, make_gguf
from light_bundle import kernels_of_models
from tiny_adapters import MLP, SELF_ATTENTION, Deltas, adapted_logits, make_adapter
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits, Runner
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.webgpu.runner import WebGPURunner

LIMITS = Limits(tokens=32, sequences=3, rows=3, pages=6, adapters=2)
# Token ids of three sequences, and the slot of each one's adapter.
PROMPTS = {-1: [5, 9, 2, 77, 31], 0: [400, 3, 3, 8, 250, 17], 1: [60, 61]}


def logits_of(runner: Runner, bundle: Bundle, adapter: Path) -> npt.NDArray[np.float32]:
    """The logits of a batch whose sequences have no adapter or this one, in both slots."""
    for slot in (0, 1):
        for name, values in read_adapter(adapter, bundle.manifest).items():
            # The second slot has half of the change.
            factor = np.float32(0.5 if slot == 1 and name.endswith("lora_b") else 1)
            runner.write_state(name, slot, values * factor)
    chunks = [
        Chunk(prompt, 0, [2 * place, 2 * place + 1], [len(prompt) - 1], adapter=slot)
        for place, (slot, prompt) in enumerate(PROMPTS.items())
    ]
    logits = runner.forward(make_batch(chunks, 16)).logits.copy()
    runner.close()
    return logits


# The kernels of adapters have cases, the test below has them on a CPU, and cuda/test_cuda_runner.py on a GPU.
@pytest.mark.exhaustive
def test_adapters_on_a_gpu_change_the_logits_as_in_transformers(
    compile_tiny: CompileTiny, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoints["qwen3"]
    bundle = open_bundle(compile_tiny("qwen3", "f32", target="webgpu", lora_rank=4))
    deltas = make_adapter(tmp_path / "a", checkpoint, SELF_ATTENTION + MLP, rank=4, alpha=8, seed=1)
    found = logits_of(WebGPURunner(bundle, limits=LIMITS, activation="float32"), bundle, tmp_path / "a")
    halves = {module: delta * np.float32(0.5) for module, delta in deltas.items()}
    changes: dict[int, Deltas] = {-1: {}, 0: deltas, 1: halves}
    for row, (slot, prompt) in zip(found, PROMPTS.items(), strict=True):
        expected = adapted_logits(checkpoint, changes[slot], prompt)[-1]
        assert relative_error(row, expected) < F32, slot


@pytest.mark.parametrize(
    ("target", "make_runner"), [("cpu", CpuRunner), pytest.param("webgpu", WebGPURunner, marks=pytest.mark.exhaustive)]
)
def test_adapters_change_a_model_whose_checkpoint_stores_integers(
    target: str, make_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    def stored(name: str) -> Type:
        return Type.Q8_0 if "attn_v" in name else Type.Q4_1 if "ffn" in name else Type.Q4_0

    # One layer: attention of random weights amplifies the order of sums.
    file, _ = make_gguf("qwen3", tmp_path, stored, {**WIDE, "num_hidden_layers": 1})
    options = CompileOptions(target=target, context=64, lora_rank=3, self_test=False, activations=("float32",))
    with kernels_of_models():
        bundle: Bundle = compile_model(str(file), tmp_path / "bundle", options)
    assert {weight.quantization for weight in bundle.manifest.weights.values()} == {
        None, "q4g32_f16", "q4g32b_f16", "q8g32_f16",
    }  # fmt: skip
    make_adapter(tmp_path / "a", tmp_path, ("q_proj", "v_proj", "up_proj", "down_proj"), rank=3, alpha=6, seed=2)
    runner = make_runner(bundle, limits=LIMITS)
    expected = logits_of(ReferenceRunner(bundle, limits=LIMITS), bundle, tmp_path / "a")
    assert relative_error(logits_of(runner, bundle, tmp_path / "a"), expected) < F32
    assert relative_error(expected[0], expected[1]) > 0.1
