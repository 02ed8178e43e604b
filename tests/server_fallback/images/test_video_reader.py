"""Videos of requests: decoded in the process of images, as files or as frames."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from image_families import FAMILIES, spec_of, write_family
from PIL import Image
from pydantic import TypeAdapter
from video_files import grey_video
from video_oracle import moving

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.decode_video import open_video
from nearfar.compiler.runtime.images.patches import CutImage
from nearfar.compiler.runtime.images.videos import VideoFrames, cut_video
from nearfar.server_fallback.images import reader
from nearfar.server_fallback.images.options import ImageOptions
from nearfar.server_fallback.images.reader import ImageReader
from nearfar.server_fallback.schema.chat import Message
from nearfar.server_fallback.text.chat_prompt import ChatImage, read_chat


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ImageSpec:
    return spec_of(write_family(FAMILIES["smolvlm"], tmp_path_factory.mktemp("smolvlm")))


def data_url(data: bytes, kind: str = "video/webm;codecs=vp8") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def read(spec: ImageSpec, images: Sequence[ChatImage], **options: Any) -> list[CutImage]:
    async def work() -> list[CutImage]:
        opened = ImageReader(spec, ImageOptions(**options))
        try:
            return await opened.read(images, 1000, "")
        finally:
            opened.close()

    return asyncio.run(work())


def video(data: bytes, index: int = 0) -> ChatImage:
    return ChatImage(data_url(data), f"messages[{index}]", "video")


def test_a_video_is_cut_in_the_process_as_here(spec: ImageSpec) -> None:
    data = grey_video("webm")
    found, again = read(spec, [video(data), video(data)])
    ours = cut_video(spec, open_video(data))
    assert (found.key, found.text, found.features, found.kind) == (ours.key, ours.text, ours.features, "video")
    assert again is found
    # Three frames of three seconds: the first, the middle and the last one.
    assert len(found.tiles) == 3
    assert "00:00" in found.text
    assert "three frames" in found.text


def test_frames_are_a_video(spec: ImageSpec) -> None:
    frames = [moving(20, 16, index) for index in range(4)]
    urls = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        urls.append(data_url(file.getvalue(), "image/png"))
    [found] = read(spec, [ChatImage("", "messages[0]", "video", urls, 2.0)])
    assert found.key == cut_video(spec, VideoFrames.of(frames, 2.0)).key


def test_what_is_no_video_is_an_error_of_its_part(spec: ImageSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    webm = grey_video("webm")
    for data, message in (
        (webm[:-9], "the video is incomplete"),
        (b"\x89PNG\r\n", "is a picture; send it as image_url"),
    ):
        with pytest.raises(RequestError, match=rf"messages\[0\]: .*{message}") as error:
            read(spec, [video(data)])
        assert (error.value.details["param"], error.value.details["code"]) == ("messages[0]", "invalid_video")
    with pytest.raises(RequestError, match="have 2 videos; at most 1 are supported"):
        read(spec, [video(webm), video(webm, 1)], max_videos=1)
    with pytest.raises(RequestError, match="not a data: URL of a video"):
        read(spec, [ChatImage(data_url(webm, "image/png"), "messages[0]", "video")])
    with pytest.raises(RequestError, match="fetches no videos; send the video as a data: URL"):
        read(spec, [ChatImage("https://example.org/a.webm", "messages[0]", "video")])
    monkeypatch.setattr(reader, "VIDEO_SECONDS", 0.0)
    monkeypatch.setattr(reader, "find_spec", lambda name: None if name == "av" else object())
    with pytest.raises(RequestError, match=r"pip install 'nearfar\[video\]'"):
        read(spec, [video(webm)])


URL = {"type": "video_url", "video_url": {"url": "data:,"}}
FRAMES = {"type": "video", "frames": ["data:,"], "fps": 2}


@pytest.mark.parametrize("part", [URL, FRAMES])
def test_models_that_read_no_videos_refuse_them_by_name(part: Any, spec: ImageSpec, tmp_path: Path) -> None:
    messages = TypeAdapter(list[Message]).validate_python([{"role": "user", "content": [part]}])
    with pytest.raises(RequestError, match=r"messages\[0\]\.content\[0\] is a video, and this model reads texts only"):
        read_chat(messages)
    still = spec_of(write_family(FAMILIES["idefics3"], tmp_path))
    with pytest.raises(RequestError, match=r"reads texts and images only; .* that reads videos"):
        read_chat(messages, images=still)
    chat = read_chat(messages, images=spec)
    assert chat.messages[0]["content"] == [{"type": "video"}]
    assert [image.kind for image in chat.images] == ["video"]
