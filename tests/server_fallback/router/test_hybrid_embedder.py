"""A Hybrid whose policy reads the embedding of the last user message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_openai import running
from fake_source import FakeEncoder, text_model
from hybrid_gateway import NearOpener
from hybrid_sides import FakeFar, FakeNear, policy, run

from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.runtime.errors import NearfarError, RequestError, Unavailable
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.opening import HybridOpener
from nearfar.server_fallback.router.sides.embedder import Embedder
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.route import Route

# Near is sure of a text whose vector points to the right; without a vector far is likelier to be right.
RULES = policy(
    "auto",
    timeouts={"near_first_token_ms": 60_000},
    quality={
        "predictor": {
            "version": 2,
            "features": ["question"],
            "terms": [],
            "mean": [0.0],
            "scale": [1.0],
            "near": {"weights": [0.0, 5.0], "bias": -1.0},
            "far": {"weights": [0.0, -5.0], "bias": 0.0},
            "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
            "embedding": {"model": "compass", "mean": [0.0, 1.0], "components": [[1.0, 0.0]]},
        }
    },
)


async def compass(text: str) -> Sequence[float]:
    if text == "broken":
        raise Unavailable("no encoder")
    if text == "slow":
        await asyncio.sleep(3600)
    return {"east": (1.0, 1.0), "west": (-1.0, 1.0), "short": (1.0,), "nan": (float("nan"), 1.0)}[text]


def routes(*texts: str, rules: dict[str, Any] = RULES, embedder: Embedder | None = None) -> list[Route | NearfarError]:
    async def work() -> list[Route | NearfarError]:
        far = FakeFar()
        found: list[Route | NearfarError] = []
        async with (
            running(far),
            await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules, embedder=embedder) as opened,
        ):
            for text in texts:
                messages = [
                    {"role": "user", "content": "east"},
                    {"role": "assistant", "content": "west"},
                    {"role": "user", "content": text},
                ]
                try:
                    answer = await opened.chat.completions.create(messages=messages)
                    assert answer.route is not None
                    found.append(answer.route)
                except NearfarError as error:
                    found.append(error)
        return found

    return run(work())


def test_the_vector_of_the_last_user_message_decides() -> None:
    east, west = routes("east", "west", embedder=Embedder("compass", compass))
    assert isinstance(east, Route)
    assert isinstance(west, Route)
    assert (east.side, east.reason, west.side, west.reason) == ("near", "quality", "far", "quality")
    assert east.scores["near_right"] == pytest.approx(0.98201379)


def test_without_a_vector_a_request_is_decided_as_if_it_were_the_mean() -> None:
    # An encoder that fails, one that takes too long, and one that raises an error of its own.
    soon = {**RULES, "timeouts": {"near_first_token_ms": 50}}
    compassed = Embedder("compass", compass)
    for found in routes("broken", "unknown", embedder=compassed) + routes("slow", rules=soon, embedder=compassed):
        assert isinstance(found, Route)
        assert (found.side, found.reason) == ("far", "quality")
        assert (found.scores["near_right"], found.scores["far_right"]) == pytest.approx((0.26894142, 0.5))


def test_a_vector_that_the_model_cannot_have_made_is_an_error() -> None:
    for found in routes("short", "nan", embedder=Embedder("compass", compass)):
        assert isinstance(found, RequestError)
        assert found.details["code"] == "bad_situation"
        assert "not the 2 finite ones of compass" in found.message


@pytest.mark.parametrize(
    ("embedder", "message"),
    [
        (None, "there is no embedder"),
        (Embedder("other", compass), "the embedder is other"),
        (Embedder("compass", compass, 3), "the embedder's vectors have 3 numbers, not 2"),
    ],
)
def test_a_policy_that_reads_embeddings_needs_its_model(embedder: Embedder | None, message: str) -> None:
    with pytest.raises(RequestError, match=f"reads embeddings of compass, but {message}; give Hybrid.create") as raised:
        routes(embedder=embedder)
    assert raised.value.details["code"] == "bad_policy"


def test_an_opener_of_pairs_without_an_embedder_refuses_such_a_policy() -> None:
    opener = HybridOpener(NearOpener(FakeNear()), None, Policy.read(RULES))
    with pytest.raises(RequestError, match=r"there is no embedder; .*\(nearfar gateway: --encoder\)"):
        run(opener.prepare("tiny", None))


def test_an_embedder_is_asked_only_by_a_policy_that_reads_embeddings() -> None:
    async def refuse(text: str) -> Sequence[float]:
        raise AssertionError(text)

    (found,) = routes("east", rules=policy("prefer-near"), embedder=Embedder("compass", refuse))
    assert isinstance(found, Route)
    assert found.side == "near"


def test_an_encoder_of_ours_embeds_as_the_fit_did(tmp_path: Path) -> None:
    spec = EmbeddingSpec(pooling="last_token", normalize=False, size=3)
    embedder = Embedder.of(EncoderExecutor(FakeEncoder(), text_model(tmp_path, embedding=spec)))
    assert embedder.model == "fake"
    # (3, 4, number of tokens), with the length 1.
    assert run(embedder.embed("a" * 12)) == pytest.approx([3 / 13, 4 / 13, 12 / 13])  # type: ignore[arg-type]
