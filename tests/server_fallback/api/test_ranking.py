"""Embeddings, reranking, scores and classes over HTTP, as their clients send and read them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from asgi import ask_app, run
from encoders import ModelsWithEncoders, encoders
from fastapi import FastAPI
from live_server import live_server

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys

KEY = "sk-test"
COHERE = {"model": "embed", "texts": ["a"], "input_type": "clustering"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelsWithEncoders:
    return ModelsWithEncoders(encoders=encoders(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def url(models: ModelsWithEncoders) -> Iterator[str]:
    config = ApiConfig(keys=Keys((ApiKey("test", sha256(KEY.encode()).digest()),)))
    with live_server(models, config) as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.fixture(scope="module")
def app(models: ModelsWithEncoders) -> FastAPI:
    return create_app(models, ApiConfig())


def post(app: FastAPI, path: str, **body: Any) -> httpx.Response:
    return run(ask_app(app, "POST", path, body))


def test_openai_s_client_embeds(url: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        # The client requests base64 by itself.
        answer = client.embeddings.create(model="embed", input=["aaaabbb", "c"])
        assert [each.embedding for each in answer.data] == [pytest.approx([0.8, 0.6, 0.0]), [0.0, 0.0, 1.0]]
        cut = client.embeddings.create(model="embed", input=[97, 97, 99], dimensions=2, encoding_format="float")
        assert cut.data[0].embedding == [1.0, 0.0]
        assert (cut.usage.prompt_tokens, cut.usage.total_tokens) == (3, 3)
        with pytest.raises(openai.BadRequestError, match="can have 2, 3"):
            client.embeddings.create(model="embed", input="a", dimensions=1)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.embeddings.create(model="embed", input="a" * 5000)
        longer: Any = {"truncate_prompt_tokens": -1}
        assert client.embeddings.create(model="embed", input="a" * 5000, extra_body=longer).usage.prompt_tokens == 4096


def test_langchain_s_client_embeds(url: str) -> None:
    from langchain_openai import OpenAIEmbeddings

    # It never closes connections of its own.
    with httpx.Client() as connections:
        client = OpenAIEmbeddings(
            model="embed", base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False, max_retries=0,
            http_client=connections, http_async_client=httpx.AsyncClient(),
        )  # fmt: skip
        assert client.embed_documents(["a", "b"]) == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        assert client.embed_query("c") == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("model", ["rank", "embed"])
def test_cohere_s_clients_rerank(url: str, model: str) -> None:
    import cohere

    documents = ["b", "ca", "a"]
    with httpx.Client() as connections:
        clients: Any = {"api_key": KEY, "base_url": url, "httpx_client": connections}
        answer = cohere.ClientV2(**clients).rerank(
            model=model, query="a", documents=documents, top_n=2, max_tokens_per_doc=100
        )
        assert [each.index for each in answer.results] == [1, 2] if model == "rank" else [2, 1]
        assert answer.results[0].relevance_score > 0.7
        assert answer.meta is not None
        named: Any = [{"text": text} for text in documents]
        older = cohere.Client(**clients).rerank(model=model, query="a", documents=named, return_documents=True)
        assert [each.document.text for each in older.results if each.document is not None][-1] == "b"


def test_cohere_s_client_embeds(url: str, app: FastAPI) -> None:
    import cohere

    with httpx.Client() as connections:
        client = cohere.ClientV2(api_key=KEY, base_url=url, httpx_client=connections)
        answer = client.embed(
            model="embed",
            texts=["aaaabbb", "c" * 5000],
            input_type="search_document",
            embedding_types=["float", "base64", "binary", "ubinary"],
        )
    found = answer.embeddings
    assert found.float_ == [pytest.approx([0.8, 0.6, 0.0]), [0.0, 0.0, 1.0]]
    assert found.base64 is not None
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(found.base64[0]), "<f4"), np.float32(found.float_[0]))
    assert (found.ubinary, found.binary) == ([[0b11000000], [0b00100000]], [[64], [-96]])
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert answer.meta.billed_units.input_tokens == 7 + 4096
    # Without a list of forms.
    body = {"model": "embed", "texts": ["ab"], "input_type": "clustering", "output_dimension": 2}
    assert list(post(app, "/v2/embed", **body).json()["embeddings"]) == ["float"]


def test_an_input_type_selects_the_model_s_prompt(app: FastAPI) -> None:
    def vector(**options: str) -> Any:
        return post(app, "/v1/embeddings", model="prompted", input="a", **options).json()["data"][0]["embedding"]

    assert vector(input_type="search_query") == vector(prompt_name="query") != vector()
    assert vector(input_type="classification") == vector()


def test_jina_s_route_returns_documents_and_cohere_s_does_not(app: FastAPI) -> None:
    body = {"model": "rank", "query": "a", "documents": ["b", "a"], "top_n": 1}
    answer = post(app, "/v1/rerank", **body).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(0.731059, abs=1e-5), "document": {"text": "a"}}
    ]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert "document" not in post(app, "/v2/rerank", **body).json()["results"][0]
    assert "document" not in post(app, "/rerank", **body, return_documents=False).json()["results"][0]


def test_scores_and_classes_have_vllm_s_shape(app: FastAPI) -> None:
    scores = post(app, "/v1/score", model="rank", text_1="a", text_2=["a", "b"]).json()
    assert [each["score"] for each in scores["data"]] == pytest.approx([0.731059, 0.268941], abs=1e-5)
    assert (scores["object"], scores["data"][0]["object"], scores["model"]) == ("list", "score", "fake")
    [one] = post(app, "/v1/classify", model="classify", input="aab").json()["data"]
    assert one == {"index": 0, "label": "a", "probs": pytest.approx([0.268941, 0.731059], abs=1e-5), "num_classes": 2}
    [tagged] = post(app, "/classify", model="tag", input=["ab"]).json()["data"]
    assert [(each["label"], each["start"], each["end"]) for each in tagged["tokens"]] == [("a", 0, 1), ("b", 1, 2)]
    assert "label" not in tagged


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/rerank", {"model": "fake", "query": "q", "documents": ["a"]}, 400, "model"),
        ("/v1/rerank", {"model": "classify", "query": "q", "documents": ["a"]}, 400, "model"),
        ("/v1/rerank", {"model": "none", "query": "q", "documents": ["a"]}, 404, "model"),
        ("/v1/rerank", {"model": "rank", "query": "q", "documents": []}, 400, "documents"),
        ("/v1/rerank", {"model": "rank", "query": "q", "documents": [{"title": "t"}]}, 400, "documents[0].text"),
        ("/v1/rerank", {"model": "rank", "query": "q", "documents": ["a"], "top_k": 1}, 400, "top_k"),
        ("/v1/rerank", {"model": "rank", "query": "q", "documents": ["a"] * 10_000}, 400, "documents"),
        ("/v1/embeddings", {"model": "embed", "input": ["a"] * 10_000}, 400, "input"),
        (
            "/v1/embeddings",
            {"model": "embed", "input": "a", "prompt_name": "b", "input_type": "clustering"},
            400,
            "input_type",
        ),
        ("/v2/embed", {"model": "embed", "texts": [], "input_type": "clustering"}, 400, "texts"),
        ("/v2/embed", {"model": "embed", "texts": ["a"]}, 400, "input_type"),
        ("/v2/embed", {**COHERE, "embedding_types": ["int8"]}, 400, "embedding_types[0]"),
        ("/v2/embed", {**COHERE, "truncate": "NONE", "max_tokens": 2}, 400, None),
        ("/v2/embed", {**COHERE, "truncate": "NONE", "texts": ["a", "a" * 5000]}, 400, "texts[1]"),
        ("/v2/embed", {**COHERE, "output_dimension": 1}, 400, "output_dimension"),
        (
            "/v1/embeddings",
            {"model": "embed", "input": "a", "truncate_prompt_tokens": 0},
            400,
            "truncate_prompt_tokens",
        ),
        ("/v1/score", {"model": "rank", "text_1": ["a"] * 10_000, "text_2": "b"}, 400, "text_1"),
        ("/v1/classify", {"model": "embed", "input": "a"}, 400, "model"),
        ("/v1/chat/completions", {"model": "rank", "messages": [{"role": "user", "content": "a"}]}, 400, "model"),
    ],
)
def test_wrong_requests_are_refused_by_parameter(
    app: FastAPI, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = post(app, path, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v2/embed", {**COHERE, "truncate": "NONE", "max_tokens": 2}, 'max_tokens shortens texts and truncate "NONE"'),
        ("/v1/classify", {"model": "a", "input": "b", "multi_label": True}, "multi_label needs labels; give them, or"),
    ],
)
def test_parameters_that_do_not_fit_each_other_are_named(
    app: FastAPI, path: str, body: dict[str, Any], message: str
) -> None:
    answer = post(app, path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"][: len(message)]) == (400, "invalid_value", message)


def test_batches_have_metrics(app: FastAPI) -> None:
    text = run(ask_app(app, "GET", "/metrics")).text
    assert 'nearfar:batch_texts_bucket{le="+Inf",model_name="embed"} 0.0' in text
    assert 'nearfar:batch_queue_time_seconds_sum{model_name="rank"} 0.0' in text
