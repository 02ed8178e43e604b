"""Which side embeds."""

from __future__ import annotations

from typing import Any

import pytest
from fake_openai import Reply
from hybrid_sides import ABOUT, SHA, FakeFar, FakeNear, hybrid, policy, run

from nearfar.compiler.runtime.errors import DeviceError, NearfarError
from nearfar.server_fallback.executors.executor import Call, ExecutorState
from nearfar.server_fallback.schema.routed import RoutedEmbeddingRequest

VECTORS = {
    "object": "list",
    "model": "big",
    "data": [{"index": 0, "embedding": [2.0]}],
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}
NEAR, FAR = [1.0], [2.0]
SAME = {"id": "hybrid"}
BROKEN = Reply(status=500)


class BusyNear(FakeNear):
    def state(self) -> ExecutorState:
        return ExecutorState(ready=False, detail="loading")


def embedding(
    near: FakeNear | None,
    rules: dict[str, Any],
    about: dict[str, Any] | None = None,
    reply: Reply | None = None,
    **parameters: Any,
) -> object:
    """The vector of "x", or the code of the error. ``about`` changes what far reports; it is "big", near "hybrid"."""
    far = FakeFar(lambda _: reply or Reply(value=VECTORS))
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, **(about or {})}]})

    async def work() -> object:
        async with hybrid(near, far, rules) as opened:
            request = RoutedEmbeddingRequest(**{"model": "hybrid", "input": "x", **parameters})
            try:
                answer = await opened.executor.embed(request, Call("1"))
            except NearfarError as error:
                return error.details.get("code")
            return answer.data[0].embedding

    return run(work())


def test_the_mode_says_who_embeds() -> None:
    near = FakeNear(embeds=True)
    for mode in ("near-only", "prefer-near", "auto"):
        assert embedding(near, policy(mode)) == NEAR
    for mode in ("far-only", "prefer-far"):
        assert embedding(near, policy(mode), SAME) == FAR
    assert embedding(near, policy("prefer-far", budget={"far_requests_per_day": 0}), SAME) == NEAR
    assert embedding(FakeNear(), policy()) == FAR
    assert embedding(None, policy()) == FAR


def test_an_input_is_searched_by_itself_because_inputs_never_meet() -> None:
    rules = policy("prefer-far", private={"patterns": [r"[0-9]{3}-[0-9]{2}-[0-9]{4}"]})
    assert embedding(FakeNear(), rules, input=["n 123-45", "-6789"]) == FAR
    assert embedding(FakeNear(), rules, input=["x", "123-45-6789"]) == "near_unavailable"
    assert embedding(FakeNear(), rules, user="123-45-6789") == "near_unavailable"


def test_a_label_that_the_policy_does_not_have_is_an_error_on_either_side() -> None:
    for near in (FakeNear(embeds=True), FakeNear()):
        assert embedding(near, policy(), labels=["unheard"]) == "unknown_label"


def test_a_side_that_fails_is_replaced_as_the_policy_allows() -> None:
    near, lost = FakeNear(embeds=True), FakeNear(embeds=True, error=DeviceError("lost"))
    assert embedding(near, policy("prefer-far"), SAME, BROKEN) == NEAR
    stays = policy("prefer-far", fallback={"near_continues": False})
    assert embedding(near, stays, SAME, BROKEN) is None
    assert embedding(near, policy("prefer-far"), SAME, BROKEN, pin="far") is None
    assert embedding(lost, policy(), SAME) == FAR
    assert embedding(lost, policy(fallback={"far_takes_over": False}), SAME) is None
    assert embedding(lost, policy(private={"patterns": ["x"]}), SAME) is None


def test_private_texts_stay_near() -> None:
    rules = policy(private={"patterns": ["x"]})
    assert embedding(FakeNear(embeds=True), rules) == NEAR
    assert embedding(FakeNear(embeds=True), {**rules, "mode": "prefer-far"}, SAME) == NEAR
    assert embedding(FakeNear(), rules) == "near_unavailable"
    assert embedding(FakeNear(embeds=True), rules, pin="far") == "private"


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({}, "different_models"),
        ({"id": "hybrid", "tokenizer_sha256": "other"}, "different_models"),
        ({"id": "hybrid", "tokenizer_sha256": SHA}, FAR),
        ({"id": "hybrid", "tokenizer_sha256": None}, FAR),
    ],
)
def test_far_embeds_in_place_of_near_only_with_the_same_model(about: dict[str, Any], found: object) -> None:
    assert embedding(BusyNear(embeds=True), policy(), about) == found
    assert embedding(FakeNear(embeds=True), policy(), about, pin="far") == found
    languages = policy(languages={"near": ["en"]})
    assert embedding(FakeNear(embeds=True), languages, about, language="fr") == found
    assert embedding(FakeNear(embeds=True), languages, about, language="en") == NEAR


def test_no_predictor_decides_about_embeddings() -> None:
    # Without a vector it would prefer far.
    predictor = {
        "version": 2, "features": ["question"], "terms": [], "mean": [0.0], "scale": [1.0],
        "near": {"weights": [0.0], "bias": -9.0}, "far": {"weights": [0.0], "bias": 9.0},
        "calibration": {"near": [1.0, 0.0], "far": [1.0, 0.0]},
    }  # fmt: skip
    assert embedding(FakeNear(embeds=True), policy("auto", quality={"predictor": predictor})) == NEAR
