"""The Capacitor example in headless Chromium with a phone's viewport, with a stub of the native side. It uses neither a
phone nor a phone's web view.

`make test-all` keeps pictures in build/screenshots.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, TIMEOUT_MS, lacks
from native_app import NativeApp
from page_looks import OVERFLOW
from page_looks import picture as keep_picture
from playwright.sync_api import Browser, BrowserContext, Page, Route, ViewportSize
from static_site import serve

WEBVIEW = ROOT / "mobile" / "webview"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148"
ASK = {"messages": [{"role": "user", "content": "what is 27 + 58?"}], "temperature": 0, "stream": True}


@pytest.fixture(scope="module")
def address(chromium: str, node: str, light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    """The example's web assets from its own build, with the demo's bundle, and the file for an app in JavaScript."""
    if not (WEBVIEW / "dist/webview.js").is_file():
        lacks(f"{WEBVIEW}/dist is not built ('make mobile')")
    folder = tmp_path_factory.mktemp("app")
    shutil.copytree(light_demo, folder / "bundle")
    subprocess.run([node, WEBVIEW / "example-capacitor/build.mjs", folder / "bundle", folder / "www"], check=True)
    shutil.copy(WEBVIEW / "dist/app.js", folder / "www")
    (folder / "www/app.html").write_text("<!doctype html><title>app</title>")
    with serve(folder / "www") as url:
        yield url


def phone(browser: Browser, user_agent: str | None = None) -> BrowserContext:
    viewport: ViewportSize = {"width": 390, "height": 844}
    return browser.new_context(
        viewport=viewport, device_scale_factor=3, has_touch=True, is_mobile=True, user_agent=user_agent
    )


@pytest.fixture(scope="module")
def opened(browser: Browser, address: str) -> Iterator[NativeApp]:
    """The app's page with its model, loaded once. Its console must stay empty."""
    context = phone(browser)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    app = NativeApp(page)
    held: list[Route] = []
    has_picture = False

    def hold(route: Route) -> None:
        # A load first checks that all files exist.
        if has_picture or route.request.method == "HEAD":
            route.continue_()
        else:
            held.append(route)

    # The weights are delayed until the screenshot is taken.
    context.route("**/bundle/weights/*", hold)
    page.goto(address)
    page.wait_for_function("() => document.getElementById('progress').value > 0")
    picture(page, "loading")
    has_picture = True
    for route in held:
        route.continue_()
    page.wait_for_selector("body[data-state=ready]")
    yield app
    context.close()
    assert errors == []


@pytest.fixture
def app(opened: NativeApp) -> NativeApp:
    opened.hello()
    return opened


STOP_IN_MID_ANSWER = """() => {
    if ([...document.querySelectorAll('.text')].at(-1).textContent.length <= 40) return false
    document.querySelector('#send[aria-label=Stop]').click()
    return true
}"""


def picture(page: Page, name: str) -> None:
    assert page.evaluate(OVERFLOW) <= 0
    keep_picture(page, f"webview-{name}")


def test_a_page_sends_hello_when_it_is_loaded_and_to_each_app_that_sends_hello(app: NativeApp) -> None:
    first, answer = app.frames[0], app.wait_for_frame(type="hello", app=app.app)
    assert (first["type"], first["app"], first["problem"]) == ("hello", None, None)
    assert answer == {**first, "app": app.app}


def test_native_code_receives_the_requested_number_of_parts(app: NativeApp) -> None:
    memory = app.value(app.call("memory", args=[]))
    assert (memory["state"], memory["place"]) == ("ready", "worker")
    assert memory["totalBytes"] >= memory["weightBytes"] + memory["stateBytes"] > 0
    call = app.call("engine", "chat", "completions", "create", args=[ASK])
    app.answer(call, "stream")
    app.message({"type": "more", "id": call, "count": 3})
    app.wait_for_items(call, 3)
    app.page.wait_for_timeout(100)
    assert [message["type"] for message in app.answers(call)] == ["stream", "item", "item", "item"]
    app.message({"type": "more", "id": call, "count": 100})
    app.answer(call, "end")
    assert "".join(item["choices"][0]["delta"].get("content", "") for item in app.items(call)).startswith(
        "27 + 58 = 85"
    )
    assert app.items(call)[-1]["timings"]["time_to_first_token_ms"] > 0


def test_native_code_aborts_an_answer_and_reads_typed_errors(app: NativeApp) -> None:
    signal = {"nearfarReference": "signal", "index": 0}
    reason = {"kind": "dom", "name": "AbortError", "message": "The user left"}
    args = [{**ASK, "stream": False}, {"signal": signal}]
    abort = {"type": "abort", "signal": 0, "reason": reason}
    call = app.call("engine", "chat", "completions", "create", args=args, then=abort)
    assert app.answer(call, "value", "error")["error"] == reason
    wrong = app.call("engine", "chat", "completions", "create", args=[{**ASK, "temperature": 9}])
    error = app.answer(wrong, "stream", "error")
    if error["type"] == "stream":
        app.message({"type": "more", "id": wrong, "count": 1})
        error = app.answer(wrong, "error")
    assert (error["error"]["kind"], error["error"]["json"]["code"]) == ("nearfar", "request_error")
    assert error["error"]["json"]["details"]["param"] == "temperature"


@pytest.mark.exhaustive
def test_an_answer_waits_while_the_app_is_paused(app: NativeApp) -> None:
    app.value(app.call("pause", args=[]))
    call = app.call("engine", "chat", "completions", "create", args=[ASK])
    app.answer(call, "stream")
    app.message({"type": "more", "id": call, "count": 100})
    app.page.wait_for_timeout(300)
    # The role is sent before the first token.
    assert all(
        "content" not in item["choices"][0]["delta"] or not item["choices"][0]["delta"]["content"]
        for item in app.items(call)
    )
    assert app.value(app.call("memory", args=[]))["paused"]
    app.value(app.call("resume", args=[]))
    app.answer(call, "end")
    assert "".join(item["choices"][0]["delta"].get("content", "") for item in app.items(call)).startswith(
        "27 + 58 = 85"
    )


@pytest.mark.exhaustive
def test_an_app_in_javascript_uses_the_engine_like_a_local_one(app: NativeApp, address: str) -> None:
    other = app.page.context.new_page()
    other.goto(f"{address}app.html")
    found = other.evaluate(
        """async (ask) => { const { connectWebView, RequestError } = await import("./app.js"); const channel = new
        BroadcastChannel("nearfar"); const listen = (listener) => { channel.onmessage = ({ data }) => listener(data);
        return () => channel.close(); }; const view = await connectWebView({ send: (text) => channel.postMessage(text),
        listen }); const phases = []; const engine = await view.load("./bundle/", { store: false, onProgress: ({ phase
        }) => phases.push(phase) }); let text = ""; for await (const chunk of await engine.chat.completions.create(ask))
        text += chunk.choices[0].delta.content ?? ""; const refused = await engine.chat.completions.create({ ...ask,
        audio: {} }).catch((error) => error); const found = [view.problem, phases, text, refused instanceof
        RequestError, refused.param, await engine.countTokens("27")]; view.close(); return found; }
        """,
        ASK,
    )
    other.close()
    problem, phases, text, is_typed, param, tokens = found
    assert (problem, is_typed, param) == (None, True, "audio")
    assert (phases[0], phases[-1]) == ("manifest", "ready")
    assert text.startswith("27 + 58 = 85")
    assert tokens > 0


@pytest.mark.exhaustive
def test_low_memory_frees_the_model_and_the_next_question_loads_it_again(app: NativeApp) -> None:
    freed = app.value(app.call("lowMemory", args=[]))["freedBytes"]
    assert freed > 0
    memory = app.value(app.call("memory", args=[]))
    assert (memory["state"], memory["totalBytes"]) == ("freed", 0)
    assert app.value(app.call("engine", "countTokens", args=["27"])) > 0
    assert app.value(app.call("memory", args=[]))["totalBytes"] == freed


def test_the_page_chats_on_a_phone_in_light_and_dark(app: NativeApp) -> None:
    page = app.page
    picture(page, "welcome")
    page.tap(".example >> nth=0")
    page.wait_for_selector(".answer[data-state=done] >> nth=0")
    assert (page.text_content(".answer .text") or "").startswith("27 + 58 = 85")
    assert "tokens a second" in (page.text_content(".answer .foot") or "")
    page.tap("#prompt")
    page.fill("#prompt", "tell me a story about a fox")
    page.tap("#send")
    # Before a call from here arrived, a fast machine could have ended the answer.
    page.wait_for_function(STOP_IN_MID_ANSWER)
    page.wait_for_selector(".answer[data-state=done] >> nth=1")
    picture(page, "stopped")
    assert page.text_content(".answer >> nth=1 >> .foot") == "Stopped"
    for node in page.query_selector_all("button"):
        box = node.bounding_box()
        assert box is None or min(box["width"], box["height"]) >= 44
    page.emulate_media(color_scheme="dark")
    picture(page, "chat-dark")


def test_a_reloaded_page_sends_hello_and_refuses_messages_for_the_old_one(app: NativeApp) -> None:
    old, before = app.session, len(app.frames)
    app.page.reload()
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while len(app.frames) == before and time.monotonic() < deadline:
        app.page.wait_for_timeout(10)
    first = app.frames[before]
    assert (first["type"], first["app"]) == ("hello", None)
    assert first["session"] != old
    app.call("memory", args=[])
    refused = app.wait_for_frame(type="refused", app=app.app)
    assert (refused["session"], refused["error"]["code"]) == (first["session"], "worker_error")
    app.hello()
    assert app.value(app.call("memory", args=[]))["state"] in ("loading", "ready")


@pytest.mark.exhaustive
def test_if_workers_have_no_webgpu_the_page_runs_the_engine(app: NativeApp) -> None:
    def without_gpu(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=f"delete WorkerNavigator.prototype.gpu; {response.text()}")

    app.page.context.route("**/engine_worker.js", without_gpu)
    app.page.reload()
    app.page.wait_for_selector("body[data-state=ready]")
    app.hello()
    assert app.value(app.call("memory", args=[]))["place"] == "page"
    answer = app.value(app.call("engine", "chat", "completions", "create", args=[{**ASK, "stream": False}]))
    assert answer["choices"][0]["message"]["content"].startswith("27 + 58 = 85")


def test_a_web_view_without_webgpu_reports_its_needs_on_the_page_and_to_the_app(browser: Browser, address: str) -> None:
    context = phone(browser, user_agent=IPHONE)
    page = context.new_page()
    app = NativeApp(page)
    page.add_init_script("delete Navigator.prototype.gpu")
    page.goto(address)
    page.wait_for_selector("body[data-state=error]")
    picture(page, "no-webgpu")
    assert "iOS 26 or later" in (page.text_content("#failure") or "")
    problem = app.hello()["problem"]
    assert (problem["code"], problem["details"]["needs"]) == ("device_error", "iOS 26 or later")
    error = app.answer(app.call("load", args=["./bundle/", {"store": False}]), "value", "error")["error"]
    assert error["json"] == problem
    context.close()
