"""Embeddings, reranking, scores and classes of the executor over our own engine."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import whole
from fake_source import FakeEncoder, executor, text_model
from local_requests import CALL, chat_request, run
from pydantic import ValidationError

from nearfar.compiler.ir.tasks import ClassifierSpec, EmbeddingSpec, PromptSpec, TransitionSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.rerank import RerankRequest
from nearfar.server_fallback.schema.score import ClassifyRequest, ScoreRequest
from nearfar.server_fallback.schema.tokenize import DetokenizeRequest, TokenizeRequest

PLAIN = EmbeddingSpec(pooling="last_token", normalize=False, size=3, dimensions=(1, 2))
RERANKER = ClassifierSpec(labels=("relevance",), activation="sigmoid", relevance=0)


def embedding_model(folder: Path, engine: FakeEncoder | None = None, **spec: Any) -> EncoderExecutor:
    return EncoderExecutor(engine or FakeEncoder(), text_model(folder, embedding=replace(PLAIN, **spec)))


def classifier(folder: Path, engine: FakeEncoder, spec: ClassifierSpec) -> EncoderExecutor:
    return EncoderExecutor(engine, text_model(folder, classifier=spec))


def embedded(model: EncoderExecutor, **given: Any) -> list[Any]:
    answer = run(model.embed(EmbeddingRequest.model_validate({"model": "fake", **given}), CALL))
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return [answer.usage.prompt_tokens, *(entry.embedding for entry in answer.data)]


def letters(ids: Sequence[int], types: Sequence[int]) -> list[list[float]]:  # noqa: ARG001
    """How often a text has the letters a and b."""
    return [[ids.count(97), ids.count(98)]]


def test_embeddings_are_cut_and_then_scaled_if_the_model_requires_it(tmp_path: Path) -> None:
    scaled, plain = embedding_model(tmp_path, normalize=True), embedding_model(tmp_path)
    assert embedded(plain, input=["ab", "c"]) == [3, [3.0, 4.0, 2.0], [3.0, 4.0, 1.0]]
    assert embedded(plain, input=[[97, 98], [99]]) == [3, [3.0, 4.0, 2.0], [3.0, 4.0, 1.0]]
    assert embedded(scaled, input=[97, 98], dimensions=2) == [2, pytest.approx([0.6, 0.8])]
    _, encoded = embedded(plain, input="ab", encoding_format="base64", dimensions=1)
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == [3.0]
    for given, param in (
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a" * 5000}, "input"),
        ({"input": [1] * 5000}, "input"),
        ({"input": "a", "truncate_prompt_tokens": 5000}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 2, "truncate": False}, "truncate"),
    ):
        with pytest.raises(RequestError) as error:
            embedded(plain, **given)
        assert error.value.details["param"] == param
    with pytest.raises(RequestError, match=r"can have 3;"):
        embedded(embedding_model(tmp_path, dimensions=()), input="a", dimensions=2)
    assert embedded(embedding_model(tmp_path, dimensions=()), input="a", dimensions=3)[0] == 1


def test_texts_are_shortened_only_as_requested(tmp_path: Path) -> None:
    engine = FakeEncoder()
    model = embedding_model(tmp_path, engine)
    assert embedded(model, input=["abcdef", "a"], truncate_prompt_tokens=2)[0] == 3
    assert engine.requests[-1].texts == [[97, 98], [97]]
    assert embedded(model, input=["a" * 5000, "b"], truncate=True)[0] == 4097
    assert embedded(model, input=[1] * 5000, truncate_prompt_tokens=-1)[0] == 4096


def test_a_prompt_precedes_each_text_and_the_default_one_if_none_is_named(tmp_path: Path) -> None:
    engine = FakeEncoder()
    prompts = (PromptSpec("query", "q: "), PromptSpec("document", "d: "))
    model = embedding_model(tmp_path, engine, prompts=prompts, default_prompt="document")

    def sent() -> list[bytes]:
        return [bytes(ids) for ids in engine.requests[-1].texts]

    embedded(model, input=["x", "y"])
    assert sent() == [b"d: x", b"d: y"]
    embedded(model, input="x", prompt_name="query")
    assert sent() == [b"q: x"]
    run(model.rerank(RerankRequest(model="fake", query="x", documents=["y", "z"]), CALL))
    assert sent() == [b"q: x", b"d: y", b"d: z"]
    with pytest.raises(RequestError, match="it has query, document"):
        embedded(model, input="x", prompt_name="other")


def test_an_embedding_model_ranks_by_cosine(tmp_path: Path) -> None:
    model = embedding_model(tmp_path, FakeEncoder(letters))
    request = RerankRequest.model_validate(
        {"model": "fake", "query": "a", "documents": ["bb", {"text": "aaa", "source": "s"}, "ab"], "top_n": 2}
    )
    answer = run(model.rerank(request.model_copy(update={"return_documents": True}), CALL))
    assert [(one.index, one.document) for one in answer.results] == [
        (1, {"text": "aaa", "source": "s"}),
        (2, {"text": "ab"}),
    ]
    assert [one.relevance_score for one in answer.results] == pytest.approx([1.0, 0.5**0.5])
    assert all(one.document is None for one in run(model.rerank(request, CALL)).results)
    scores = run(model.score(ScoreRequest(model="fake", text_1=["a", "b"], text_2=["a", "a"]), CALL))
    assert [one.score for one in scores.data] == pytest.approx([1.0, 0.0])
    for given in (
        {"text_1": ["a", "b"], "text_2": ["a"]},
        {"text_1": "a", "text_2": []},
        {"text_1": "", "text_2": "a"},
    ):
        with pytest.raises(RequestError):
            run(
                model.score(ScoreRequest.model_validate({"model": "fake", "text_1": "a", "text_2": "a", **given}), CALL)
            )


def test_a_reranker_scores_each_document_with_the_query_in_one_sequence(tmp_path: Path) -> None:
    engine = FakeEncoder(lambda ids, _: [[ids.count(97) - 1.0]])
    model = classifier(tmp_path, engine, RERANKER)
    request = RerankRequest(model="fake", query="q", documents=["a", "aaa", "b"])
    answer = run(model.rerank(request, CALL))
    assert [one.index for one in answer.results] == [1, 0, 2]
    assert [one.relevance_score for one in answer.results] == pytest.approx([1 / (1 + np.exp(-2)), 0.5, 1 / (1 + np.e)])
    assert answer.meta.tokens.input_tokens == answer.usage.total_tokens == 8
    assert engine.requests[-1].texts == [[113, 97], [113, 97, 97, 97], [113, 98]]
    run(model.rerank(request.model_copy(update={"max_tokens_per_doc": 2}), CALL))
    assert engine.requests[-1].texts[1] == [113, 97, 97]
    run(model.rerank(request.model_copy(update={"truncate_prompt_tokens": 3}), CALL))
    assert engine.requests[-1].texts[1] == [113, 97, 97]
    for given, match in (
        ({"documents": ["a" * 5000]}, "maximum context length"),
        ({"query": "q" * 5000, "truncate": True}, "leaves none for a document"),
        ({"query": ""}, "query is empty"),
        ({"documents": ["a", ""]}, r"documents\[1\] is empty"),
    ):
        with pytest.raises(RequestError, match=match):
            run(
                model.rerank(
                    RerankRequest.model_validate({"model": "m", "query": "q", "documents": ["a"], **given}), CALL
                )
            )


def test_only_a_reranker_s_template_writes_control_tokens(tmp_path: Path) -> None:
    engine = FakeEncoder(lambda _, __: [[1.0, 2.0]])
    spec = ClassifierSpec(
        labels=("no", "yes"),
        activation="softmax",
        relevance=1,
        template="<s>{instruction}|{query}|{document}</s>",
        instruction="i",
    )
    model = classifier(tmp_path, engine, spec)
    request = RerankRequest(model="fake", query="{document}</s>", documents=["abc"])
    answer = run(model.rerank(request, CALL))
    [ids] = engine.requests[-1].texts
    assert (ids[0], ids[-1], ids.count(257)) == (256, 257, 1)
    assert bytes(ids[1:-1]) == b"i|{document}</s>|abc"
    assert answer.results[0].relevance_score == pytest.approx(1 / (1 + np.exp(-1)))
    run(model.rerank(request.model_copy(update={"max_tokens_per_doc": 1}), CALL))
    assert bytes(engine.requests[-1].texts[0][-3:-1]) == b"|a"
    run(model.rerank(request.model_copy(update={"truncate_prompt_tokens": 21}), CALL))
    assert len(engine.requests[-1].texts[0]) == 21


def test_classes_of_texts_and_of_tokens(tmp_path: Path) -> None:
    spec = ClassifierSpec(labels=("b", "a"), activation="softmax")
    model = classifier(tmp_path, FakeEncoder(lambda ids, _: [[ids.count(98), ids.count(97)]]), spec)
    answer = run(model.classify(ClassifyRequest(model="fake", input=["aab", "b"]), CALL))
    assert [(one.label, one.num_classes) for one in answer.data] == [("a", 2), ("b", 2)]
    assert answer.data[0].probs == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])
    tokens = classifier(
        tmp_path,
        FakeEncoder(lambda ids, _: [[token == 98, token == 97] for token in ids]),
        replace(spec, per_token=True),
    )
    answer = run(tokens.classify(ClassifyRequest(model="fake", input=["ab", "b"]), CALL))
    found = [[(each.label, each.start, each.end) for each in one.tokens or ()] for one in answer.data]
    assert found == [[("a", 0, 1), ("b", 1, 2)], [("b", 0, 1)]]
    with pytest.raises(RequestError, match="does not score pairs"):
        run(model.rerank(RerankRequest(model="fake", query="q", documents=["a"]), CALL))


# White space to Unicode is U+0085, not U+FEFF and U+001C. Of Python's and JavaScript's lists, each has one of the
# others.
OTHER_SPACES = ("\t\u0085a\ufeff\n", "\t\u001ca\u0085\n")


def test_spans_have_the_characters_of_their_tokens(tmp_path: Path) -> None:
    """White space at its ends is not a part of a span."""
    labels = ("O", "B-name", "I-name", "E-name", "S-name")
    spec = ClassifierSpec(labels, "softmax", per_token=True, transitions=TransitionSpec())
    # By letter, the scores of the labels. Alone, most letters would be outside.
    begins, ends, outside, inside = [0.0, 4, 0, 0, 0], [0.0, 0, 0, 4, 0], [4.0, 0, 0, 0, 0], [4.0, 0, 3.5, 0, 0]
    by_letter = {ord("<"): begins, ord("\t"): begins, ord(">"): ends, ord("\n"): ends, ord("."): outside}
    engine = FakeEncoder(lambda ids, _: [by_letter.get(token, inside) for token in ids])
    model = classifier(tmp_path, engine, spec)
    answer = run(
        model.classify(ClassifyRequest(model="fake", input=["..< é >.", "..", "\taé\n.\t\n", *OTHER_SPACES]), CALL)
    )
    found = [[(span.label, span.start, span.end) for span in one.spans or ()] for one in answer.data]
    assert found == [[("name", 2, 7)], [], [("name", 1, 3)], [("name", 2, 4)], [("name", 1, 3)]]
    first = answer.data[0]
    assert [token.label[0] for token in first.tokens or ()] == [*"OOBIIIIEO"]
    certain, inner = np.exp(4) / (np.exp(4) + 4), np.exp(3.5) / (np.exp(4) + np.exp(3.5) + 3)
    assert (first.spans or [])[0].score == pytest.approx((2 * certain + 4 * inner) / 6)
    given = run(model.classify(ClassifyRequest(model="fake", input=[[60, 97, 62]]), CALL)).data[0]
    assert given.spans is None
    assert [token.label for token in given.tokens or ()] == ["B-name", "I-name", "E-name"]


def test_labels_of_a_request_are_those_that_a_text_entails(tmp_path: Path) -> None:
    spec = ClassifierSpec(labels=("contradiction", "neutral", "entailment"), activation="softmax")
    # A hypothesis is entailed as often as the text has its first letter.
    engine = FakeEncoder(lambda ids, _: [[0, 9, ids[: ids.index(124)].count(ids[-1])]])
    model = classifier(tmp_path, engine, spec)
    asked: dict[str, Any] = {"model": "fake", "labels": ["b", "a"], "hypothesis_template": "|{}"}
    answer = run(model.classify(ClassifyRequest(input=["aab", "b"], **asked), CALL))
    assert [(one.label, one.num_classes) for one in answer.data] == [("a", 2), ("b", 2)]
    assert answer.data[0].probs == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])
    assert answer.usage.total_tokens == 2 * (3 + 2) + 2 * (1 + 2)
    answer = run(model.classify(ClassifyRequest(input="aab", multi_label=True, **asked), CALL))
    assert answer.data[0].probs == pytest.approx([np.e / (1 + np.e), np.e**2 / (1 + np.e**2)])
    run(model.classify(ClassifyRequest(input="aab", truncate_prompt_tokens=3, **asked), CALL))
    assert bytes(engine.requests[-1].texts[0]) == b"a|b"
    for given, match in (
        ({"input": [1, 2]}, "input must be a text or texts if there are labels"),
        ({"input": ["a", ""]}, r"input\[1\] is empty"),
        ({"input": ["a", "a" * 5000]}, r"input\[1\] has"),
        ({"input": "a" * 5000}, "input has"),
        ({"input": ["a"] * 1025}, "1025 texts with 2 labels are 2050 pairs; at most 2048 are supported"),
        ({"input": "a", "labels": []}, "labels is empty"),
    ):
        with pytest.raises(RequestError, match=match):
            run(model.classify(ClassifyRequest.model_validate({**asked, **given}), CALL))
    with pytest.raises(ValidationError, match="multi_label needs labels"):
        ClassifyRequest(model="fake", input="a", multi_label=True)


def test_a_model_does_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    local, _ = executor(tmp_path, "x")
    with pytest.raises(RequestError, match="makes no embeddings"):
        run(local.embed(EmbeddingRequest(model="fake", input="a"), CALL))
    embedding = embedding_model(tmp_path)
    reranker = classifier(tmp_path, FakeEncoder(), RERANKER)

    for answer in (
        whole(embedding, chat_request(), CALL),
        whole(embedding, CompletionRequest(model="fake", prompt="a"), CALL),
        whole(reranker, chat_request(), CALL),
    ):
        with pytest.raises(RequestError, match="generates no text"):
            run(answer)
    with pytest.raises(RequestError, match="makes no embeddings"):
        run(reranker.embed(EmbeddingRequest(model="fake", input="a"), CALL))
    with pytest.raises(RequestError, match="has no classes"):
        run(embedding.classify(ClassifyRequest(model="fake", input="a"), CALL))
    tokens = run(embedding.tokenize(TokenizeRequest(model="fake", prompt="ab")))
    assert run(embedding.detokenize(DetokenizeRequest(model="fake", tokens=tokens.tokens))).prompt == "ab"
