"""Chats about videos in headless Chromium, which decodes VP8, VP9 and H.264: on the page and in a worker."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_eyes import page_eyes
from page_looks import fact
from playwright.sync_api import Browser, Page
from test_pictures import MAX_TOKENS, page_with, png_of
from video_families import greedy_video_answer
from video_files import GREYS, grey_video, trimmed_video, turned_video

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.images.decode_video import open_video
from nearfar.compiler.runtime.images.patches import PreparedImage
from nearfar.compiler.runtime.images.videos import VideoFrames, prepare_video
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

KINDS = {"webm": "video/webm", "vp9": "video/webm", "h264": "video/mp4"}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(page_eyes().bundle)


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    site = tmp_path_factory.mktemp("site")
    for kind in KINDS:
        (site / f"{kind}.video").write_bytes(grey_video(kind))
    with page_with(browser, bundle, site) as opened:
        yield opened


def url_of(kind: str) -> str:
    return f"data:{KINDS[kind]};base64,{base64.b64encode(grey_video(kind)).decode()}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_decodes_the_frames_at_the_wanted_indices(kind: str, page: Page) -> None:
    total, fps, greys = page.evaluate(
        """async (kind) => {
            const { openVideo } = await import("./videos.js");
            const blob = await (await fetch(`./${kind}.video`)).blob();
            const signal = new AbortController().signal;
            const video = await openVideo(blob, signal);
            const greys = [];
            const take = ({ data }) => greys.push(data.reduce((sum, each) => sum + each, 0) / data.length / 8);
            for (const indices of [[0, 1, 2], [3, 17, 29], [9], [...Array(video.total).keys()]])
                await video.read(indices, take, signal);
            return [video.total, video.fps, greys];
        }""",
        kind,
    )
    assert (total, fps) == (GREYS, 10)
    # Decoders and colours differ by a few levels of 256.
    expected = [0, 1, 2, 3, 17, 29, 9, *range(GREYS)]
    assert max(abs(found - wanted) for found, wanted in zip(greys, expected, strict=True)) < 0.5


FILES: dict[str, Callable[[], bytes]] = {
    "trimmed.video": partial(trimmed_video, 5),
    **{f"turned{turns}.video": partial(turned_video, turns) for turns in (1, 2, 3)},
}


@pytest.mark.parametrize("name", FILES)
def test_frames_are_those_that_pyav_shows(name: str, page: Page) -> None:
    """Of a file whose edit list begins later, between two key frames, and of files that are turned."""
    data = FILES[name]()
    found: Any = page.evaluate(
        """async (url) => {
            const { openVideo } = await import("./videos.js");
            const signal = new AbortController().signal;
            const { total, fps, width, height, read } = await openVideo(await (await fetch(url)).blob(), signal);
            const frames = [];
            await read([...Array(total).keys()], ({ data }) => frames.push([...data]), signal);
            return { shape: [total, fps, width, height], frames };
        }""",
        f"data:video/mp4;base64,{base64.b64encode(data).decode()}",
    )
    video = open_video(data)
    assert found["shape"] == [video.total, video.fps, video.width, video.height]
    for ours, theirs in zip(found["frames"], video.read(range(video.total)), strict=True):
        assert float(np.abs(np.array(ours) - theirs.ravel().astype(int)).mean()) < 3


def prompt_of(checkpoint: Path, video: PreparedImage) -> list[int]:
    tokenizer = Tokenizer(TokenizerFiles.at(checkpoint / "tokenizer.json"))
    return tokenizer.encode(f"user: {video.text}what?\nassistant:", False, split_special_tokens=False)


# web/test/images/videos.test.ts has what frames become, test_pictures.py answers about pictures, and the other tests
# here the frames.
@pytest.mark.exhaustive
def test_answers_about_frames_are_those_of_transformers(page: Page, bundle: Bundle) -> None:
    """The frames of a file, as Python decodes them, and the file."""
    spec = bundle.manifest.images
    assert spec is not None
    opened = open_video(grey_video("webm"))
    frames = list(opened.read(range(GREYS)))
    video = prepare_video(spec, VideoFrames.of(frames, 10.0))
    checkpoint = page_eyes().checkpoint
    prompt = prompt_of(checkpoint, video)
    urls = [f"data:image/png;base64,{base64.b64encode(png_of(each)).decode()}" for each in frames]
    found: Any = page.evaluate(
        """async ([urls, url]) => {
            const blobs = await Promise.all(urls.map(async (each) => (await fetch(each)).blob()));
            const file = { type: "video_url", video_url: { url } };
            return [await ask(engine, { type: "video", frames: [urls[0], ...blobs.slice(1)], fps: 10 }, "what?"),
                    await ask(engine, file, "what?"),
                    await ask(engine, { type: "video", video: await (await fetch(url)).blob() }, "what?")];
        }""",
        [urls, url_of("webm")],
    )
    expected = greedy_video_answer(checkpoint, prompt, video, MAX_TOKENS)
    assert [(each["prompt"], each["ids"]) for each in found[:1]] == [(prompt, expected)]
    # Chromium's colours may differ by a level, so the same file has the same answer each time.
    assert found[1]["prompt"] == prompt
    assert found[1]["ids"] == found[2]["ids"]


@pytest.mark.exhaustive
def test_a_worker_decodes_videos_itself(page: Page) -> None:
    found: Any = page.evaluate(
        """async (url) => {
            const worker = new Worker("./engine_worker.js", { type: "module" });
            const far = await connectEngine(worker, "./bundle/");
            const blob = URL.createObjectURL(await (await fetch(url)).blob());
            const part = (url) => ({ type: "video_url", video_url: { url } });
            const answers = [await ask(far, part(url), "what?"), await ask(far, part(blob), "what?"),
                             await ask(far, part("./webm.video"), "what?"), await ask(engine, part(url), "what?")];
            worker.terminate();
            return answers.map(({ ids }) => ids);
        }""",
        url_of("webm"),
    )
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.exhaustive
def test_the_chat_page_plays_videos_that_are_chosen_dropped_and_pasted(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    with PageServer(bundle.path) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector("body[data-near=ready]")
        (tmp_path / "chosen.webm").write_bytes(grey_video("webm"))
        page.set_input_files("#attach-file", tmp_path / "chosen.webm")
        page.wait_for_selector("#attachments video.picture[aria-label='chosen.webm']")
        transfer = """async ([url, name, type]) => {
            const data = new DataTransfer();
            const bytes = Uint8Array.from(atob(url.split(",")[1]), (byte) => byte.charCodeAt(0));
            data.items.add(new File([bytes], name, { type }));
            return data;
        }"""
        dropped = page.evaluate_handle(transfer, [url_of("vp9"), "dropped.webm", "video/webm"])
        page.dispatch_event("body", "drop", {"dataTransfer": dropped})
        page.wait_for_selector("#attachments video.picture[aria-label='dropped.webm']")
        page.evaluate(
            "(data) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data }))",
            page.evaluate_handle(transfer, [url_of("h264"), "pasted.mp4", "video/mp4"]),
        )
        page.wait_for_function(
            """() => [...document.querySelectorAll("#attachments video")]
                .filter((each) => each.videoWidth > 0).length === 3"""
        )
        for _ in range(2):
            page.click("#attachments .chip:last-child button")
        for field, value in (("max-tokens", 16), ("temperature", 0)):
            page.eval_on_selector(f"#{field}", "(input, value) => { input.value = value; }", str(value))
        page.fill("#prompt", "what is it?")
        page.press("#prompt", "Enter")
        for computed in (1, 0):
            page.wait_for_selector(".answer[data-state=done]")
            assert not page.is_visible(".answer .problem")
            assert fact(page, 0, "Videos") == f"1 video, {computed} of them computed now on this device"
            page.click(".regenerate")
        # The page that is loaded next shows the conversation again.
        page.reload()
        page.wait_for_function("() => document.querySelector('.question video.picture')?.videoWidth > 0")
        page.close()


def test_what_is_no_video_is_refused_by_name(page: Page) -> None:
    cut = base64.b64encode(grey_video("webm")[:-30]).decode()
    found: Any = page.evaluate(
        """async (cut) => {
            const refused = async (part) => {
                try { await ask(engine, part, "what?"); return "answered"; } catch (error) { return error.message; }
            };
            const at = (bytes) => ({ type: "video_url", video_url: { url: `data:video/mp4;base64,${bytes}` } });
            return [await refused(at(cut)), await refused(at(btoa("\\x89PNG\\r\\n\\x1a\\n"))), await refused(at("")),
                    await refused({ type: "video", frames: [], fps: 2 }), await refused({ type: "video" }),
                    await refused(at(btoa("\\0\\0\\0\\x08ftyp")))];
        }""",
        cut,
    )
    for message, expected in zip(
        found,
        (
            "is incomplete",
            "is a picture; send it as image_url",
            "is empty",
            "has no frames",
            "needs a video",
            "damaged",
        ),
        strict=True,
    ):
        assert "messages[0].content[0]" in message
        assert expected in message
