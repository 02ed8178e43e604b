"""Files of text are read before a side is chosen, so they are searched, and any side answers about them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from fake_openai import Reply, running, text_chunks
from hybrid_sides import ABOUT, FAR_USAGE, QUESTION, FakeFar, FakeNear, ask, hybrid, policy, run
from test_hybrid_private import SECRET, recorded

from nearfar.compiler.runtime.audio.transcribe import Segment, Transcript
from nearfar.compiler.runtime.errors import DeviceError, RequestError
from nearfar.server_fallback.executors.executor import Call, Recording
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.transcription import TranscriptionRequest


def file_part(content: str, name: str = "notes.md") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": base64.b64encode(content.encode()).decode()}}


def about(*parts: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, *parts], **more}]


PDF = file_part("%PDF-1.7", "a.pdf")
TEXT = {"type": "text", "text": "[File: notes.md]\n# Boats\n[End of file: notes.md]\n"}


def large_far() -> FakeFar:
    far = FakeFar()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096}]})
    return far


@pytest.mark.parametrize("private", [{}, {"patterns": ["secret"]}])
def test_a_near_side_without_eyes_answers_about_a_file_of_text(private: dict[str, Any]) -> None:
    near = FakeNear()
    answer = ask(near, FakeFar(), policy(private=private), messages=about(file_part("# Boats")))
    assert answer.route is not None
    assert (answer.route.side, answer.route.reason) == ("near", "prefer")
    (request,) = near.requests
    assert isinstance(request, ChatCompletionRequest)
    assert request.messages[0].model_dump(exclude_none=True)["content"][1] == TEXT


def test_far_receives_the_marked_text_of_a_file_although_the_policy_has_patterns() -> None:
    far = large_far()
    answer = ask(
        FakeNear(),
        far,
        policy("prefer-far", private={"patterns": ["secret"]}),
        messages=[*about(file_part("# Boats")), *QUESTION],
    )
    assert answer.route is not None
    assert (answer.route.side, answer.route.reason) == ("far", "prefer")
    (body,) = far.generated
    assert body["messages"][0]["content"][1] == TEXT


def test_a_file_of_text_stays_near_if_the_policy_keeps_media_there() -> None:
    rules, far = policy("prefer-far", private={"labels": [], "media": "near"}), large_far()
    answer = ask(FakeNear(), far, rules, messages=[*about(file_part("# Boats")), *QUESTION])
    assert answer.route is not None
    assert (answer.route.side, answer.route.reason) == ("near", "media")
    with pytest.raises(RequestError, match=r"a file of text \(messages\[0\].content\[1\]\)") as raised:
        ask(FakeNear(), far, rules, messages=about(file_part("# Boats")), pin="far")
    assert raised.value.details["code"] == "media"
    assert far.generated == []


@pytest.mark.parametrize(
    "messages",
    [
        about(file_part(SECRET)),
        [*about(file_part(f"id,text\n1,{SECRET}\n", "a.csv")), *QUESTION],
        about(file_part("# Boats"), labels=["private"]),
    ],
)
def test_a_file_with_a_private_text_stays_near(messages: list[dict[str, Any]]) -> None:
    async def work() -> None:
        async with recorded(FakeNear(), vision=True) as (opened, _):
            answer = await opened.chat.completions.create(messages=messages)
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "private")

    run(work())


def test_a_file_of_another_kind_stays_one() -> None:
    async def kept() -> None:
        async with recorded(FakeNear(), vision=True) as (opened, _):
            with pytest.raises(
                RequestError, match=r"a file \(messages\[0\]\.content\[2\]\).*files that are not text"
            ) as raised:
                await opened.chat.completions.create(messages=about(file_part("# Boats"), PDF))
            assert raised.value.details["code"] == "vision"

    async def sent() -> None:
        far = large_far()
        async with hybrid(FakeNear(), far, policy(), vision=True) as opened:
            answer = await opened.chat.completions.create(messages=about(file_part("# Boats"), PDF))
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("far", "vision")
        (body,) = far.generated
        assert body["messages"][0]["content"][1:] == [TEXT, PDF]

    run(kept())
    run(sent())


def test_a_request_has_few_files() -> None:
    near, far = FakeNear(), FakeFar()
    with pytest.raises(RequestError, match="The messages have 17 files; send at most 16"):
        ask(near, far, policy(), messages=about(*[file_part("a")] * 17))
    assert (near.requests, far.generated) == ([], [])


RECORDING = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


class Heard:
    """A transcriber that hears how many bytes there are, and counts how often."""

    def __init__(self, model: str = "hybrid") -> None:
        self.model, self.count = model, 0

    async def transcribe(
        self,
        recording: Recording,
        request: TranscriptionRequest,
        call: Call,  # noqa: ARG002
        heard: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Transcript:
        assert recording == Recording(recording.data, "messages[0].content[1]", translate=False, max_seconds=600)
        assert request.model == self.model
        self.count += 1
        segment = Segment(0, 0.0, 1.0, f" {len(recording.data)} bytes", (), 0.0, 0.0, 1.0, 0.0)
        return Transcript("transcribe", "en", 1.0, (segment,))


def test_a_near_side_with_a_transcriber_answers_about_a_recording_which_is_heard_once() -> None:
    async def work() -> None:
        near, transcriber, far = FakeNear(), Heard(), FakeFar()
        async with (
            running(far),
            await Hybrid.create(
                near=near, far=Far(far.url, sound=True), policy=policy(), transcriber=transcriber
            ) as opened,
        ):
            answer = await opened.chat.completions.create(messages=about(RECORDING))
        assert answer.route is not None
        assert (answer.route.side, answer.route.reason, far.generated) == ("near", "prefer", [])
        (request,) = near.requests
        assert isinstance(request, ChatCompletionRequest)
        text = "[Transcript of a recording]\n4 bytes\n[End of transcript]\n"
        assert request.messages[0].model_dump(exclude_none=True)["content"][1] == {"type": "text", "text": text}
        assert transcriber.count == 1

    run(work())


def test_a_near_side_without_a_transcriber_does_not_hear() -> None:
    far = large_far()

    async def work() -> None:
        async with hybrid(FakeNear(), far, policy(), sound=True) as opened:
            answer = await opened.chat.completions.create(messages=about(RECORDING))
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("far", "sound")
        (body,) = far.generated
        assert body["messages"][0]["content"][1] == RECORDING

    run(work())


def test_a_far_server_that_reports_a_transcriber_gets_recordings() -> None:
    far = large_far()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096, "sound": True}]})
    answer = ask(FakeNear(), far, policy(), messages=about(RECORDING))
    assert answer.route is not None
    assert (answer.route.side, answer.route.reason) == ("far", "sound")


VIDEO = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}


@pytest.mark.parametrize(("sees", "told"), [(True, True), (False, False)])
def test_a_near_side_that_reads_no_videos_hands_them_over(sees: bool, told: bool) -> None:
    near, far = FakeNear(sees=sees), large_far()
    if told:
        far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096, "video": True}]})

    async def work() -> None:
        options: dict[str, Any] = {} if told else {"video": True}
        async with hybrid(near, far, policy(), **options) as opened:
            answer = await opened.chat.completions.create(messages=about(VIDEO))
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("far", "video")

    run(work())
    (body,) = far.generated
    assert body["messages"][0]["content"][1] == VIDEO
    assert near.requests == []


def test_videos_go_to_no_side_that_reads_pictures_alone() -> None:
    far = large_far()
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096, "vision": True}]})
    with pytest.raises(RequestError, match="far cannot, because it reads no videos") as caught:
        ask(FakeNear(sees=True), far, policy(), messages=about(VIDEO))
    assert caught.value.details["code"] == "video"
    assert far.generated == []


def test_a_near_side_that_reads_videos_answers_about_them() -> None:
    far = large_far()
    answer = ask(FakeNear(sees=True, watches=True), far, policy("prefer-far"), messages=about(VIDEO))
    assert answer.route is not None
    assert (answer.route.side, answer.route.reason, far.generated) == ("near", "video", [])


TRANSCRIPT = {"param": "messages[0].content[1]", "text": "4 bytes", "language": "en", "seconds": 1.0}


def test_an_answer_reports_what_near_wrote_down_in_its_first_chunk() -> None:
    async def work() -> None:
        far = FakeFar()
        async with (
            running(far),
            await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=policy(), transcriber=Heard()) as opened,
        ):
            answer = await opened.chat.completions.create(messages=about(RECORDING))
            assert [each.model_dump() for each in answer.transcripts or ()] == [TRANSCRIPT]
            chunks = [c async for c in await opened.chat.completions.create(messages=about(RECORDING), stream=True)]
            plain = await opened.chat.completions.create(messages=about(TEXT))
        assert [each.model_dump() for each in chunks[0].transcripts or ()] == [TRANSCRIPT]
        assert all(chunk.transcripts is None for chunk in chunks[1:])
        assert plain.transcripts is None

    run(work())


WRITTEN = "[Sound, transcribed on the user's device: 4 bytes]"


def test_far_without_ears_gets_what_this_machine_wrote_down_once() -> None:
    async def work() -> None:
        far, transcriber = large_far(), Heard()
        async with (
            running(far),
            await Hybrid.create(
                near=FakeNear(), far=Far(far.url), policy=policy("prefer-far"), transcriber=transcriber
            ) as opened,
        ):
            for _ in range(2):
                answer = await opened.chat.completions.create(messages=about(RECORDING))
                assert answer.route is not None
                assert (answer.route.side, answer.route.reason) == ("far", "prefer")
                assert [each.text for each in answer.route.described or ()] == [WRITTEN]
        assert transcriber.count == 1
        assert [body["messages"][0]["content"][1] for body in far.generated] == [{"type": "text", "text": WRITTEN}] * 2

    run(work())


def test_a_transcript_is_searched_although_the_recording_may_leave() -> None:
    async def work() -> None:
        far = large_far()
        rules = policy("prefer-far", private={"patterns": ["4 bytes"], "media": "far"})
        async with (
            running(far),
            await Hybrid.create(near=FakeNear(), far=Far(far.url), policy=rules, transcriber=Heard()) as opened,
        ):
            answer = await opened.chat.completions.create(messages=about(RECORDING))
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("near", "private")
            with pytest.raises(RequestError) as raised:
                await opened.chat.completions.create(messages=about(RECORDING), pin="far")
            assert raised.value.details["code"] == "private"
        assert far.generated == []

    run(work())


@pytest.mark.parametrize("hears", [False, True])
def test_an_answer_about_a_recording_changes_to_a_far_side_that_hears_alone(hears: bool) -> None:
    """Near fails in the middle."""

    async def work() -> None:
        far = FakeFar()
        # With near's tokens, far would get token ids.
        card = {**ABOUT, "context": 4096, "tokenizer_sha256": "other", "sound": hears}
        far.about = Reply(value={"api_version": 1, "models": [card]})
        near = FakeNear("near says", DeviceError("lost"), error_at=4)
        async with (
            running(far),
            await Hybrid.create(near=near, far=Far(far.url), policy=policy(), transcriber=Heard()) as opened,
        ):
            if hears:
                answer = await opened.chat.completions.create(messages=about(RECORDING))
                assert answer.route is not None
                assert (answer.route.side, answer.route.reason) == ("far", "near_failed")
            else:
                with pytest.raises(DeviceError):
                    await opened.chat.completions.create(messages=about(RECORDING))
        assert [body["messages"][0]["content"][1] for body in far.generated] == ([RECORDING] if hears else [])

    run(work())


def test_what_far_wrote_down_is_reported_and_it_gets_the_recording() -> None:
    heard_there = {**TRANSCRIPT, "text": "there"}
    first, *others = text_chunks("a", usage=FAR_USAGE)
    far = FakeFar(lambda _: Reply(chunks=[{**first, "transcripts": [heard_there]}, *others]))
    far.about = Reply(value={"api_version": 1, "models": [{**ABOUT, "context": 4096, "sound": True}]})

    async def work() -> None:
        transcriber = Heard()
        async with (
            running(far),
            await Hybrid.create(
                near=FakeNear(), far=Far(far.url), policy=policy("prefer-far"), transcriber=transcriber
            ) as opened,
        ):
            answer = await opened.chat.completions.create(messages=about(RECORDING))
        assert [each.model_dump() for each in answer.transcripts or ()] == [heard_there]
        assert transcriber.count == 0
        assert [body["messages"][0]["content"][1] for body in far.generated] == [RECORDING]

    run(work())
