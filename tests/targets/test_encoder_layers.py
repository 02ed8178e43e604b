"""Layers of encoders on every kernel target against transformers, at sizes that fill no tile: three heads of 20
elements, and a ragged batch of texts of 1, 17 and 33 tokens. Buffers have room for one text of 16 tokens at first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_driver import EmulatedDriver
from light_bundle import kernels_of_models
from tiny_encoders import CONTEXT, make_encoder, rows_of, texts_of
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.measure.report import make_report
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime import plan_runner
from nearfar.compiler.runtime.encoding import Text, encode
from nearfar.compiler.runtime.plan_runner import PlanRunner
from nearfar.compiler.runtime.runner import Limits

LIMITS = Limits(tokens=75, sequences=3)
TEXTS = texts_of([1, 17, 33])
SIZES = {"hidden_size": 60, "num_attention_heads": 3}
# DeBERTa names the size of heads as well. MPNet's have 36 elements here, so that WebGPU's fused attention has their
# queries in workgroup memory.
OWN_SIZES = {"deberta-v2": {"attention_head_size": 20}, "mpnet": {"hidden_size": 108}}
# The kernels for few rows, one for each kind of layer. They have no products with heads of distances.
FUSED_KERNELS = {"bert": 1, "mpnet": 1, "embedding_gemma2_text": 2, "jina_embeddings_v3": 1}
FUSED = "ragged_attention_linear_"


def runner_of(target: str, bundle: Bundle, request: pytest.FixtureRequest) -> PlanRunner:
    if target == "webgpu":
        request.getfixturevalue("vulkan")
        from nearfar.targets.webgpu.runner import WebGPURunner

        return WebGPURunner(bundle, limits=LIMITS)
    if target == "cpu":
        from nearfar.targets.cpu.runner import CpuRunner

        return CpuRunner(bundle, limits=LIMITS)
    from nearfar.targets.cuda.runner import CudaRunner

    request.getfixturevalue("nvrtc")
    return CudaRunner(bundle, limits=LIMITS, driver=EmulatedDriver(request.getfixturevalue("emulated_cuda")))


# The scores of MPNet have biases, DeBERTa's further products. EmbeddingGemma 2 normalizes values. OpenAI's privacy
# filter has sinks and experts. The cases of kernels have these blocks on every target.
@pytest.mark.parametrize(
    ("family", "target"),
    [
        *(("bert", "webgpu"), ("bert", "cuda"), ("deberta-v2", "cpu")),
        *(("embedding_gemma2_text", "cpu"), ("openai_privacy_filter", "cpu")),
        pytest.param("bert", "cpu", marks=pytest.mark.exhaustive),
        pytest.param("deberta-v2", "webgpu", marks=pytest.mark.exhaustive),
        pytest.param("jina_embeddings_v3", "webgpu", marks=pytest.mark.exhaustive),
        pytest.param("mpnet", "webgpu", marks=pytest.mark.exhaustive),
        pytest.param("mpnet", "cpu", marks=pytest.mark.exhaustive),
        pytest.param("embedding_gemma2_text", "webgpu", marks=pytest.mark.exhaustive),
        pytest.param("jina_embeddings_v3", "cpu", marks=pytest.mark.exhaustive),
        pytest.param("openai_privacy_filter", "webgpu", marks=pytest.mark.exhaustive),
    ],
)
def test_vectors_are_those_of_transformers(
    family: str, target: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_runner, "FIRST_TOKENS", 16)
    sizes = {**SIZES, **OWN_SIZES.get(family, {})}
    model = make_encoder(family, "mean_tokens", tmp_path / "checkpoint", **sizes, num_hidden_layers=2)
    options = CompileOptions(
        target=target, quantization="f32", context=CONTEXT, activations=("float32",), self_test=False
    )
    with kernels_of_models(LIMITS):
        bundle = compile_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options)
    runner = runner_of(target, bundle, request)
    try:
        # The buffers grow for the first batch, and for the second.
        found = [*encode(runner, [Text(TEXTS[1])]), *encode(runner, [Text(text) for text in TEXTS])]
    finally:
        runner.close()
    for text, vector in zip([TEXTS[1], *TEXTS], found, strict=True):
        assert relative_error(vector, rows_of(model, text).mean(axis=0)) < F32, len(text)
    if target == "webgpu":
        assert sum(name.startswith(FUSED) for name in bundle.manifest.kernels) == FUSED_KERNELS.get(family, 0)
        if family == "bert":
            # Four a layer; the lookups of tokens and of positions, the last norm, and the pooling.
            assert make_report(bundle.manifest).dispatches_at_context == 4 * 2 + 4
