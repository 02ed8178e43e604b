"""Which texts of a request are searched for private patterns, and which of them meet in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.decision.privacy import PrivateCheck
from nearfar.server_fallback.router.decision.private_texts import PRIVATE_TEXTS, private_texts
from nearfar.server_fallback.router.hybrid import read_request
from nearfar.server_fallback.router.hybrid_executor import situation_of
from nearfar.server_fallback.router.sides.texts import texts_of
from nearfar.server_fallback.schema.routed import RoutedChatRequest, RoutedCompletionRequest, RoutedEmbeddingRequest

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/private_texts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", VECTORS["texts"], ids=lambda case: case["name"])
def test_texts_match_the_conformance_cases(case: dict[str, Any]) -> None:
    request = read_request({"model": "tiny", **case["request"]})
    messages, texts = texts_of(request)
    assert sorted(set(texts)) == sorted(set(case["texts"]))
    meeting = [text for message in messages for text in message.parts or (message.content,)]
    assert [*filter(None, meeting)] == [*filter(None, case["meeting"])]
    # The definition finds the same in the request as a client sends it.
    found = list(private_texts(case["request"]))
    assert [text for kind, text in found if kind == "prompt"] == case["meeting"]
    assert sorted({text for kind, text in found if kind == "text"}) == sorted(set(case["texts"]))


@pytest.mark.parametrize("case", VECTORS["verdicts"], ids=lambda case: case["name"])
def test_verdicts_match_the_conformance_cases(case: dict[str, Any]) -> None:
    request = read_request({"model": "tiny", **case["request"]})
    situation = situation_of(request, *texts_of(request))
    check = PrivateCheck.of((), (case["pattern"],), ignore_case=True)
    assert check.is_private(situation) is case["private"]


@pytest.mark.parametrize("kind", [RoutedChatRequest, RoutedCompletionRequest, RoutedEmbeddingRequest])
def test_every_parameter_is_either_searched_or_has_no_text(
    kind: type[RoutedChatRequest | RoutedCompletionRequest | RoutedEmbeddingRequest],
) -> None:
    not_searched = set(VECTORS["not_searched"])
    assert not_searched.isdisjoint(PRIVATE_TEXTS)
    assert set(kind.model_fields) <= not_searched | set(PRIVATE_TEXTS)


def test_deep_and_unknown_values_are_searched() -> None:
    deep: Any = "078-05-1120"
    for _ in range(5000):
        deep = [deep]
    request = {"metadata": deep, "messages": [{"role": "user", "content": [{"type": "audio", "data": {"id": 12}}]}]}
    assert sorted(text for _, text in private_texts(request)) == ["078-05-1120", "12", "data", "id"]
