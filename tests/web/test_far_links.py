"""A prompt that a server computes for a page, in headless Chromium with the real clock: over a fast link it is sooner,
and over one that DevTools throttles it is later.

The device's speed and the link's are measured. The server reports a hundredth of a second for each part, as one with a
GPU would, because here it shares the device's cores. The throttled link needs five times as long as the device: other
work on this machine does not change which is sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import FakeModels
from far_page import READY, executor_of, throttle, write_site
from light_bundle import lighten
from live_server import live_server
from page_model import page_bundle
from playwright.sync_api import Browser, Page
from static_site import serve
from waiting import WAIT_SECONDS

from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.far_prefill import blocks

LAYERS, CONTEXT, PAGE = 8, 2048, 16
# Of a page on the wire: rows of keys and of values, each with the codes of 32 numbers and a scale.
PAGE_BYTES = LAYERS * 2 * PAGE * 20
# Tokens that are sent at a time, so that a client sees early how fast the link is.
PART = 256
# A token for each byte, and some for the chat's template.
TEXT = "the harbour master counts the boats. " * (1900 // 37)
TOKENS = len(TEXT) // PAGE * PAGE
# Other work on the cores may delay the first parts, from which a new client learns how fast the link is.
ATTEMPTS = 4


@pytest.fixture(scope="module")
def page(browser: Browser, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("links") / "site"
    write_site(folder, page_bundle(layers=LAYERS, kv="q4", context=CONTEXT))
    lighten(folder / "bundle")
    with serve(folder) as url:
        context = browser.new_context()
        context.set_default_timeout(WAIT_SECONDS * 1000)
        try:
            page = context.new_page()
            page.goto(url)
            page.wait_for_selector(READY, state="attached")
            page.evaluate("load()")
            yield page
        finally:
            context.close()


@pytest.fixture
def far(page: Page, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(blocks, "PART_TOKENS", PART)
    clock = count()
    monkeypatch.setattr(blocks, "time", SimpleNamespace(monotonic=lambda: next(clock) / 100))
    executor: Any = executor_of(page_bundle(layers=LAYERS, kv="q4", context=CONTEXT), "deep")
    with live_server(FakeModels(loaded={"deep": executor}), ApiConfig(cors_origins=(page.url.rstrip("/"),))) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


# test_far_prefill.py has both decisions over a link of a fixed speed, and web/test/prefill what is measured.
@pytest.mark.exhaustive
def test_a_long_prompt_is_sooner_over_a_fast_link_and_later_over_a_slow_one(page: Page, far: str) -> None:
    def decided(client: str, first: str) -> dict[str, Any]:
        found: dict[str, Any] = page.evaluate("(args) => decided(...args)", [client, first + TEXT])
        return found

    for attempt in range(ATTEMPTS):
        speed = page.evaluate("nearSpeed('how fast is this device? '.repeat(2))")
        client = f"fast{attempt}"
        page.evaluate("(args) => connect(...args)", [client, far, "deep", speed])
        explored, sooner = decided(client, f"{attempt}a"), decided(client, f"{attempt}b")
        if sooner["reason"] == "sooner":
            break
    assert (explored["side"], explored["reason"], explored["error"]) == ("far", "explores", None)
    assert (sooner["side"], sooner["reason"], sooner["error"]) == ("far", "sooner", None)
    assert sooner["far_seconds"] < sooner["near_seconds"]
    near_seconds = TOKENS / speed
    # Nothing of the link is known to a new client.
    session = page.context.new_cdp_session(page)
    throttle(session, TOKENS / PAGE * PAGE_BYTES / (5 * near_seconds))
    page.evaluate("(args) => connect(...args)", ["slow", far, "deep", speed])
    left, later = decided("slow", "c"), decided("slow", "d")
    assert (left["side"], left["reason"], left["error"]) == ("near", "later", None)
    # It has seen the first parts.
    assert 0 < left["bytes"] < TOKENS / PAGE * PAGE_BYTES / 2
    assert (later["side"], later["reason"], later["bytes"]) == ("near", "later", 0)
    assert later["far_seconds"] > 2 * later["near_seconds"]
