"""Bundles of encoders as GGUF files: the vectors of llama.cpp, and what GGUF cannot express."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import lacks
from encoder_tokenizers import write_vectors_tokenizer
from gguf_encoders import CASES, make_gguf_encoder
from light_bundle import few_kernels, one_compilation
from tiny_encoders import CONTEXT, texts_of, write_json

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Limits
from nearfar.compiler.runtime.encoding import embed
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

TEXTS = texts_of([17, 40])


def bundle_of(name: str, head: str, quantization: str, folder: Path) -> Bundle:
    make_gguf_encoder(name, head, folder)
    (folder / "model.gguf").unlink()
    write_vectors_tokenizer(folder, CASES[name].tokenizer)
    # GGUF cannot express a token that is found in complete words only.
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    write_json(folder / "tokenizer.json", added_tokens=[each for each in added if not each["single_word"]])
    options = CompileOptions(target="cpu", quantization=quantization, context=CONTEXT, self_test=False)
    with few_kernels(), one_compilation():
        return compile_model(str(folder), folder / "bundle", options)


@pytest.mark.parametrize(
    ("name", "quantization", "limit"),
    # llama.cpp rounds the inputs of projections to 8 bits.
    [("bert", "f32", 1e-3), ("nomic-bert", "q8f16", 0.02), ("modern-bert", "f32", 1e-3)],
)
def test_llama_cpp_makes_the_same_vectors(name: str, quantization: str, limit: float, tmp_path: Path) -> None:
    bundle = bundle_of(name, "mean_tokens", quantization, tmp_path)
    pieces, notes = name != "modern-bert", list[str]()
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(tokenizer=pieces), note=notes.append)
    assert notes == []
    runner = ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100))
    if pieces:
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
    if pieces:
        ids = Tokenizer(bundle.tokenizer_files()).encode("hello world, the boat floats")
        assert np.abs(theirs.vector("hello world, the boat floats") - embed(runner, ids)).max() < limit


def test_a_reranker_keeps_its_labels_and_a_classifier_of_tokens_is_refused(tmp_path: Path) -> None:
    bundle, notes = bundle_of("bert", "ForSequenceClassification", "f32", tmp_path / "a"), list[str]()
    export_gguf(bundle, tmp_path / "x.gguf", GgufOptions(), note=notes.append)
    assert "softmax" in "".join(notes)
    assert load(str(tmp_path / "x.gguf")).classifier == bundle.manifest.classifier
    tokens = bundle_of("bert", "ForTokenClassification", "f32", tmp_path / "b")
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
