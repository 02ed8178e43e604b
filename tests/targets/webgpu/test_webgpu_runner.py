"""Complete bundles on wgpu: compared with transformers and, in both activation dtypes, with the reference runner; and
ragged batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import compiler_of
from light_bundle import kernels_for, kernels_of_models
from made_once import shared_folder
from ragged import chunked_logits
from tolerances import F32, INT8, INT8_MODEL, KV_Q4, KV_Q4_F32, KV_Q8, KV_Q8_F16, OF_ACTIVATION, relative_error

from nearfar.compiler import quant
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.self_test import FLOAT32_LEAST
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.vector_test import largest_difference
from nearfar.targets.cpu.runner import CpuRunner
from nearfar.targets.webgpu import lower
from nearfar.targets.webgpu.device import choose_activation, features_of, preferred_adapter, vendor_of
from nearfar.targets.webgpu.runner import WebGPURunner

CompileTiny = Callable[..., Path]
ALL_ROWS = Limits(tokens=75, sequences=3, rows=75, pages=20)


@pytest.fixture(scope="module")
def compile_few(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> CompileTiny:
    """As `compile_tiny`, but with the kernels alone that batches within ALL_ROWS run."""
    folder = shared_folder(tmp_path_factory, "few-bundles")
    return compiler_of(tiny_checkpoints, folder, lambda: kernels_for(ALL_ROWS))


pytestmark = pytest.mark.usefixtures("vulkan")


# One architecture in every quantization, the others in one. `make test` runs one of them: kernels
# have cases of their own in each, and `test_architectures.py` compares all architectures with transformers in float32.
USUAL = (("qwen3", "q4f16", "float16"),)
CASES = [
    (checkpoint, name, activation)
    for checkpoint in ("llama", "phi3", "qwen3")
    for name in (quant.NAMES[:-1] if checkpoint == "qwen3" else ("q4f16",))
    for activation in quant.by_name(name).activations
]


@pytest.mark.parametrize(
    ("checkpoint", "quantization", "activation"),
    [case if case in USUAL else pytest.param(*case, marks=pytest.mark.exhaustive) for case in CASES],
)
def test_logits_are_those_of_the_reference_in_the_same_activation_dtype(
    checkpoint: str, quantization: str, activation: str, compile_few: CompileTiny, prompt_token_ids: list[int]
) -> None:
    bundle = open_bundle(compile_few(checkpoint, quantization, activations=(activation,), self_test=False))
    expected = chunked_logits(ReferenceRunner(bundle, activation=activation), prompt_token_ids, 75)
    runner = WebGPURunner(bundle, limits=ALL_ROWS, activation=activation)
    for chunk in (75, 3):
        found = chunked_logits(runner, prompt_token_ids[: 75 if chunk == 75 else 12], chunk)
        assert relative_error(found, expected[: len(found)]) < OF_ACTIVATION[activation], chunk
    runner.close()


# An encoder has int8 below; the kernels have cases of their own, and targets/cpu models.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("checkpoint", "quantization"), [("qwen3", "q4f16"), pytest.param("phi3", "q8f16", marks=pytest.mark.exhaustive)]
)
def test_int8_activations_give_the_logits_of_those_on_a_cpu(
    checkpoint: str, quantization: str, compile_few: CompileTiny, compile_base: CompileTiny, prompt_token_ids: list[int]
) -> None:
    options = {"activations": ("int8",), "self_test": False}
    bundle = open_bundle(compile_few(checkpoint, quantization, **options))
    reference = ReferenceRunner(bundle, activation="float32")
    cpu = CpuRunner(open_bundle(compile_base(checkpoint, quantization, target="cpu", **options)), limits=ALL_ROWS)
    runner = WebGPURunner(bundle, limits=ALL_ROWS)
    assert runner.activation == cpu.activation == "int8"
    right = chunked_logits(reference, prompt_token_ids, 75)
    assert F32 < relative_error(chunked_logits(runner, prompt_token_ids, 75), right) < INT8_MODEL
    # Kernels of few rows and of many.
    for count in (4, 7):
        texts = [prompt_token_ids[start : start + count] for start in range(0, 63, count)]
        errors = [relative_error(chunked_logits(runner, ids, count), chunked_logits(cpu, ids, count)) for ids in texts]
        # A device may break a tie between two codes differently, which the text's later rows and layers spread.
        assert np.median(errors) < F32, count
        assert max(errors) < INT8, count
    for each in (cpu, runner):
        each.close()


def test_an_encoder_passes_its_own_test_with_int8(compile_few: CompileTiny) -> None:
    bundle = open_bundle(compile_few("embedding", "q8f16", activations=("int8",)))
    runner, test = WebGPURunner(bundle), bundle.manifest.vector_test
    assert test is not None
    # It rounds more than float32 may.
    assert FLOAT32_LEAST < largest_difference(runner, test) < test.tolerances["int8"]
    runner.close()


# The kernels that write and read such pages have cases of their own, and other targets models.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kv", "activation"), [("q8", "float16"), pytest.param("q4", "float32", marks=pytest.mark.exhaustive)]
)
def test_with_quantized_keys_and_values_logits_are_those_of_the_reference_which_are_near_the_unquantized(
    kv: str, activation: str, compile_few: CompileTiny, compile_light: CompileTiny, prompt_token_ids: list[int]
) -> None:
    bundle = open_bundle(compile_few("qwen3", "q8f16", kv=kv, activations=(activation,), self_test=False))
    expected = chunked_logits(ReferenceRunner(bundle, activation=activation), prompt_token_ids, 75)
    runner = WebGPURunner(bundle, limits=ALL_ROWS, activation=activation)
    for chunk in (75, 16, 1):
        found = chunked_logits(runner, prompt_token_ids, chunk)
        assert relative_error(found, expected) < (KV_Q8_F16 if kv == "q8" else KV_Q4_F32), chunk
    runner.close()
    plain = compile_light("qwen3", "q8f16", self_test=False)
    unquantized = ReferenceRunner(open_bundle(plain), activation=activation)
    assert (
        0 < relative_error(expected, chunked_logits(unquantized, prompt_token_ids, 75)) < {"q8": KV_Q8, "q4": KV_Q4}[kv]
    )


@pytest.mark.parametrize("checkpoint", [pytest.param("llama", marks=pytest.mark.exhaustive), "qwen3"])
def test_decoding_on_both_sides_of_the_split_gives_the_logits_of_prefill(
    checkpoint: str, compile_tiny: CompileTiny
) -> None:
    bundle = open_bundle(compile_tiny(checkpoint, "f32", context=320))
    token_ids = [(5 * i * i + 3 * i) % 509 for i in range(260)]
    long, short = list(range(20)), list(range(20, 24))
    # First the long sequence up to 253 tokens, then both token by token: two of the last steps have a T up to 256, four
    # a larger one.
    runner = WebGPURunner(bundle, limits=Limits(tokens=64, sequences=2, rows=2, pages=24))
    for start in range(0, 254, 64):
        runner.forward(make_batch([Chunk(token_ids[start : min(start + 64, 254)], start, long)], 16))
    found = []
    for step in range(6):
        chunks = [Chunk([token_ids[254 + step]], 254 + step, long, [0]), Chunk([token_ids[step]], step, short, [0])]
        found.append(runner.forward(make_batch(chunks, 16)).logits)
    runner.close()
    expected = chunked_logits(ReferenceRunner(bundle), token_ids, 260)
    assert relative_error(np.stack(found, axis=1), np.stack([expected[254:], expected[:6]])) < F32


@pytest.mark.parametrize(
    ("checkpoint", "quantization"),
    [
        pytest.param("llama", "q4f16", marks=pytest.mark.exhaustive),
        pytest.param("llama_plain", "f32", marks=pytest.mark.exhaustive),
        ("qwen2", "q4f16"),
        pytest.param("qwen3", "q4f32", marks=pytest.mark.exhaustive),
    ],
)
def test_weights_split_for_small_bindings_give_the_same_logits(
    checkpoint: str,
    quantization: str,
    compile_light: CompileTiny,
    tiny_checkpoints: dict[str, Path],
    prompt_token_ids: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ReferenceRunner(open_bundle(compile_light(checkpoint, quantization)), activation="float32")
    # One layer's pages of 16 tokens take 9,216 bytes.
    limit = 9_300
    monkeypatch.setattr(lower, "MAX_BINDING_BYTES", limit)
    options, limits = CompileOptions(quantization=quantization, context=16), Limits(tokens=16, sequences=1, rows=16)
    with kernels_of_models(limits):
        split = compile_model(
            str(tiny_checkpoints[checkpoint]), tmp_path / "split", replace(options, activations=("float32",))
        )
    assert all(plane.size <= limit for weight in split.manifest.weights.values() for plane in weight.planes)
    ops = [step.op for step in split.manifest.plan("generate").steps]
    assert ops.count("embed") > 1
    assert quantization != "f32" or ops.count("linear") > 5
    expected = chunked_logits(whole, prompt_token_ids[:16], 16)
    assert relative_error(chunked_logits(ReferenceRunner(split), prompt_token_ids[:16], 16), expected) < F32
    runner = WebGPURunner(split, limits=limits, activation="float32")
    for chunk in (16, 3):
        assert relative_error(chunked_logits(runner, prompt_token_ids[:16], chunk), expected) < F32
    runner.close()


def test_greedy_answers_are_those_of_the_reference(tiny_bundle: Path) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    runner = WebGPURunner(open_bundle(tiny_bundle), activation="float32")
    assert list(generate(runner, expected["prompt_token_ids"], 64, Sampler())) == expected["token_ids"]
    runner.close()


def test_a_device_without_f16_uses_float32_if_the_bundle_offers_it(compile_tiny: CompileTiny) -> None:
    path = compile_tiny("qwen3", "q4f16")
    manifest = open_bundle(path).manifest
    assert choose_activation(manifest, {"shader-f16"}, None, path).dtype == "float16"
    assert choose_activation(manifest, set(), None, path).dtype == "float32"
    assert choose_activation(manifest, {"shader-f16"}, "float32", path).dtype == "float32"


def test_a_gpu_precedes_a_cpu_and_the_wanted_features_decide_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    import wgpu

    def adapter(name: str, kind: str, *features: str, backend: str = "Vulkan") -> SimpleNamespace:
        info = {"device": name, "adapter_type": kind, "backend_type": backend}
        return SimpleNamespace(info=info, features=features)

    def preferred(*adapters: SimpleNamespace) -> str:
        monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: list(adapters))
        found = preferred_adapter([("shader-f16",), ()])
        return "none" if found is None else str(found.info["device"])

    cpu = adapter("cpu", "CPU", "shader-f16")
    integrated = adapter("integrated", "IntegratedGPU", "shader-f16")
    discrete = adapter("discrete", "DiscreteGPU")
    discrete16 = adapter("discrete with f16", "DiscreteGPU", "shader-f16")
    unnamed = adapter("unnamed", "SomethingNew")
    assert preferred(cpu, integrated, discrete) == "discrete"
    assert preferred(cpu, discrete, discrete16) == "discrete with f16"
    assert preferred(cpu, unnamed) == "unnamed"
    assert preferred(adapter("gl", "DiscreteGPU", backend="OpenGL"), cpu) == "cpu"
    assert preferred() == "none"


def test_a_device_of_wgpu_with_subgroups_has_what_variants_need() -> None:
    assert {"subgroups", "subgroup_id"} <= features_of({"subgroup"})
    assert features_of({"shader-f16"}) == {"shader-f16", "packed_4x8_integer_dot_product"}


def test_a_device_of_wgpu_has_the_vendor_of_its_adapter() -> None:
    vendors = [
        vendor_of({"vendor_id": vendor, "backend_type": backend})
        for vendor, backend in ((0x8086, "Vulkan"), (0, "Metal"), (0x10005, "Vulkan"))
    ]
    assert vendors == ["intel", "apple", ""]
    assert "vendor-intel" in features_of(set(), "intel")
    assert features_of(set(), "") == features_of(set())


def test_a_device_without_f16_is_named_when_the_bundle_has_nothing_else(compile_light: CompileTiny) -> None:
    path = compile_light("qwen3", "q4f16", activations=("float16",))
    manifest = open_bundle(path).manifest
    with pytest.raises(DeviceError, match="needs shader-f16, which this device does not have"):
        choose_activation(manifest, set(), None, path)
    with pytest.raises(DeviceError, match="compiled for float16 activations, not for float32"):
        choose_activation(manifest, {"shader-f16"}, "float32", path)
