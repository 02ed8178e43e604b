"""`farSpeaker` of the page speaks through `nearfar serve --speaker espeak`: a browser decodes what it sends."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_models import FakeModels
from live_server import live_server
from playwright.sync_api import Browser
from server_thread import serving

from nearfar.server_fallback.api.config import ApiConfig

pytest.importorskip("espeakng_loader", reason="pip install 'nearfar[espeak]'")
DIST = Path(__file__).parents[2] / "web/dist"
SPEAK = """async ([url, voice]) => {
    const { farSpeaker } = await import("/voice.js");
    const decode = AudioContext.prototype.decodeAudioData;
    let seconds = 0;
    AudioContext.prototype.decodeAudioData = async function (data) {
        const buffer = await decode.call(this, data);
        seconds = buffer.duration;
        return buffer;
    };
    try {
        const speaker = farSpeaker(url, { model: "espeak", voice });
        await speaker.prepare("The fox sleeps.", { signal: new AbortController().signal });
        return seconds;
    } catch (error) {
        return `${error.name}: ${error.message}`;
    }
}"""


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_page_decodes_what_a_server_speaks(browser: Browser) -> None:
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(DIST)))
    origin = f"http://127.0.0.1:{files.server_port}"
    with serving(files), live_server(FakeModels(), ApiConfig(speaker="espeak", cors_origins=(origin,))) as served:
        page = browser.new_page()
        try:
            page.goto(f"{origin}/LICENSES.txt")
            url = f"http://127.0.0.1:{served.port}/v1"
            assert 0.5 < page.evaluate(SPEAK, [url, "en-GB"]) < 3
            refused = page.evaluate(SPEAK, [url, "alloy"])
            assert "it answers 400" in refused
            assert "voices of espeak are languages" in refused
        finally:
            page.close()
