"""Bundles as GGUF files: the bundle's own integers, and the tokens of llama.cpp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CompileTiny, lacks
from decoder_families import TOKENS
from draft_heads import DraftHeads
from gguf import GGUFReader
from gguf_files import MODELS, WIDE, make_gguf
from light_bundle import few_kernels, one_compilation
from made_once import made_once, shared_folder
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import load
from nearfar.compiler.formats.checkpoint import StoredMatrix
from nearfar.compiler.formats.gguf.write_metadata import model_metadata
from nearfar.compiler.ir.spec import ModelSpec
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import OutputError, QuantizationError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

PROMPT = [(7 * i * i + 3 * i + 5) % 250 for i in range(10)]
# llama.cpp rounds the inputs of a projection to 8 bits; with float weights, it computes attention in float16.
LIMITS = {"q4f16": 0.4, "f32": 0.03}
Bundles = Callable[[str, str, str], Bundle]


@pytest.fixture(scope="module")
def bundles(compile_light: CompileTiny, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """A bundle (name, quantization, target) for 256 tokens with few kernels, for the target "plain" with none: a tiny
    checkpoint (qwen3, llama_wide), a model of MODELS, or demo.
    """
    folder = shared_folder(tmp_path_factory, "exported")

    def make(name: str, quantization: str, target: str) -> Bundle:
        if name == "qwen3" or name.endswith("_wide"):
            return open_bundle(compile_light(name, quantization, target=target, self_test=False))

        def compile_it(path: Path) -> None:
            checkpoint = CHECKPOINT
            if name != "demo":
                checkpoint = path.with_name(f"{path.name}-checkpoint")
                checkpoint.mkdir()
                make_gguf(name, checkpoint)
            if target == "plain":
                compile_plain(checkpoint, path, quantization, 256)
                return
            options = CompileOptions(target=target, quantization=quantization, context=256, self_test=False)
            with few_kernels(), one_compilation():
                compile_model(str(checkpoint), path, options)

        return open_bundle(made_once(folder / f"{name}-{quantization}-{target}", compile_it))

    return make


def logprobs_of(runner: ReferenceRunner, tokens: list[int]) -> np.ndarray[Any, Any]:
    """Those after each token (S, V)."""
    state = (0, 0) if runner.manifest.spec.states is not None else None
    chunk = Chunk(tokens, 0, range(16), range(len(tokens)), state=state)
    batch = make_batch([chunk], runner.manifest.page_size)
    logits = runner.forward(batch).logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def open_llama(file: Path) -> Any:
    try:
        from llama_runner import LlamaCpp

        return LlamaCpp(file)
    except ModuleNotFoundError:
        lacks("xllamacpp is not installed")


@pytest.mark.parametrize(
    ("name", "quantization", "target"),
    [
        ("llama_wide", "q4f16", "webgpu"),
        ("qwen3_wide", "q4f16", "webgpu"),
        ("gemma3", "q4f16", "webgpu"),
        ("phi3", "q4f16", "webgpu"),
        ("phi2", "q4f16", "plain"),
        # Weights that contain the factor of residuals.
        pytest.param("granite", "q4f16", "plain", marks=pytest.mark.exhaustive),
        ("llama_wide", "f32", "webgpu"),
        ("qwen3moe", "q4f16", "plain"),
        pytest.param("olmoe", "f32", "plain", marks=pytest.mark.exhaustive),
        ("granitemoe", "f32", "plain"),
        ("gpt-oss", "f32", "plain"),
        pytest.param("lfm2", "q4f16", "plain", marks=pytest.mark.exhaustive),
        ("lfm2moe", "f32", "plain"),
        ("qwen35", "q4f16", "plain"),
        # Queries, keys and values in another order; numbers of layers in keys; norms without factors.
        ("gptneox", "q4f16", "plain"),
        ("apertus", "f32", "plain"),
        ("olmo", "q4f16", "plain"),
        pytest.param("granitehybrid", "q4f16", "plain", marks=pytest.mark.exhaustive),
        ("granitehybrid_experts", "f32", "plain"),
        # The factors of its embedding and its head are in the file's tensors.
        ("falcon-h1", "f32", "plain"),
        ("mamba2", "q4f16", "plain"),
        pytest.param("gemma4", "q4f16", "plain", marks=pytest.mark.exhaustive),
        ("gemma4_experts", "f32", "plain"),
        ("demo", "q4f16", "cpu"),
    ],
)
def test_llama_cpp_continues_with_the_same_tokens(
    name: str, quantization: str, target: str, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = bundles(name, quantization, target)
    # A matrix of Gemma 4 contains a factor.
    options = GgufOptions(pre="starcoder" if name == "demo" else None, fallback="f16" if name == "gemma4" else None)
    export_gguf(bundle, tmp_path / "x.gguf", options)
    theirs = open_llama(tmp_path / "x.gguf")
    ours = ReferenceRunner(bundle, limits=Limits(tokens=64, rows=64, pages=16))
    answer, limit = theirs.greedy(PROMPT, 16), LIMITS[quantization]
    tokens = PROMPT + answer
    expected = logprobs_of(ours, tokens)
    sure = compared = 0
    for end, token in enumerate(answer, len(PROMPT)):
        logprobs = expected[end - 1]
        second, first = np.sort(logprobs)[-2:]
        # Random weights have tokens that are almost equally likely.
        if name == "demo" or first - second > limit:
            assert token == logprobs.argmax()
            sure += 1
        # The server leaves out those of a token that is a part of a character.
        if compared < 2 and (found := theirs.logprobs(tokens[:end], len(logprobs))) is not None:
            assert np.nanmax(np.abs(found - logprobs)) < limit
            compared += 1
    assert sure >= 3
    assert compared


@pytest.mark.parametrize(("name", "target"), [("demo", "cpu"), ("gemma3", "webgpu"), ("phi3", "webgpu")])
def test_a_file_has_the_integers_and_vectors_of_the_bundle(
    name: str, target: str, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = bundles(name, "q4f16", target)
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(pre="starcoder" if name == "demo" else None))
    read = load(str(tmp_path / "x.gguf"))
    expected = bundle_tensors(bundle)
    assert read.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        found, rows = read.tensors[name], np.arange(tensor.shape[0])
        if isinstance(found, StoredMatrix):
            assert found.form.name == "q4g32_f16"
            planes = tensor.planes(rows)
            for plane, values in found.planes(0, tensor.shape[0]).items():
                np.testing.assert_array_equal(values, planes[plane])
        else:
            assert tensor.form is None
            np.testing.assert_array_equal(found.rows(0, tensor.shape[0]), tensor.rows(rows))


def test_a_compiled_file_has_the_shards_of_the_bundle(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("qwen3_wide", "q4f16", "webgpu")
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions())
    options = CompileOptions(target="webgpu", context=256, self_test=False)
    with few_kernels():
        again = compile_model(str(tmp_path / "x.gguf"), tmp_path / "again", options)
    assert [shard.sha256 for shard in again.manifest.shards] == [shard.sha256 for shard in bundle.manifest.shards]
    assert again.manifest.tokenizer.chat_template == bundle.manifest.tokenizer.chat_template


def test_rows_that_are_not_whole_blocks_need_a_fallback(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("qwen3", "q4f16", "webgpu")
    with pytest.raises(QuantizationError, match=r"rows of 72 weights are not whole blocks of 32; use --fallback f32"):
        export_gguf(bundle, tmp_path / "x.gguf", GgufOptions())
    assert not list(tmp_path.iterdir())
    notes: list[str] = []
    kinds = export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(fallback="f16"), note=notes.append)
    assert set(kinds) == {"F16", "F32"}
    assert "largest error" in notes[0]
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(fallback="f32", force=True))
    expected, read = bundle_tensors(bundle), load(str(tmp_path / "x.gguf"))
    for name, tensor in expected.items():
        values = tensor.rows(np.arange(tensor.shape[0]))
        np.testing.assert_array_equal(read.tensors[name].rows(0, tensor.shape[0]), values)


def test_what_gguf_cannot_express_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    with pytest.raises(UnsupportedModel, match=r"llama.cpp has no name for its split of words"):
        export_gguf(bundles("demo", "q4f16", "cpu"), out, GgufOptions())
    bundle = bundles("llama_wide", "q4f16", "webgpu")

    def spec_of(**values: Any) -> ModelSpec:
        return dataclasses.replace(bundle.manifest.spec, **values)

    def changed(**values: Any) -> Bundle:
        return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"spec": spec_of(**values)}))

    with pytest.raises(UnsupportedModel, match=r"its embedding_scale is 0\.5, but a file has 1\.0"):
        export_gguf(changed(embedding_scale=0.5), out, GgufOptions())
    with pytest.raises(UnsupportedModel, match="its head is its embedding, but"):
        model_metadata("apertus", spec_of(model_type="apertus", tie_word_embeddings=True))
    with pytest.raises(UnsupportedModel, match="requires biases of its attention"):
        model_metadata("gptneox", spec_of(tie_word_embeddings=False, qkv_bias=False))
    with pytest.raises(UnsupportedModel, match="a cohere2 model cannot be exported as GGUF"):
        export_gguf(changed(model_type="cohere2"), out, GgufOptions())
    assert not list(tmp_path.iterdir())


def test_another_split_of_words_is_noted(bundles: Bundles, tmp_path: Path) -> None:
    notes: list[str] = []
    export_gguf(bundles("demo", "q4f16", "cpu"), tmp_path / "x.gguf", GgufOptions(pre="starcoder"), note=notes.append)
    assert notes
    assert "some texts have other tokens" in notes[0]


def test_without_a_tokenizer_a_file_has_the_weights(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("demo", "q4f16", "cpu")
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(tokenizer=False))
    read = GGUFReader(tmp_path / "x.gguf")
    assert read.fields["tokenizer.ggml.model"].contents() == "none"
    assert len(read.tensors) == len(bundle_tensors(bundle))


def test_a_file_has_the_heads_that_draft_tokens_of_the_bundle(tmp_path: Path) -> None:
    heads = DraftHeads(tmp_path / "checkpoint", **{**MODELS["qwen35"][1], **WIDE})
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64)
    given = load(str(tmp_path / "checkpoint"))
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions())
    read = load(str(tmp_path / "x.gguf"))
    assert read.spec.draft_layers == 1
    own = {name for name in given.tensors if name.startswith("mtp.")}
    assert own == {name for name in read.tensors if name.startswith("mtp.")} > {"mtp.fc.weight", "mtp.norm.weight"}
    for name in own:
        expected = given.tensors[name].rows(0, given.tensors[name].shape[0])
        found = read.tensors[name].rows(0, read.tensors[name].shape[0])
        # Norms are stored with 1 added.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    fields = GGUFReader(tmp_path / "x.gguf").fields
    assert fields["qwen35.block_count"].contents() == given.spec.num_layers + 1
    assert fields["qwen35.nextn_predict_layers"].contents() == 1
    # llama.cpp reads the heads, and the model computes the same with them.
    expected = heads.logits[20].astype(np.float64)
    expected -= expected.max()
    expected -= np.log(np.exp(expected).sum())
    found = open_llama(tmp_path / "x.gguf").logprobs(TOKENS[:21], len(expected))
    assert np.nanmax(np.abs(found - expected)) < LIMITS["f32"]


def test_a_file_is_replaced_only_with_force(bundles: Bundles, tmp_path: Path) -> None:
    bundle = bundles("llama_wide", "q4f16", "webgpu")
    (tmp_path / "x.gguf").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        export_gguf(bundle, tmp_path / "x.gguf", GgufOptions())
    assert (tmp_path / "x.gguf").read_text() == "mine"
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(force=True))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
