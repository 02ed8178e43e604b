"""Encoders in GGUF files: the vectors and scores of transformers, their tokenizers, and files that we refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import lacks
from encoder_tokenizers import TEXTS as STRINGS
from encoder_tokenizers import write_vectors_tokenizer
from gguf import GGMLQuantizationType as Type
from gguf_encoders import CASES, DENSE, make_gguf_encoder
from plain_target import compile_plain
from safetensors.numpy import load_file
from tiny_encoders import CONTEXT, logits_of, rows_of, texts_of, write_json
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.formats import load
from nearfar.compiler.formats.gguf import checkpoint
from nearfar.compiler.formats.gguf.container import Container, read_container
from nearfar.compiler.formats.gguf.metadata import Metadata
from nearfar.compiler.formats.gguf.tokenizer import of_word_pieces
from nearfar.compiler.formats.tokenizer_json import CONTROL, NORMAL, Vocabulary
from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.pipeline.weights import check_tensors
from nearfar.compiler.runtime.encoding import Text, embed, encode
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

TEXTS = texts_of([1, 17, CONTEXT, 40])
POOLED = {
    "mean_tokens": lambda rows: rows.mean(axis=0), "cls_token": lambda rows: rows[0], "lasttoken": lambda rows: rows[-1]
}  # fmt: skip


def dense_of(name: str) -> list[str]:
    """The modules behind the pooling of a case."""
    return list(DENSE) if name == "gemma-embedding" else []


def encoded(path: Path, folder: Path) -> list[Any]:
    return vectors_of(compile_plain(path, folder / "bundle", "f32", CONTEXT))


def vectors_of(bundle: Bundle) -> list[Any]:
    runner = ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100))
    return list(encode(runner, [Text(text) for text in TEXTS]))


@pytest.mark.parametrize(
    ("name", "pooling"), [*((name, "mean_tokens") for name in CASES), ("bert", "cls_token"), ("bert", "lasttoken")]
)
def test_vectors_are_those_of_the_model(name: str, pooling: str, tmp_path: Path) -> None:
    path, model = make_gguf_encoder(name, pooling, tmp_path)
    task = load(str(path)).task
    assert isinstance(task, EmbeddingSpec)
    assert task.normalize
    matrices = [load_file(tmp_path / name / "model.safetensors")["linear.weight"] for name in dense_of(name)]
    for text, vector in zip(TEXTS, encoded(path, tmp_path), strict=True):
        expected = POOLED[pooling](rows_of(model, text))
        for matrix in matrices:
            expected = matrix @ expected
        assert relative_error(vector, expected) < F32, len(text)


@pytest.mark.parametrize("dense", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_vectors_of_embedding_gemma_are_those_of_llama_cpp(dense: bool, tmp_path: Path) -> None:
    """Also of a file without the matrices behind the pooling, which a note reports."""
    path, model = make_gguf_encoder("gemma-embedding", "mean_tokens", tmp_path, has_dense=dense)
    read, text = load(str(path)), TEXTS[3]
    assert (read.notes == ()) == dense
    bundle = compile_plain(path, tmp_path / "bundle", "f32", CONTEXT)
    own = vectors_of(bundle)[3]
    if not dense:
        assert "no matrices behind its pooling" in read.notes[0]
        assert relative_error(own, rows_of(model, text).mean(axis=0)) < F32
    try:
        from llama_runner import LlamaCpp

        theirs = LlamaCpp(path, embeds=True)
    except ModuleNotFoundError:
        lacks("xllamacpp is not installed")
    assert np.abs(theirs.vector(text) - own / np.linalg.norm(own)).max() < 1e-3
    runner = ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100))
    ids = Tokenizer(read.tokenizer).encode("hello world, the boat!!!!!!!!")
    assert np.abs(theirs.vector("hello world, the boat!!!!!!!!") - embed(runner, ids)).max() < 1e-3


def test_a_file_of_blocks_keeps_its_integers(tmp_path: Path) -> None:
    path, model = make_gguf_encoder("bert", "mean_tokens", tmp_path, Type.Q8_0)
    assert set(load(str(path)).stored_forms) == {"q8g32_f16"}
    bundle = compile_plain(path, tmp_path / "bundle", None, CONTEXT)
    assert {each.quantization for each in bundle.manifest.stored_weights.values()} >= {"q8g32_f16"}
    for text, vector in zip(TEXTS, vectors_of(bundle), strict=True):
        assert relative_error(vector, rows_of(model, text).mean(axis=0)) < 0.05, len(text)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "modern-bert"])
@pytest.mark.parametrize("labels", [["relevant"], ["bad", "good", "neither"]])
def test_scores_are_the_logits_of_the_model(name: str, labels: list[str], tmp_path: Path) -> None:
    names = dict(enumerate(labels))
    path, model = make_gguf_encoder(name, "ForSequenceClassification", tmp_path, id2label=names)
    task = load(str(path)).task
    assert isinstance(task, ClassifierSpec)
    assert (task.labels, task.relevance) == (tuple(labels), 0 if len(labels) == 1 else None)
    for text, scores in zip(TEXTS, encoded(path, tmp_path), strict=True):
        assert relative_error(scores, logits_of(model, text)) < F32, len(text)


@pytest.mark.parametrize("name", CASES)
def test_a_tokenizer_gives_the_ids_of_the_original(name: str, tmp_path: Path) -> None:
    path, _ = make_gguf_encoder(name, "mean_tokens", tmp_path)
    write_vectors_tokenizer(tmp_path, CASES[name].tokenizer)
    if name == "modern-bert":
        write_json(tmp_path / "tokenizer.json", normalizer={"type": "NFC"})
    own, original = Tokenizer(load(str(path)).tokenizer), Tokenizer(load(str(tmp_path)).tokenizer)
    # The file does not say which tokens are found in words only, or with the space before them.
    for text in (each for each in STRINGS if "kept" not in each):
        assert own.encode(text) == original.encode(text), text
    pair = ("hello world", "a boat", 100)
    assert own.encode_shortened(*pair) == original.encode_shortened(*pair)


def word_pieces(*tokens: str) -> Vocabulary:
    return Vocabulary(["[UNK]", "[CLS]", "[SEP]", *tokens], [CONTROL] * 3 + [NORMAL] * len(tokens))


def test_only_a_vocabulary_without_capitals_makes_texts_lower_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_gguf_encoder("bert", "mean_tokens", tmp_path)
    whole = read_container(path)
    tokens = whole.metadata["tokenizer.ggml.tokens"]
    key = "tokenizer__ggml__normalizer__lowercase"
    with_capital = changed(whole, tokenizer__ggml__tokens=[*tokens[:-1], "\u2581H"])
    for container, lowercases in (
        (whole, True),
        (with_capital, False),
        (changed(whole, **{key: False}), False),
        (changed(with_capital, **{key: True}), True),
    ):
        monkeypatch.setattr(checkpoint, "read_parts", lambda _, container=container: container)
        tokenizer = Tokenizer(load(str(path)).tokenizer)
        assert (tokenizer.encode("Hello WORLD") == tokenizer.encode("hello world")) == lowercases


def changed(container: Container, **keys: Any) -> Container:
    return replace(container, metadata={**container.metadata, **{k.replace("__", "."): v for k, v in keys.items()}})


def without(*tensors: str) -> Callable[[Container], Container]:
    def change(container: Container) -> Container:
        return replace(container, tensors={k: v for k, v in container.tensors.items() if k not in tensors})

    return change


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("mean_tokens", lambda each: changed(each, bert__attention__causal=True), "see only those before them"),
        (
            "mean_tokens",
            lambda each: changed(each, bert__pooling_type=9),
            "'pooling_type' is 9, .*supported: 0, 1, 2, 3, 4",
        ),
        ("mean_tokens", lambda each: changed(each, bert__expert_count=8), "'bert.expert_count' is not known"),
        ("mean_tokens", lambda each: changed(each, bert__context_length=32), "'position_embd.weight' has 64 rows"),
        ("mean_tokens", lambda each: changed(each, bert__attention__head_count_kv=2), "head_count_kv' is 2"),
        ("mean_tokens", without("token_types.weight"), "has no matrix 'token_types.weight'"),
        ("mean_tokens", lambda each: changed(each, tokenizer__ggml__model="rwkv"), "supported: bert, gemma4"),
        ("ForSequenceClassification", without("cls.weight", "cls.bias"), "scores are not those of the model"),
        ("ForSequenceClassification", lambda each: changed(each, bert__classifier__output_labels=["a"]), "1 labels"),
    ],
)
def test_what_would_be_another_model_is_refused(
    head: str, change: Callable[[Container], Container], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_gguf_encoder("bert", head, tmp_path)
    container = change(read_container(path))
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: container)
    with pytest.raises(NearfarError, match=message):
        load(str(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gemma-embedding.attention.causal", True, "attention.causal' is True"),
        ("gemma-embedding.pooling_type", 4, "'pooling_type' is 4, .*supported: 0, 1, 2, 3"),
        ("gemma-embedding.dense_2_feat_in", 64, "dense_2_feat_in' is 64, .*supported: 128"),
        ("gemma-embedding.attention.sliding_window_pattern", 2, "sliding_window_pattern' is 2"),
        ("tokenizer.ggml.add_sep_token", True, "add_sep_token' is True"),
        ("tokenizer.ggml.eos_token_id", None, "no token is named as the eos token"),
    ],
)
def test_a_file_of_embedding_gemma_that_is_another_model_is_refused(
    key: str, value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_gguf_encoder("gemma-embedding", "mean_tokens", tmp_path)
    whole = read_container(path)
    metadata = {name: each for name, each in {**whole.metadata, key: value}.items() if each is not None}
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: replace(whole, metadata=metadata))
    with pytest.raises(NearfarError, match=message):
        load(str(path))


def test_a_matrix_behind_the_pooling_must_fit_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = make_gguf_encoder("gemma-embedding", "mean_tokens", tmp_path)
    whole = read_container(path)
    metadata = {name: each for name, each in whole.metadata.items() if ".dense_2_" not in name}
    container = without("dense_2.weight")(replace(whole, metadata=metadata))
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: container)
    with pytest.raises(CheckpointError, match=r"'dense_3\.weight' has 192 columns, but what it reads has 128"):
        load(str(path))


def test_a_file_of_xlm_roberta_names_the_tokens_around_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = make_gguf_encoder("xlm-roberta", "mean_tokens", tmp_path)
    whole = read_container(path)
    for key, value, message in (
        ("add_eos_token", False, "add_eos_token' is False"),
        ("add_space_prefix", False, "add_space_prefix' is False"),
        ("scores", np.zeros(3, np.float32), "scores' must have"),
    ):
        container = changed(whole, **{f"tokenizer__ggml__{key}": value})
        monkeypatch.setattr(checkpoint, "read_parts", lambda _, container=container: container)
        with pytest.raises(NearfarError, match=message):
            load(str(path))


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("modern-bert", "gemma-embedding"))]
)
def test_any_number_of_an_encoder_is_used_or_refused_by_a_typed_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_gguf_encoder(name, "mean_tokens", tmp_path)
    whole, refused = read_container(path), 0
    for key, old in whole.metadata.items():
        if isinstance(old, bool) or not isinstance(old, int | float) or key.startswith("general."):
            continue
        for value in (0, -1, 1, 3, 2**31 - 1, 2**64 - 1) if isinstance(old, int) else (0.0, -1.0, np.inf, np.nan):
            container = replace(whole, metadata={**whole.metadata, key: value})
            monkeypatch.setattr(checkpoint, "read_parts", lambda _, container=container: container)
            with suppress(NearfarError):
                refused += 1
                found = load(str(path))
                for graph in graphs_of(found, context=4).values():
                    check_tensors(found, graph.parameters)
                refused -= 1
    assert refused > 30


def test_a_word_piece_that_a_file_has_twice_is_refused(tmp_path: Path) -> None:
    path, _ = make_gguf_encoder("bert", "mean_tokens", tmp_path)
    metadata = Metadata(read_container(path))
    with pytest.raises(NearfarError, match="has a word piece twice"):
        of_word_pieces(metadata, word_pieces("a", "\u2581##a"))
    assert of_word_pieces(metadata, word_pieces("a", "\u2581a")).tokens[3:] == ["##a", "a"]


def test_an_unknown_architecture_names_those_of_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = make_gguf_encoder("bert", "mean_tokens", tmp_path)
    for name, reason in (("neo-bert", ""), ("jina-bert-v2", r", whose scores fall .* \(ALiBi\)")):
        container = changed(read_container(path), general__architecture=name)
        monkeypatch.setattr(checkpoint, "read_parts", lambda _, container=container: container)
        message = rf"'{name}' is not supported{reason}; supported: apertus, bert, .*nomic-bert"
        with pytest.raises(UnsupportedModel, match=message):
            load(str(path))
