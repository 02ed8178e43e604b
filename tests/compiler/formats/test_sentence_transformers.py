"""The sentence-transformers files beside a checkpoint: those that are read, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_modules

from nearfar.compiler.formats.sentence_transformers import SentenceTransformer, read_length, read_sentence_transformer
from nearfar.compiler.ir.tasks import DenseSpec, EmbeddingSpec, PromptSpec
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

LAST_TOKEN = EmbeddingSpec(pooling="last_token", normalize=True, size=72)


def read(folder: Path) -> SentenceTransformer | None:
    return read_sentence_transformer(folder, 72)


def embedding_of(folder: Path) -> EmbeddingSpec:
    found = read(folder)
    assert found is not None
    return found.embedding


def test_a_folder_without_modules_is_no_embedding_model(tmp_path: Path) -> None:
    assert read(tmp_path) is None


@pytest.mark.parametrize("mode", ["lasttoken", ["lasttoken"]])
def test_a_pooling_mode_by_name_is_read(mode: object, tmp_path: Path) -> None:
    write_modules(tmp_path)
    assert embedding_of(tmp_path) == LAST_TOKEN
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"embedding_dimension": 72, "pooling_mode": mode}))
    assert embedding_of(tmp_path) == LAST_TOKEN


@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("max_tokens", "max")])
def test_other_poolings_are_read(mode: str, pooling: str, tmp_path: Path) -> None:
    write_modules(tmp_path, pooling=mode, behind=())
    found = embedding_of(tmp_path)
    assert (found.pooling, found.normalize) == (pooling, False)


def write_dense(folder: Path, name: str, **config: object) -> None:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config))


def test_dense_layers_prompts_and_the_length_are_read(tmp_path: Path) -> None:
    write_modules(tmp_path, "mean_tokens", behind=("Dense", "Dense", "Normalize"))
    write_dense(tmp_path, "2_Dense", in_features=72, out_features=90, bias=False,
                activation_function="torch.nn.modules.linear.Identity")  # fmt: skip
    write_dense(tmp_path, "3_Dense", in_features=90, out_features=20)
    prompts = {"query": "task: search | query: ", "document": "title: none | text: ", "empty": ""}
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": "document"})
    )
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256, "do_lower_case": True}))
    found = read(tmp_path)
    dense = DenseSpec("2_Dense", 72, 90, False, "none"), DenseSpec("3_Dense", 90, 20, True, "tanh")
    named = tuple(PromptSpec(name, prompts[name]) for name in ("query", "document"))
    embedding = EmbeddingSpec("mean", True, 20, dense, named, "document")
    assert found == SentenceTransformer(embedding, ("2_Dense", "3_Dense"), lowercases=True)
    assert read_length(tmp_path) == (256, True)


def test_what_would_change_the_vector_is_refused_by_name(tmp_path: Path) -> None:
    cases: list[tuple[str, tuple[str, ...], str]] = [
        ("weightedmean_tokens", (), "pooling weightedmean_tokens is not supported; supported: cls, "),
        ("mean_tokens", ("LayerNorm",), "modules Transformer, Pooling, LayerNorm are not supported"),
        ("mean_tokens", ("Normalize", "Dense"), "modules Transformer, Pooling, Normalize, Dense are not supported"),
    ]
    for pooling, behind, message in cases:
        write_modules(tmp_path, pooling, behind=behind)
        if pooling not in ("mean_tokens", "lasttoken"):
            (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": pooling}))
        with pytest.raises(UnsupportedModel, match=message):
            read(tmp_path)
    write_modules(tmp_path, "mean_tokens", behind=("Dense",))
    for config, message in (
        ({"in_features": 71, "out_features": 3}, "'in_features' is 71, but the module before has 72"),
        ({"in_features": 72, "out_features": 3, "activation_function": "my.Swish"}, "'my.Swish', which is not supp"),
    ):
        write_dense(tmp_path, "2_Dense", **config)
        with pytest.raises(NearfarError, match=message):
            read(tmp_path)
        (tmp_path / "2_Dense/config.json").unlink()
        (tmp_path / "2_Dense").rmdir()


def test_missing_and_damaged_files_are_checkpoint_errors(tmp_path: Path) -> None:
    write_modules(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"default_prompt_name": "x"}))
    with pytest.raises(CheckpointError, match="'x', which is not a prompt"):
        read(tmp_path)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is missing, though modules\.json names it"):
        read(tmp_path)
    for text, message in (("{}", "must be a list of objects"), ("[", "not valid JSON")):
        (tmp_path / "modules.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path)
