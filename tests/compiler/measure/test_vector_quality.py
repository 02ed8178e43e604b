"""`nearfar quality` of embedding models: cosines and the results of a search, by numpy's own arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from plain_target import compile_plain
from tiny_encoders import make_encoder, rows_of
from tolerances import F32, relative_error

from nearfar.compiler.cli import main
from nearfar.compiler.formats import load
from nearfar.compiler.ir.tasks import EmbeddingSpec, PromptSpec
from nearfar.compiler.measure.vector_quality import SearchTask, compare_vectors, make_task
from nearfar.compiler.measure.vector_reference import VectorReference
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

PARAGRAPHS = [
    f"A {word} is near. It is {word} {word} that {word}s." for word in ("boat", "bird", "house", "road", "sea")
]
TEXT = "\n\n".join([*PARAGRAPHS, "One sentence alone."])


def test_the_last_sentence_of_a_paragraph_searches_for_the_rest(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path)
    checkpoint = load(str(tmp_path))
    tokenizer = Tokenizer(checkpoint.tokenizer)
    spec = EmbeddingSpec("mean", True, 72, prompts=(PromptSpec("query", "q: "), PromptSpec("passage", "p: ")))
    task = make_task(tokenizer, spec, TEXT, 20)
    assert (len(task.queries), len(task.documents), task.answers) == (5, 6, [0, 1, 2, 3, 4])
    assert tokenizer.decode(task.queries[0]) == "q: It is boat boat that boats."[:20]
    assert tokenizer.decode(task.documents[2]) == "p: A house is near."
    assert len(make_task(tokenizer, spec, TEXT, 20, count=3).documents) == 3
    for text, window, count in (("One.\n\nTwo.\n\nThree.", 20, None), (TEXT, 0, None), (TEXT, 20, 0), (TEXT, 20, 2)):
        with pytest.raises(RequestError):
            make_task(tokenizer, spec, text, window, count)


def test_the_numbers_are_cosines_and_shares_of_searches() -> None:
    task = SearchTask([[1], [2]], [[3], [4], [5]], [0, 2])
    expected = np.array([[1, 0], [0, 1], [2, 0], [1, 1], [0, 3]], np.float32)
    same = compare_vectors(task, expected, 2 * expected, "test")
    assert same.cosine_min == pytest.approx(1)
    assert (same.top1_agreement, same.top10_overlap) == (1, 1)
    assert (same.recall, same.reference_recall, same.texts, same.queries) == (1, 1, 5, 2)
    # The second query is turned by 90 degrees.
    other = expected.copy()
    other[1] = [1, 0]
    turned = compare_vectors(task, expected, other, "test")
    assert turned.cosine_mean == pytest.approx(0.8)
    assert turned.cosine_min == 0
    assert (turned.top1_agreement, turned.recall) == (0.5, 0.5)
    with pytest.raises(DeviceError, match="not finite"):
        compare_vectors(task, expected, expected * np.nan, "test")


def test_bundles_are_compared_with_their_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, text = tmp_path / "checkpoint", tmp_path / "text.txt"
    model = make_encoder("gemma3_text", "mean_tokens", checkpoint)
    text.write_text(TEXT)
    reference = VectorReference(load(str(checkpoint)), 64)
    ids = [[5, 6, 7], [8]]
    for vector, own in zip(reference.vectors(ids), ids, strict=True):
        assert relative_error(vector, rows_of(model, own).mean(axis=0)) < F32
    for quantization in ("f32", "q8f16", "q4f16"):
        compile_plain(checkpoint, tmp_path / quantization, quantization, 64)
    bundles = [str(tmp_path / name) for name in ("f32", "q8f16", "q4f16")]
    command = ["quality", *bundles, "--reference", str(checkpoint), "--text", str(text), "--runner", "numpy"]
    assert main([*command, "--json"]) == 0
    cosines = [each["cosine_min"] for each in json.loads(capsys.readouterr().out)["bundles"]]
    assert cosines[0] == pytest.approx(1, abs=1e-6)
    assert 1 > cosines[1] > cosines[2] > 0.5
    assert main([*command, "--windows", "4"]) == 0
    assert "a search with each of 4 sentences" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--fail-above", "0.9"]) == 0
    capsys.readouterr()
    assert main([*command, "--fail-above", "1e-6"]) == 2
    failed = capsys.readouterr().err
    assert "q8f16" in failed
    assert ": f32 " not in failed
    assert main([*command, "--between", "a", "b"]) != 0
    assert "predicts no tokens" in capsys.readouterr().err
