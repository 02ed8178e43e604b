"""A gateway whose policy reads the embeddings of prompts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fake_openai import running
from fake_source import FakeEncoder, text_model
from hybrid_gateway import elsewhere, gateway
from hybrid_sides import FakeFar, FakeNear, policy, run
from served_demo import serving
from tolerances import F32

from nearfar.compiler.cli import main
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.engine.encode_job import EncodeRequest
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.executor import Call, Executor, Opening
from nearfar.server_fallback.executors.local_opener import open_executor
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.local_embedder import LocalEmbedder, require_encoder
from nearfar.server_fallback.schema.models import LoadRequest

CompileTiny = Callable[..., Path]


def rules_of(model: str, mean: Sequence[float], direction: Sequence[float]) -> dict[str, Any]:
    """Near is right if the prompt's vector, less ``mean``, points in this direction; far is right if it does not."""
    predictor = {
        "version": 2,
        "features": ["question"],
        "terms": [],
        "mean": [0.0],
        "scale": [1.0],
        "near": {"weights": [0.0, 1.0], "bias": 0.0},
        "far": {"weights": [0.0, -1.0], "bias": 0.0},
        "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
        "embedding": {"model": model, "mean": list(mean), "components": [list(direction)]},
    }
    return policy("auto", quality={"predictor": predictor})


def body(text: str) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 2}


def test_the_command_decides_by_the_vectors_of_its_encoder(compile_base: CompileTiny, tmp_path: Path) -> None:
    # These two bundles are those of `tests/targets/test_runners.py`.
    encoder = compile_base("embedding", "q4f16", target="cpu", activations=("float32",))
    near = compile_base("qwen3", "q4f16", target="cpu", context=320, activations=("float32",))
    texts = ("a first prompt", "something else entirely")

    async def vectors() -> FloatArray:
        executor = await open_executor(encoder, LocalOptions(kv_memory_bytes=1 << 24))
        assert isinstance(executor, EncoderExecutor)
        try:
            return await executor.vectors(texts, Call("1"), is_query=True)
        finally:
            await executor.close()

    first, second = run(vectors())
    # The probability for the first text is sigmoid(2), for the second sigmoid(-2).
    direction = 4 * (first - second) / np.sum((first - second) ** 2)
    file, far = tmp_path / "policy.json", FakeFar()
    file.write_text(json.dumps(rules_of(encoder.name, ((first + second) / 2).tolist(), direction.tolist())))
    with elsewhere(far):
        arguments = ["--near", str(near), "--name", "tiny", "--far", far.url, "--policy", str(file)]
        command = serving(*arguments, "--encoder", str(encoder), folder=tmp_path, command="gateway")
        with command as (_, url), httpx.Client(base_url=url, timeout=60) as client:
            found = [client.post("/v1/chat/completions", json=body(text)).json()["route"] for text in texts]
            metrics = client.get("/metrics").text
    assert [(route["side"], route["reason"]) for route in found] == [("near", "quality"), ("far", "quality")]
    for route, right in zip(found, (0.8807970780, 0.1192029220), strict=True):
        assert route["scores"]["near_right"] == pytest.approx(right, abs=F32)
        assert route["scores"]["far_right"] == pytest.approx(1 - right, abs=F32)
    assert 'nearfar:batch_texts_sum{model_name="tiny"} 2.0' in metrics


class TogetherEncoder(FakeEncoder):
    """Answers when this number of requests waits."""

    def __init__(self, count: int) -> None:
        super().__init__(lambda ids, _: [[1.0 if ids[0] == ord("n") else -1.0, 0.0, 0.0]])
        self.barrier = asyncio.Barrier(count)
        self.closed = False

    async def encode(self, request: EncodeRequest) -> FloatArray:
        await self.barrier.wait()
        return await super().encode(request)

    async def close(self, *_: object, **__: object) -> None:
        self.closed = True


class EncoderOpener:
    """Opens an encoder under any name, and counts how often."""

    def __init__(self, encoder: FakeEncoder, folder: Path, name: str = "compass", embedding_size: int = 3) -> None:
        spec = EmbeddingSpec(pooling="mean", normalize=True, size=3)
        model = replace(text_model(folder, embedding=spec), name=name, embedding_size=embedding_size)
        self.executor: Executor = EncoderExecutor(encoder, model)
        self.opened = 0

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            self.opened += 1
            return self.executor

        return Opening(name or model, None, open_it)


RULES = rules_of("compass", [0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
COMPONENTS = require_encoder(Policy.read(RULES), "compass")


def test_concurrent_requests_wait_for_their_vectors_together(tmp_path: Path) -> None:
    async def work() -> None:
        far, encoder = FakeFar(), TogetherEncoder(4)
        opener = EncoderOpener(encoder, tmp_path)
        assert COMPONENTS is not None
        embedder = LocalEmbedder(opener, "compass", COMPONENTS)
        async with running(far), gateway(FakeNear(), Far(far.url), RULES, embedder=embedder) as app:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                await app.state.service.models.load(LoadRequest(model="other"))
                asked = [client.post("/v1/chat/completions", json=body(text)) for text in ("n1", "f1", "n2", "f2")]
                answers = await asyncio.gather(*asked)
            assert [answer.json()["route"]["side"] for answer in answers] == ["near", "far", "near", "far"]
            # Two pairs share it.
            assert opener.opened == 1
            assert not encoder.closed
            await embedder.close()
            assert encoder.closed

    run(work())


def test_requests_without_a_vector_are_counted_in_the_state(tmp_path: Path) -> None:
    async def work() -> str:
        far = FakeFar()
        encoder = FakeEncoder(lambda *_: [])
        assert COMPONENTS is not None
        embedder = LocalEmbedder(EncoderOpener(encoder, tmp_path), "compass", COMPONENTS)
        async with running(far), gateway(FakeNear(), Far(far.url), RULES, embedder=embedder) as app:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                await client.post("/v1/chat/completions", json=body("x"))
            states = app.state.service.models.states()
            detail: str = states["tiny"].detail
            return detail

    assert run(work()).endswith("requests decided without a vector: 1")


@pytest.mark.parametrize(
    ("opener", "message"),
    [
        ({"name": "other"}, "--encoder compass: is other, but the policy reads embeddings of compass; give that model"),
        ({"embedding_size": 2}, "--encoder compass: makes vectors of 2 numbers, but the policy reads 3 of compass"),
    ],
)
def test_an_encoder_that_is_not_that_of_the_policy_is_closed_again(
    opener: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert COMPONENTS is not None
    encoder = TogetherEncoder(1)
    embedder = LocalEmbedder(EncoderOpener(encoder, tmp_path, **opener), "compass", COMPONENTS)
    with pytest.raises(RequestError, match=message) as raised:
        run(embedder.open())
    assert raised.value.details["code"] == "bad_policy"
    assert encoder.closed


def test_a_model_that_generates_text_is_not_an_encoder(tmp_path: Path) -> None:
    assert COMPONENTS is not None
    opener, near = EncoderOpener(FakeEncoder(), tmp_path), FakeNear()
    opener.executor = near
    with pytest.raises(RequestError, match="--encoder compass: makes no embeddings; use an embedding model"):
        run(LocalEmbedder(opener, "compass", COMPONENTS).open())
    assert near.closed


@pytest.mark.parametrize(
    ("rules", "arguments", "message"),
    [
        (RULES, [], "reads embeddings of compass; give that model with --encoder MODEL, or fit the policy without"),
        (RULES, ["--encoder", "x/demo-encoder"], "is x/demo-encoder, but the policy reads embeddings of compass"),
        (policy(), ["--encoder", "compass"], "--encoder compass: the policy's predictor reads no embeddings; remove"),
    ],
)
def test_the_command_compares_policy_and_encoder_before_any_slow_work(
    rules: dict[str, Any], arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(rules))
    # The near model does not exist.
    assert main(["gateway", "--near", "./none", "--far", "http://a", "--policy", str(file), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
