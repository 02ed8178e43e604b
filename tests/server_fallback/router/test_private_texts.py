"""Which texts of a request are searched for private patterns, and which of them meet in the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.server_fallback.router.decision.privacy import PrivateCheck
from nearfar.server_fallback.router.hybrid import read_request
from nearfar.server_fallback.router.hybrid_executor import situation_of
from nearfar.server_fallback.router.sides.texts import request_texts, texts_of, with_file_texts
from nearfar.server_fallback.schema.routed import RoutedChatRequest, RoutedCompletionRequest, RoutedEmbeddingRequest

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance/private_texts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", VECTORS["texts"], ids=lambda case: case["name"])
def test_texts_match_the_conformance_cases(case: dict[str, Any]) -> None:
    request = read_request({"model": "tiny", **case["request"]})
    messages, texts, _ = texts_of(request)
    assert sorted(set(texts)) == sorted(set(case["texts"]))
    meeting = [text for message in messages for text in message.parts or (message.content,)]
    assert [*filter(None, meeting)] == [*filter(None, case["meeting"])]


@pytest.mark.parametrize("case", VECTORS["verdicts"], ids=lambda case: case["name"])
def test_verdicts_match_the_conformance_cases(case: dict[str, Any]) -> None:
    request = read_request({"model": "tiny", **case["request"]})
    situation = situation_of(request, *texts_of(request))
    check = PrivateCheck.of((), (case["pattern"],), ignore_case=True)
    assert check.is_private(situation) is case["private"]


@pytest.mark.parametrize("case", VECTORS["media"], ids=lambda case: case["name"])
def test_media_match_the_conformance_cases(case: dict[str, Any]) -> None:
    media = texts_of(read_request({"model": "tiny", **case["request"]}))[2]
    assert [[each.kind, each.message, each.part] for each in media] == case["media"]


@pytest.mark.parametrize("case", VECTORS["files"], ids=lambda case: case["name"])
def test_the_texts_of_files_match_the_conformance_cases(case: dict[str, Any]) -> None:
    request, files = with_file_texts(read_request({"model": "tiny", "messages": case["messages"]}))
    situation = situation_of(request, *texts_of(request))
    assert [message.content for message in situation.messages] == case["contents"]
    assert [[each.kind, each.message, each.part] for each in (*situation.media, *files)] == case["media"]
    check = PrivateCheck.of((), (case["pattern"],), ignore_case=True)
    assert check.is_private(situation) is case["private"]


@pytest.mark.parametrize("case", VECTORS["unknown_parts"], ids=lambda case: case["name"])
def test_parts_that_are_not_known_are_media(case: dict[str, Any]) -> None:
    found = request_texts({"messages": case["messages"]}, ["" for _ in case["messages"]]).media
    assert [[each["kind"], each["message"], each["part"]] for each in found] == case["media"]


@pytest.mark.parametrize("case", VECTORS["odd_values"], ids=lambda case: case["name"])
def test_values_of_other_kinds_are_searched(case: dict[str, Any]) -> None:
    contents = ["" for _ in case["request"].get("messages", ())]
    found = request_texts(case["request"], contents)
    assert {*found.texts, *(text for parts in found.parts for text in parts)} == set(case["texts"])


@pytest.mark.parametrize("kind", [RoutedChatRequest, RoutedCompletionRequest, RoutedEmbeddingRequest])
def test_every_parameter_is_either_searched_or_has_no_text(
    kind: type[RoutedChatRequest | RoutedCompletionRequest | RoutedEmbeddingRequest],
) -> None:
    for name in set(kind.model_fields) - set(VECTORS["not_searched"]) - {"messages", "prompt"}:
        values = ("x", {"name": "x", "json": "x", "type": "x"})
        assert any(request_texts({name: value}, []).texts for value in values), name


def test_deep_and_unknown_values_and_numbers_that_json_does_not_have_are_searched() -> None:
    deep: Any = "078-05-1120"
    for _ in range(200):
        deep = [deep]
    message = {"role": "user", "content": [{"type": "audio", "data": {"id": 12}}]}
    request = {"metadata": deep, "messages": [message], "prediction": {"a": float("inf"), "b": 2**60 + 1}}
    large = {str(2**60 + 1), str(2**60), "1152921504606847000"}
    assert {*request_texts(request, [""]).texts} == {"078-05-1120", "12", "data", "id", "a", "Infinity", "b", *large}
    assert {*request_texts({"metadata": 2**60 + 1}, []).texts} == large
