"""The finder of a policy's masks: kinds of labels, the limits of a search, and the demo finder from a request to far's
bytes.
"""

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
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.finder import Classifies, Finder
from nearfar.server_fallback.schema.chat import ChatCompletionChunk
from nearfar.server_fallback.schema.encoding import EncodingUsage
from nearfar.server_fallback.schema.score import Classification, ClassifyRequest, ClassifyResponse

TEXT = "My name is Rosalind Fairweather. Please deliver the sofa to 7 Hawthorn Close tomorrow."
# Of published models: CoNLL 2003, OpenAI's privacy filter and AI4Privacy.
LABELS = ("O", "B-PER", "I-PER", "E-private_address", "U-GIVENNAME", "TELEPHONENUM", "B-LOC", "I-ORG")


class Slow:
    """A classifier that finds nothing, in ``seconds`` of the event loop's clock."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, 0

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:  # noqa: ARG002
        self.batches += 1
        loop = asyncio.get_running_loop()
        time = loop.time
        loop.time = lambda: time() + self.seconds  # type: ignore[method-assign]
        # Timers that are due run meanwhile.
        for _ in range(3):
            await asyncio.sleep(0)
        data = [Classification(index=at, num_classes=3, tokens=[], spans=[]) for at, _ in enumerate(request.input)]
        usage = EncodingUsage(prompt_tokens=1, total_tokens=1)
        return ClassifyResponse(id="c", created=1, model="slow", data=data, usage=usage)


async def answered(far: FakeFar, finder: Classifies, *texts: str) -> list[ChatCompletionChunk]:
    given = policy("prefer-far", private={"masks": {"entities": ENTITIES}})
    async with (
        running(far),
        await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=given, finder=finder) as pair,
    ):
        messages = [{"role": "user", "content": text} for text in texts]
        stream = await pair.chat.completions.create(messages=messages, stream=True)
        return [chunk async for chunk in stream]


def sides(chunks: Sequence[ChatCompletionChunk]) -> set[tuple[str, str]]:
    return {(chunk.route.side, chunk.route.reason) for chunk in chunks if chunk.route is not None}


def test_labels_of_published_models_mean_known_kinds_and_others_are_refused_by_name() -> None:
    found = Finder(Slow(), LABELS).entities
    assert [each.kind for each in found] == ["PERSON", "ADDRESS", "PHONE", "LOCATION", "ORGANIZATION"]
    with pytest.raises(RequestError, match="the model labels COLOR, SHAPE, which no known kind"):
        Finder(Slow(), ("O", "B-COLOR", "I-COLOR", "B-PER", "B-SHAPE"))
    own = Finder(Slow(), ("O", "B-COLOR", "I-COLOR", "B-PER"), {"COLOR": "HUE", "PER": None})
    assert [each.kind for each in own.entities] == ["HUE"]
    for wrong in ({"COLOR": None}, {"PER": "person"}):
        with pytest.raises(RequestError):
            Finder(Slow(), ("O", "B-PER"), wrong)


@pytest.mark.parametrize(
    ("characters", "seconds", "stays", "batches"),
    [(100_000, 2.0, False, 4), (100_001, 2.0, True, 0), (100_000, 7.0, True, 3)],
    ids=["within both limits", "the texts are too long", "all batches take too long"],
)
def test_texts_that_are_not_searched_in_time_stay(characters: int, seconds: float, stays: bool, batches: int) -> None:
    async def nothing(*_: object) -> bool:
        return False

    far, slow = FakeFar(lambda _: Reply(chunks=text_chunks("far", usage=FAR_USAGE))), Slow(seconds)
    texts = "x" * 50_000, "y" * (characters - 50_000)
    # The texts are too long for both sides, so the error shows where they may be read.
    with pytest.raises(RequestError, match="is private, so only near" if stays else "neither side can answer"):
        run(answered(far, Finder(slow, LABELS), *texts))
    assert slow.batches == batches


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
            for label, message in (
                ("PERSONS", "finds no 'PERSONS'; write one of its kinds: PERSON"),
                ("private_person", 'own name of a kind; write "label": "PERSON"'),
            ):
                wrong = policy("prefer-far", private={"masks": {"entities": [{"label": label, "kind": "PERSON"}]}})
                # A finder, and an executor, of which it is made.
                for given in (finder, executor):
                    with pytest.raises(RequestError, match=message):
                        await Hybrid.create(near=FakeNear(), far=Far("http://127.0.0.1:9"), policy=wrong, finder=given)
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
