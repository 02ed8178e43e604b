"""Bundles of encoders as GGUF files: the vectors of llama.cpp, and what GGUF cannot express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import lacks
from encoder_tokenizers import VECTORS, write_vectors_tokenizer
from gguf_encoders import CASES, make_gguf_encoder
from light_bundle import few_kernels, one_compilation
from plain_target import compile_plain
from tiny_encoders import CONTEXT, texts_of, write_json
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import load
from nearfar.compiler.formats.gguf.write_encoders import encoder_tokenizer
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.encoding import Text, embed, encode
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

TEXTS = texts_of([17, 40])


def bundle_of(name: str, head: str, quantization: str, folder: Path) -> Bundle:
    make_gguf_encoder(name, head, folder)
    (folder / "model.gguf").unlink()
    write_vectors_tokenizer(folder, CASES[name].tokenizer)
    # GGUF cannot express a token that is found in complete words only.
    content = json.loads((folder / "tokenizer.json").read_text())
    added = [each for each in content["added_tokens"] if not each["single_word"]]
    write_json(folder / "tokenizer.json", added_tokens=added)
    if name == "xlm-roberta":
        # As transformers 5 writes it.
        strip = {"type": "Strip", "strip_left": False, "strip_right": True}
        spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
        normalizers = [content["normalizer"], strip, spaces]
        write_json(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": normalizers})
    options = CompileOptions(target="cpu", quantization=quantization, context=CONTEXT, self_test=False)
    with few_kernels(), one_compilation():
        return compile_model(str(folder), folder / "bundle", options)


@pytest.mark.parametrize(
    ("name", "quantization", "limit"),
    # llama.cpp rounds the inputs of projections to 8 bits.
    [
        ("bert", "f32", 1e-3),
        ("nomic-bert", "q8f16", 0.02),
        ("modern-bert", "f32", 1e-3),
        ("roberta", "f32", 1e-3),
        ("xlm-roberta", "q8f16", 0.02),
    ],
)
def test_llama_cpp_makes_the_same_vectors(name: str, quantization: str, limit: float, tmp_path: Path) -> None:
    bundle = bundle_of(name, "mean_tokens", quantization, tmp_path)
    notes = list[str]()
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(), note=notes.append)
    assert ["the space before <mask> is not" in note for note in notes] == [True] * (name in ("modern-bert", "roberta"))
    runner = ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100))
    read = load(str(tmp_path / "x.gguf"))
    assert read.embedding == bundle.manifest.embedding
    assert Tokenizer(read.tokenizer).encode("the boat") == Tokenizer(bundle.tokenizer_files()).encode("the boat")
    try:
        from llama_runner import LlamaCpp

        theirs = LlamaCpp(tmp_path / "x.gguf", embeds=True)
    except ModuleNotFoundError:
        lacks("xllamacpp is not installed")
    for text in TEXTS:
        assert np.abs(theirs.vector(text) - embed(runner, text)).max() < limit
    ids = Tokenizer(bundle.tokenizer_files()).encode("hello world, the boat floats")
    assert np.abs(theirs.vector("hello world, the boat floats") - embed(runner, ids)).max() < limit


@pytest.mark.parametrize(
    ("name", "change", "pre", "message"),
    [
        ("bert", {}, "gpt-2", "it splits no words by a pattern; remove --pre"),
        ("bert", {"normalizer": None}, None, "only word pieces with BERT's normalizer"),
        ("bert", {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}}, None, "a model of type 'WordLevel'"),
        ("bert", {"post_processor": None}, None, "puts 0 tokens around a text"),
        ("xlm-roberta", {"normalizer": {"type": "NFC"}}, None, "normalizers: of type 'NFC'"),
        ("roberta", {"normalizer": {"type": "Lowercase"}}, None, "cannot express its normalizer"),
        ("roberta", {}, "gpt-3", "the split of words 'gpt-3' is not known"),
    ],
)
def test_a_tokenizer_that_gguf_cannot_express_is_refused(
    name: str, change: dict[str, Any], pre: str | None, message: str, tmp_path: Path
) -> None:
    content = {**json.loads(VECTORS.read_text())["tokenizers"][CASES[name].tokenizer], **change}
    files = TokenizerFiles(tmp_path / "tokenizer.json", json.dumps(content).encode())
    with pytest.raises(UnsupportedModel, match=message):
        encoder_tokenizer(files, CASES[name].architecture, 509, pre)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_reranker_keeps_its_labels_and_its_scores(name: str, tmp_path: Path) -> None:
    bundle, notes = bundle_of(name, "ForSequenceClassification", "f32", tmp_path), list[str]()
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(), note=notes.append)
    assert "softmax" in "".join(notes)
    assert load(str(tmp_path / "x.gguf")).classifier == bundle.manifest.classifier
    again = compile_plain(tmp_path / "x.gguf", tmp_path / "again", "f32", CONTEXT)
    found, expected = (
        list(encode(ReferenceRunner(each, limits=Limits(sequences=5, tokens=100)), [Text(text) for text in TEXTS]))
        for each in (again, bundle)
    )
    for own, others in zip(found, expected, strict=True):
        assert relative_error(own, others) < F32


def test_a_classifier_of_tokens_is_refused(tmp_path: Path) -> None:
    tokens = bundle_of("bert", "ForTokenClassification", "f32", tmp_path)
    with pytest.raises(UnsupportedModel, match="files of bert score the row of complete texts that pooling 'cls'"):
        export_gguf(tokens, tmp_path / "y.gguf", GgufOptions())


def test_a_pooling_that_gguf_lacks_is_refused(tmp_path: Path) -> None:
    make_gguf_encoder("bert", "mean_tokens", tmp_path)
    write_json(tmp_path / "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_max_tokens=True)
    options = CompileOptions(target="cpu", quantization="f32", context=CONTEXT, self_test=False)
    with few_kernels(), one_compilation():
        bundle = compile_model(str(tmp_path), tmp_path / "bundle", options)
    with pytest.raises(UnsupportedModel, match="cannot express an encoder with pooling 'max'"):
        export_gguf(bundle, tmp_path / "y.gguf", GgufOptions())
