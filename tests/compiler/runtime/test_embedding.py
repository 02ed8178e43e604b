"""A model that embeds: its bundle, and its vectors on the reference runner and on wgpu, against transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import HYBRIDS, TOKENS, make_family, randomize
from plain_target import compile_plain
from tiny_models import SIZES, write_modules, write_tokenizer
from tolerances import F32, OF_ACTIVATION, relative_error

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.encoder_batch import make_text_batch
from nearfar.compiler.runtime.encoding import Text, embed, encode
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.targets.webgpu.runner import WebGPURunner

CompileTiny = Callable[..., Path]


@pytest.fixture(scope="module")
def last_hidden(tiny_checkpoints: Mapping[str, Path], prompt_token_ids: list[int]) -> npt.NDArray[np.float32]:
    """The output (E,) of the final norm in transformers, at the prompt's last token."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(tiny_checkpoints["embedding"], dtype=torch.float32).eval()
    with torch.no_grad():
        hidden: npt.NDArray[np.float32] = model(torch.tensor([prompt_token_ids])).last_hidden_state[0, -1].numpy()
    return hidden


def unit(vector: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


def test_the_bundle_reads_complete_texts_and_pools_the_final_norm(compile_light: CompileTiny) -> None:
    manifest = open_bundle(compile_light("embedding", "f32")).manifest
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.normalize) == ("last_token", True)
    plan = manifest.plan("embed")
    assert manifest.plan_names == ("embed",)
    assert set(plan.outputs) == {"embeddings"}
    assert [step.op for step in plan.steps[-2:]] == ["rms_norm", "pool_rows"]
    assert set(plan.inputs) == {"token_ids", "positions", "seq_starts"}
    assert plan.states == {}
    assert manifest.self_test is None
    assert manifest.vector_test is not None


def test_a_vector_is_transformers_last_hidden_state_of_length_one(
    compile_light: CompileTiny, prompt_token_ids: list[int], last_hidden: npt.NDArray[np.float32]
) -> None:
    found = embed(ReferenceRunner(open_bundle(compile_light("embedding", "f32"))), prompt_token_ids)
    assert relative_error(found, unit(last_hidden)) < F32


# OLMo 2's norms of queries and keys are over all heads; two of Qwen 3.5's layers have recurrent states.
@pytest.mark.parametrize(("family", "base"), [("olmo2", "AutoModel"), ("qwen3_5_text", "Qwen3_5TextModel")])
def test_layers_that_need_pages_or_states_make_the_vector_of_the_last_token_in_chunks(
    family: str, base: str, tmp_path: Path
) -> None:
    import torch
    import transformers

    make_family(family, tmp_path / "checkpoint")
    write_modules(tmp_path / "checkpoint", behind=())
    bundle = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64)
    assert bundle.manifest.paged
    model = getattr(transformers, base).from_pretrained(tmp_path / "checkpoint", dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).last_hidden_state[0, -1].numpy()
    for chunk in (len(TOKENS), 16, 7):
        assert relative_error(embed(ReferenceRunner(bundle), TOKENS, chunk=chunk), expected) < F32
    write_modules(tmp_path / "checkpoint", "mean_tokens")
    with pytest.raises(UnsupportedModel, match="makes vectors of texts by pooling mean, but its layers"):
        compile_plain(tmp_path / "checkpoint", tmp_path / "mean", "f32", 64)


def test_scores_of_recurrent_layers_are_transformers(tmp_path: Path) -> None:
    import torch
    import transformers

    _, config = HYBRIDS["qwen3_5_text"]
    settings = transformers.Qwen3_5TextConfig(**{**SIZES, **config, "num_labels": 3, "pad_token_id": 0})
    model = transformers.Qwen3_5ForSequenceClassification(settings).float().eval()
    randomize(model)
    model.save_pretrained(tmp_path / "checkpoint")
    write_tokenizer(tmp_path / "checkpoint")
    runner = ReferenceRunner(compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64))
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    (found,) = encode(runner, [Text(TOKENS)], chunk=7)
    assert relative_error(found, expected) < F32


@pytest.mark.usefixtures("vulkan")
@pytest.mark.parametrize("activation", ["float32", "float16"])
def test_on_wgpu_vectors_of_a_ragged_batch_are_those_of_each_text_alone(
    activation: str, compile_tiny: CompileTiny, prompt_token_ids: list[int]
) -> None:
    bundle = open_bundle(compile_tiny("embedding", "q4f16"))
    reference = ReferenceRunner(bundle, activation=activation)
    runner = WebGPURunner(bundle, limits=Limits(tokens=75, sequences=3), activation=activation)
    assert (
        relative_error(embed(runner, prompt_token_ids), embed(reference, prompt_token_ids)) < OF_ACTIVATION[activation]
    )
    texts = [prompt_token_ids[:33], prompt_token_ids[40:41], prompt_token_ids[50:70]]
    found = runner.embed(make_text_batch(texts))
    expected = np.stack([embed(reference, text) for text in texts])
    assert relative_error(np.stack([unit(row) for row in found]), expected) < OF_ACTIVATION[activation]
    runner.close()


@pytest.mark.usefixtures("vulkan")
def test_on_wgpu_a_vector_is_transformers_last_hidden_state(
    compile_light: CompileTiny, prompt_token_ids: list[int], last_hidden: npt.NDArray[np.float32]
) -> None:
    runner = WebGPURunner(open_bundle(compile_light("embedding", "f32")))
    assert relative_error(embed(runner, prompt_token_ids), unit(last_hidden)) < F32
    with pytest.raises(RequestError, match="makes embeddings and generates no text"):
        next(generate(runner, [1, 2], 1, Sampler()))
    runner.close()


def test_texts_end_in_the_token_that_the_tokenizer_puts_there(compile_light: CompileTiny) -> None:
    tokenizer = Tokenizer(open_bundle(compile_light("embedding", "f32")).tokenizer_files())
    assert tokenizer.encode("ab")[-1] == 257


def test_without_normalize_and_with_a_head_the_vector_is_the_last_hidden_state_itself(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, prompt_token_ids: list[int]
) -> None:
    import torch
    import transformers

    # A checkpoint with the names and the head of a model that generates.
    folder = shutil.copytree(tiny_checkpoints["qwen3"], tmp_path / "checkpoint")
    write_modules(folder, behind=())
    bundle = compile_plain(folder, tmp_path / "bundle", "f32", 128)
    with torch.no_grad():
        expected = (
            transformers.AutoModel.from_pretrained(folder)
            .eval()(torch.tensor([prompt_token_ids]))
            .last_hidden_state[0, -1]
            .numpy()
        )
    assert relative_error(embed(ReferenceRunner(bundle), prompt_token_ids), expected) < F32


def test_a_bundle_does_what_its_model_is_for(compile_light: CompileTiny, tiny_bundle: Path) -> None:
    embeds, generates = (
        ReferenceRunner(open_bundle(path)) for path in (compile_light("embedding", "f32"), tiny_bundle)
    )
    with pytest.raises(RequestError, match="generates text and makes no embeddings"):
        embed(generates, [1, 2])
    with pytest.raises(RequestError, match="makes embeddings and generates no text"):
        next(generate(embeds, [1, 2], 1, Sampler()))


@pytest.mark.parametrize(
    ("token_ids", "message"), [([], "empty"), ([509], "not in the vocabulary"), ([1] * 257, "context length is 256")]
)
def test_tokens_that_cannot_be_embedded_are_a_request_error(
    token_ids: list[int], message: str, compile_light: CompileTiny
) -> None:
    with pytest.raises(RequestError, match=message):
        embed(ReferenceRunner(open_bundle(compile_light("embedding", "f32"))), token_ids)


def test_the_command_line_states_the_bundles_target(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(tiny_checkpoints["embedding"]), "-o", str(tmp_path / "bundle"), "--context", "64"]) == 0
    printed = capsys.readouterr().out
    assert " serve " in printed
    assert "an embedding model (embed)" in printed
    assert main(["run", str(tmp_path / "bundle"), "hello", "--runner", "numpy"]) == 0
    assert "72 numbers: " in capsys.readouterr().out
    run = ["run", str(tmp_path / "bundle"), "--runner", "numpy"]
    for options, message in (
        (["hello", "--passage", "text"], "scores no pairs of texts"),
        (["a" * 64], "the text has 65 tokens, but the context of embedding is 64; shorten it, or add --truncate"),
        ([""], "the text is empty"),
        (["hello", "--dimensions", "7"], "dimensions is 7; this model's vectors can have 72"),
    ):
        assert main([*run, *options]) != 0
        assert message in capsys.readouterr().err
    assert main([*run, "a" * 64, "--truncate", "--dimensions", "72", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 64
