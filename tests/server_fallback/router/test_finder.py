"""The finder of a policy's masks: kinds of labels, its limits, and the demo finder from a request to far's bytes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from demo_finder.checkpoint import CONTEXT
from demo_finder.opened import opened
from fake_openai import Received, Reply, running, text_chunks
from hybrid_sides import FAR_USAGE, FakeFar, FakeNear, policy, run
from name_corpus import ENTITIES, measured
from plain_target import compile_plain

from nearfar.compiler.demo import FINDER_CHECKPOINT
from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.finder import Classifies, Finder
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.score import ClassifyRequest, ClassifyResponse

TEXT = "My name is Rosalind Fairweather. Please deliver the sofa to 7 Hawthorn Close tomorrow."
# Of published models: CoNLL 2003, OpenAI's privacy filter and AI4Privacy.
LABELS = ("O", "B-PER", "I-PER", "E-private_address", "U-GIVENNAME", "TELEPHONENUM", "B-LOC", "I-ORG")


class Failing:
    """A classifier that raises ``error``, or never answers."""

    def __init__(self, error: NearfarError | None = None) -> None:
        self.error = error

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:  # noqa: ARG002
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError


async def answered(far: FakeFar, finder: Classifies, text: str) -> list[ChatCompletionChunk]:
    given = policy("prefer-far", private={"masks": {"entities": ENTITIES}})
    async with (
        running(far),
        await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=given, finder=finder) as pair,
    ):
        stream = await pair.chat.completions.create(messages=[{"role": "user", "content": text}], stream=True)
        return [chunk async for chunk in stream]


def sides(chunks: Sequence[ChatCompletionChunk]) -> set[tuple[str, str]]:
    return {(chunk.route.side, chunk.route.reason) for chunk in chunks if chunk.route is not None}


def test_labels_of_published_models_mean_known_kinds_and_others_are_refused_by_name() -> None:
    found = Finder(Failing(), LABELS).entities
    assert [each.kind for each in found] == ["PERSON", "ADDRESS", "PHONE", "LOCATION", "ORGANIZATION"]
    with pytest.raises(RequestError, match="the model labels MISC, EVENT, which no known kind"):
        Finder(Failing(), ("O", "B-MISC", "I-MISC", "B-PER", "B-EVENT"))
    own = Finder(Failing(), ("O", "B-MISC", "I-MISC", "B-PER"), {"MISC": "OTHER", "PER": None})
    assert [each.kind for each in own.entities] == ["OTHER"]
    for wrong in ({"MISC": None}, {"PER": "person"}):
        with pytest.raises(RequestError):
            Finder(Failing(), ("O", "B-PER"), wrong)


@pytest.mark.parametrize(
    "finder",
    [
        Finder(Failing(DeviceError("lost")), LABELS),
        Finder(Failing(), LABELS, timeout_seconds=0.01),
        Finder(Failing(), LABELS, max_characters=len(TEXT) - 1),
    ],
    ids=["the device is lost", "it takes too long", "the text is too long"],
)
def test_a_text_that_is_not_searched_stays_on_this_machine(finder: Finder) -> None:
    far = FakeFar(lambda _: Reply(chunks=text_chunks("far", usage=FAR_USAGE)))
    assert sides(run(answered(far, finder, TEXT))) == {("near", "private")}
    assert far.generated == []


def test_far_reads_placeholders_for_what_the_demo_finder_finds_and_the_stream_has_the_texts(tmp_path: Path) -> None:
    def echo(received: Received) -> Reply:
        assert received.body is not None
        said = received.body["messages"][-1]["content"]
        return Reply(chunks=text_chunks(*(said[at : at + 7] for at in range(0, len(said), 7)), usage=FAR_USAGE))

    far = FakeFar(echo)
    bundle = compile_plain(FINDER_CHECKPOINT, tmp_path / "finder", "q8f16", CONTEXT)
    text = f"😀 {TEXT}"

    async def work() -> list[ChatCompletionChunk]:
        async with opened(bundle) as executor:
            finder = Finder.of(executor)
            wrong = policy("prefer-far", private={"masks": {"entities": [{"label": "PERSONS", "kind": "PERSON"}]}})
            with pytest.raises(RequestError, match="'PERSONS', but the finder finds"):
                await Hybrid.create(near=FakeNear(), far=Far("http://127.0.0.1:9"), policy=wrong, finder=finder)
            return await answered(far, finder, text)

    chunks = run(work())
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
    sent = json.dumps([each.body for each in far.received])
    assert "My name is [PERSON_1]. Please deliver" in sent
    assert not re.search("Rosalind|Fairweather|Hawthorn", sent)


@pytest.mark.exhaustive
def test_the_recorded_figures_are_those_of_the_corpus_of_names() -> None:
    recorded = json.loads((FINDER_CHECKPOINT / "accuracy.json").read_text())["corpus"]
    assert measured(FINDER_CHECKPOINT) == recorded
    kept, alone, every = (sum(each[column] for each in recorded["forms"].values()) for column in range(3))
    assert kept > 0.8 * every > alone
    assert recorded["alarms"][0] <= 4
