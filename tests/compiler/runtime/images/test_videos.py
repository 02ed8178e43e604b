"""Preparing and decoding videos, against what transformers' processors make of them (`tests/video_oracle.py`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from image_families import FAMILIES, spec_of, write_family
from image_files import RECORDED as PICTURES
from image_oracle import sha256
from video_files import GREYS, grey_video, still_video, trimmed_video
from video_oracle import VECTORS, video_of

from nearfar.compiler.runtime.errors import RequestError, ToolError
from nearfar.compiler.runtime.images.decode_video import open_video
from nearfar.compiler.runtime.images.videos import VideoFrames, prepare_video
from nearfar.compiler.shared.script import SharedScript

RECORDED: dict[str, Any] = json.loads(VECTORS.read_text())
CASES = [(name, case) for name, each in RECORDED.items() for case in each["cases"]]


@pytest.mark.parametrize("name", RECORDED)
def test_a_folder_says_how_its_videos_are_read(name: str, tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path))
    assert json.loads(json.dumps(asdict(spec))) == RECORDED[name]["spec"]


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda each: each if isinstance(each, str) else each["key"][:6])
def test_frames_and_text_are_those_of_the_models_own_processor(name: str, case: Any, tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES[name], tmp_path))
    prepared = prepare_video(spec, video_of(*case["video"]))
    assert prepared.text.replace(spec.prompt.placeholder, "*") == case["text"]
    assert list(prepared.features) == case["features"]
    for place, value in case["samples"]:
        assert float(prepared.patches.flat[place]) == value
    assert sha256(prepared.patches) == case["patches"]
    assert sha256(prepared.changes) == case["changes"]
    assert prepared.key == case["key"]


@pytest.mark.parametrize("name", RECORDED)
def test_the_frames_of_any_video_are_those_that_transformers_chooses(name: str) -> None:
    spec, script = RECORDED[name]["spec"], SharedScript.of_thread()
    for width, height, total, fps, count, indices, _, features in RECORDED[name]["layouts"]:
        shape = {"total": total, "fps": fps, "width": width, "height": height}
        try:
            layout = script.ask("videoLayout", spec, shape)
        except RequestError:
            layout = {"indices": [], "features": 0}
        found = (len(layout["indices"]), sum(layout["indices"]), layout["features"])
        assert found == (count, indices, features), shape


LIMITS = [
    ({"total": 0}, "has no frames"),
    ({"total": 36_000, "fps": 10.0}, "is 3600 s long; at most 600 s are read"),
    ({"width": 8192, "height": 4320}, "has 8192 x 4320 pixels"),
    ({"fps": 1000.0}, "has 1000 frames a second"),
]


@pytest.mark.parametrize(("changes", "message"), LIMITS)
def test_videos_beyond_the_bounds_are_refused(changes: dict[str, Any], message: str) -> None:
    shape = {"total": 30, "fps": 10.0, "width": 64, "height": 48, **changes}
    with pytest.raises(RequestError, match=message):
        SharedScript.of_thread().ask("videoLayout", RECORDED["smolvlm"]["spec"], shape)


def greys_of(frames: Sequence[npt.NDArray[np.uint8]]) -> list[int]:
    """The level of each frame of `grey_video`."""
    return [round(float(frame.mean()) / 8) for frame in frames]


@pytest.mark.parametrize("kind", ["webm", "vp9", "mp4"])
def test_frames_are_decoded_by_their_indices(kind: str) -> None:
    video = open_video(grey_video(kind))
    assert (video.total, video.fps, video.width, video.height) == (GREYS, 10.0, 48, 32)
    # Backwards, forwards over several key frames, and the last one.
    for indices in ([0, 1, 2], [3, 17, 29], [9], list(range(GREYS))):
        assert greys_of(list(video.read(indices))) == indices


def test_frames_before_the_first_edit_are_not_shown() -> None:
    video = open_video(trimmed_video(5))
    assert (video.total, video.fps) == (GREYS - 5, 10.0)
    assert greys_of(list(video.read([0, 3, 24]))) == [5, 8, 29]


def test_what_is_no_video_is_refused_by_name() -> None:
    import base64

    png = base64.b64decode(json.loads(PICTURES.read_text())["png"]["data"])
    webm, mp4 = grey_video("webm"), grey_video("mp4")
    for data, message in (
        (b"", "is empty"),
        (png, "is a picture; send it as image_url"),
        (b"ID3" + bytes(100), "is a recording"),
        (b"<html>", "is a text"),
        (bytes(100), "unknown format"),
        (webm[:-20], "is incomplete"),
        (mp4[: len(mp4) // 2], "is damaged or incomplete"),
        (still_video("sound"), "has sound alone"),
        (still_video("sizes"), "the size of the frames changes from 48 x 32 to 32 x 48"),
        (bytes(33 << 20), "at most 33554432 are read"),
    ):
        with pytest.raises(RequestError, match=message):
            list(open_video(data).read(range(2)))


def test_frames_without_a_file_are_a_video(tmp_path: Path) -> None:
    spec = spec_of(write_family(FAMILIES["smolvlm"], tmp_path))
    frames = list(open_video(grey_video("vp9")).read(range(GREYS)))
    whole = prepare_video(spec, open_video(grey_video("vp9")))
    assert prepare_video(spec, VideoFrames.of(frames, 10.0)).key == whole.key
    with pytest.raises(RequestError, match="the size of the frames changes"):
        VideoFrames.of([frames[0], frames[1][:20]], 10.0)


def test_pyav_is_named_if_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ToolError, match=r"nearfar\[video\]"):
        open_video(b"\x1a\x45\xdf\xa3")
