"""An app around a page, like one in Swift or Kotlin: it sends and reads the frames of mobile/webview/README.md as
strings.
"""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any
from uuid import uuid4

from playwright.sync_api import Page

# The object that WKWebView adds to a page for the message handler "nearfar". A channel sends the same strings to an app
# in JavaScript.
STUB = """
const channel = new BroadcastChannel("nearfar");
const postMessage = (text) => { window.nearfarNative(text); channel.postMessage(text); };
channel.onmessage = ({ data }) => window.nearfarReceive(data);
window.webkit = { messageHandlers: { nearfar: { postMessage } } };
"""
# This is long because the machine may be busy.
TIMEOUT_SECONDS = 180
POLL_MS = 10

Frame = dict[str, Any]


class NativeApp:
    """Attach the app before the page is opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Frame] = []
        self.app, self.session = "", ""
        self._ids = count(1)
        page.expose_function("nearfarNative", lambda text: self.frames.append(json.loads(text)))
        page.add_init_script(STUB)

    def hello(self) -> Frame:
        """Restart the app, which ends the calls of its earlier start."""
        self.app = str(uuid4())
        self.send({"nearfar": 1, "type": "hello", "app": self.app})
        frame = self.wait_for_frame(type="hello", app=self.app)
        self.session = frame["session"]
        return frame

    def call(self, *path: str, args: list[Any], then: Frame | None = None) -> int:
        """Make a call, and send the message `then` about it before the page can answer. Returns its id."""
        call = next(self._ids)
        later = [{**then, "id": call}] if then else []
        self.message({"type": "call", "id": call, "path": list(path), "args": args}, *later)
        return call

    def message(self, *messages: Frame) -> None:
        header = {"nearfar": 1, "type": "message", "app": self.app, "session": self.session}
        self.send(*({**header, "message": message} for message in messages))

    def send(self, *frames: Frame) -> None:
        """Give the page all frames in one of its tasks."""
        texts = [json.dumps(frame) for frame in frames]
        self.page.evaluate("(texts) => { for (const text of texts) window.nearfarReceive(text) }", texts)

    def value(self, call: int) -> Any:
        """Wait for the call's result. Fails on an error."""
        end = self.answer(call, "value", "error")
        assert end["type"] == "value", end
        return end.get("value")

    def answer(self, call: int, *types: str) -> Frame:
        """Wait for the first message of these types that answers a call."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            found = [message for message in self.answers(call) if message["type"] in types]
            if found:
                return found[0]
            self.page.wait_for_timeout(POLL_MS)
        raise AssertionError(f"call {call} got no {types}, but {self.answers(call)}")

    def answers(self, call: int) -> list[Frame]:
        """The messages that have answered a call so far."""
        mine = [frame["message"] for frame in self.frames if frame["type"] == "message" and frame["app"] == self.app]
        return [message for message in mine if message["id"] == call]

    def items(self, call: int) -> list[Any]:
        return [message["value"] for message in self.answers(call) if message["type"] == "item"]

    def wait_for_items(self, call: int, number: int) -> list[Any]:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(self.items(call)) < number and time.monotonic() < deadline:
            self.page.wait_for_timeout(POLL_MS)
        return self.items(call)

    def wait_for_frame(self, **fields: Any) -> Frame:
        """Wait for the first frame with these fields."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            found = [frame for frame in self.frames if fields.items() <= frame.items()]
            if found:
                return found[0]
            self.page.wait_for_timeout(POLL_MS)
        raise AssertionError(f"no frame with {fields}, but {self.frames}")
