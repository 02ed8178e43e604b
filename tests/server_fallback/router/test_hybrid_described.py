"""Pictures stay on the device, and far receives the texts that near makes of them: the far side records every byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_openai import Reply, running, text_chunks
from hybrid_sides import ABOUT, FAR_USAGE, QUESTION, FakeFar, FakeNear, policy, run
from test_hybrid_private import PICTURE, PNG, SECRET, SEE, Wire
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.audio.transcribe import Segment, Transcript
from nearfar.compiler.runtime.errors import DeviceError, NearfarError, RequestError, Unavailable
from nearfar.server_fallback.executors.circuit import Circuit
from nearfar.server_fallback.executors.executor import Call, Recording
from nearfar.server_fallback.router.decision.situation import Media
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.describer import Describer
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.router.sides.near import NearSide
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.transcription import TranscriptionRequest

PATTERN = r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b"
PRIVATE = {"patterns": [PATTERN], "media": "describe"}
TEXT = "[Picture, described on the user's device: a red boat]"
LOOK = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE]}]
OF_A_TOOL = [
    *QUESTION,
    {"role": "assistant", "tool_calls": [SEE]},
    {"role": "tool", "tool_call_id": "c1", "content": [PICTURE]},
]
BYTES = PNG.split(",")[1].encode()


@asynccontextmanager
async def spied(
    near: FakeNear, rules: dict[str, Any], far: FakeFar | None = None, **options: Any
) -> AsyncIterator[tuple[Hybrid, FakeFar, Wire]]:
    """A hybrid, and all that far receives. No byte of a picture is among it."""
    far, wire = far or FakeFar(), Wire()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096}]})
    async with (
        running(far),
        wire.to(far),
        await Hybrid.create(near=near, far=Far(wire.url, vision=True), policy=rules, **options) as opened,
    ):
        yield opened, far, wire
    assert BYTES not in wire.bytes
    assert b"image_url" not in wire.bytes


def chats_of(near: FakeNear) -> list[ChatCompletionRequest]:
    return [request for request in near.requests if isinstance(request, ChatCompletionRequest)]


@pytest.mark.parametrize(
    "messages",
    [LOOK, OF_A_TOOL, [*LOOK, *LOOK, *QUESTION], [*LOOK, {"role": "assistant", "content": "hm"}, *QUESTION]],
)
def test_far_receives_the_description_of_a_picture_and_the_route_has_it_word_for_word(
    messages: list[dict[str, Any]],
) -> None:
    near = FakeNear("a red boat", sees=True)
    index, part = next(
        (index, len(each["content"]) - 1)
        for index, each in enumerate(messages)
        if isinstance(each.get("content"), list)
    )

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, far, _):
            answer = await opened.chat.completions.create(messages=messages)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("far", "prefer")
            described = answer.route.model_dump()["described"]
            assert described[0] == {"path": f"messages[{index}].content[{part}]", "kind": "picture", "text": TEXT}
            assert len(described) == json.dumps(messages).count('image_url": ')
            chunks = [chunk async for chunk in await opened.chat.completions.create(messages=messages, stream=True)]
            assert chunks[0].route is not None
            assert chunks[0].route.described == answer.route.described
            for body in far.generated:
                assert body["messages"][index]["content"][part] == {"type": "text", "text": TEXT}

    run(work())
    # The second answer's description is that of the first one.
    (description,) = chats_of(near)
    assert description.temperature == 0
    assert description.max_tokens == 160
    assert description.messages[0].model_dump(exclude_none=True)["content"][0] == PICTURE


class Heard:
    """A transcriber that hears how many bytes there are."""

    async def transcribe(
        self,
        recording: Recording,
        request: TranscriptionRequest,
        call: Call,
        heard: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Transcript:
        assert recording == Recording(recording.data, "messages[0].content[0]", translate=False, max_seconds=600)
        assert (request.model, call.deadline) == ("tiny", None)
        segment = Segment(0, 0.0, 1.0, f" {len(recording.data)} bytes", (), 0.0, 0.0, 1.0, 0.0)
        return Transcript("transcribe", "en", 1.0, (segment,))


def test_a_transcriber_writes_down_a_recording() -> None:
    def request(data: str) -> ChatCompletionRequest:
        part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        return ChatCompletionRequest.model_validate(
            {"model": "tiny", "messages": [{"role": "user", "content": [part]}]}
        )

    async def work() -> None:
        near = NearSide(FakeNear(), "tiny", Heard())
        circuit = Circuit(failures=1, first_wait_seconds=1, longest_wait_seconds=1)
        describer = Describer(near, circuit, max_seconds=WAIT_SECONDS)
        assert describer.kinds == ("sound",)
        media = [Media("sound", 0, 0)]
        (found,) = await describer.describe(request("UklGRg=="), media, Call("a"))
        assert found.text == "[Sound, transcribed on the user's device: 4 bytes]"
        with pytest.raises(RequestError, match="data that is not base64") as raised:
            await describer.describe(request("?"), media, Call("a"))
        assert raised.value.details["code"] == "undescribed"
        large = request("AAAA" * (9 * 2**20))
        with pytest.raises(RequestError, match="at most 26214400 are read"):
            await describer.describe(large, media, Call("a"))

    run(work())


FILM = {"type": "video_url", "video_url": {"url": PNG.replace("image/png", "video/mp4")}}
FRAMES = {"type": "video", "frames": [PNG, PNG], "fps": 1.0}


@pytest.mark.parametrize("part", [FILM, FRAMES])
def test_far_receives_the_description_of_a_video_which_is_made_once(part: dict[str, Any]) -> None:
    near = FakeNear("a boat leaves", sees=True, watches=True)
    text = "[Video, described on the user's device: a boat leaves]"

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, far, _):
            for _ in range(2):
                answer = await opened.chat.completions.create(messages=[{"role": "user", "content": [part]}])
                assert answer.route is not None
                assert answer.route.model_dump()["described"] == [
                    {"path": "messages[0].content[0]", "kind": "video", "text": text}
                ]
            assert [body["messages"][0]["content"] for body in far.generated] == [[{"type": "text", "text": text}]] * 2

    run(work())
    (description,) = chats_of(near)
    content = description.model_dump(exclude_none=True)["messages"][0]["content"]
    assert content[0] == part
    assert content[1]["text"].startswith("Describe this video, and what happens in it,")


def test_a_video_at_an_address_is_described_each_time() -> None:
    near = FakeNear("a boat leaves", sees=True, watches=True)
    film = {"type": "video_url", "video_url": {"url": "https://here/a.mp4"}}

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, _, _):
            for _ in range(2):
                await opened.chat.completions.create(messages=[{"role": "user", "content": [film]}])

    run(work())
    assert len(chats_of(near)) == 2


def test_a_near_side_that_reads_no_videos_describes_none() -> None:
    near = FakeNear("a red boat", sees=True)

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, far, _):
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=[{"role": "user", "content": [FILM]}])
            assert raised.value.details["code"] == "video"
            assert far.generated == []

    run(work())


def test_a_description_that_is_private_stays_near() -> None:
    near = FakeNear(SECRET, sees=True)

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, far, wire):
            answer = await opened.chat.completions.create(messages=LOOK)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason, answer.route.described) == ("near", "private", None)
            assert far.generated == []
            assert b"123-45" not in wire.bytes
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=LOOK, pin="far")
            assert raised.value.details["code"] == "private"

    run(work())
    # Near answers about the picture itself.
    assert chats_of(near)[-1].messages[-1].images


def test_a_picture_of_a_private_request_is_not_described_for_far() -> None:
    near = FakeNear(sees=True)

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE)) as (opened, far, _):
            answer = await opened.chat.completions.create(messages=[{**LOOK[0], "labels": ["private"]}])
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason, far.generated) == ("near", "private", [])

    run(work())
    assert len(near.requests) == 1


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize(
    "near",
    [
        FakeNear(sees=True, error=DeviceError("lost")),
        FakeNear(sees=True, error=Unavailable("busy")),
        FakeNear(sees=True, error=RequestError("damaged")),
        FakeNear(sees=True, error=DeviceError("lost"), error_at=3),
        FakeNear(sees=True, hangs_at=0),
        FakeNear("", sees=True),
    ],
)
def test_a_picture_that_near_cannot_describe_never_leaves(near: FakeNear, continues: bool) -> None:
    """Near fails at once, in the middle, is late, or says nothing; then its circuit is open."""
    limits = {} if near.hangs_at is None else {"near_first_token_ms": 100, "between_tokens_ms": 100}
    rules = policy(
        "prefer-far",
        private=PRIVATE,
        fallback={"near_continues": continues},
        timeouts={**limits, "hedge_after_ms": None},
        escalation={"then": "restart", "warm": "always"},
        retries=2,
        breaker={"failures": 1},
    )

    async def outcome(opened: Hybrid, stream: bool) -> str:
        """The code of its error, or the side that answered."""
        try:
            if not stream:
                route = (await opened.chat.completions.create(messages=LOOK)).route
                return "" if route is None else route.side
            chunks = await opened.chat.completions.create(messages=LOOK, stream=True)
            return [chunk.route.side async for chunk in chunks if chunk.route is not None][-1]
        except NearfarError as error:
            return str(error.details.get("code"))

    async def work() -> None:
        async with spied(near, rules) as (opened, far, _):
            outcomes = [await outcome(opened, stream) for stream in (False, True, False)]
            assert "far" not in outcomes
            # Near answers itself; it says nothing again.
            assert near.text or outcomes[0] == ("near" if continues else "undescribed")
            assert continues or {*outcomes} <= {"undescribed", "circuit_open"}
            assert far.generated == []

    run(work())


def test_the_error_of_a_picture_without_a_description_says_where_it_is_and_why() -> None:
    near = FakeNear(sees=True, error=DeviceError("the device was lost"))
    rules = policy("prefer-far", private=PRIVATE, fallback={"near_continues": False})

    async def work() -> None:
        async with spied(near, rules) as (opened, _, _):
            with pytest.raises(Unavailable) as raised:
                await opened.chat.completions.create(messages=LOOK)
            assert raised.value.message == (
                "the request has a picture (messages[0].content[1]), which was not described on this device, so it was "
                "not sent far: the device was lost"
            )

    run(work())


@pytest.mark.parametrize("rules", [{}, {"escalation": {"then": "continue", "min_mean_logprob": -1.0}}])
def test_far_fails_in_mid_answer_and_near_continues_with_the_same_texts(rules: dict[str, Any]) -> None:
    broken = FakeFar(lambda _: Reply(chunks=text_chunks("far ", "says", usage=FAR_USAGE), breaks_after=2))
    near = FakeNear("a red boat", sees=True)

    async def work() -> None:
        async with spied(near, policy("prefer-far", private=PRIVATE, **rules), broken) as (opened, far, _):
            answer = await opened.chat.completions.create(messages=LOOK)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "far_failed")
            assert TEXT in json.dumps(far.generated)

    run(work())


def test_near_that_prefers_itself_reads_the_picture_and_its_answer_stays_near() -> None:
    near = FakeNear("a red boat", sees=True, error=DeviceError("lost"), error_at=4)
    rules = policy("prefer-near", private=PRIVATE, escalation={"then": "restart", "warm": "always"})

    async def work() -> None:
        async with spied(near, rules) as (opened, far, _):
            with pytest.raises(NearfarError):
                await opened.chat.completions.create(messages=LOOK)
            assert far.generated == []

    run(work())
    assert all(request.messages[-1].images for request in chats_of(near))
