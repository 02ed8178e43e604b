"""The demo page and the package in headless Chromium, on SwiftShader, which runs WebGPU on the CPU and has no float16."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from nearfar.compiler.browser.chromium import FLAGS
from nearfar.compiler.browser.page_server import PAGE

# Counts the calls of WebGPU from here on, and the bytes that are mapped for reading, in window.counts.
COUNT_CALLS = """() => {
    const classes = [GPUComputePassEncoder, GPUCommandEncoder, GPUQueue, GPUDevice];
    const perToken = ["dispatchWorkgroups", "beginComputePass", "submit", "writeBuffer"];
    const names = [...perToken, "createBuffer", "createBindGroup", "createComputePipelineAsync"];
    window.counts = Object.fromEntries([...names, "readBytes"].map((name) => [name, 0]));
    if (window.counted) return;
    window.counted = true;
    for (const { prototype } of classes) {
        for (const name of names.filter((name) => name in prototype)) {
            const call = prototype[name];
            prototype[name] = function (...args) { window.counts[name]++; return call.apply(this, args); };
        }
    }
    const map = GPUBuffer.prototype.getMappedRange;
    GPUBuffer.prototype.getMappedRange = function (...args) {
        const range = map.apply(this, args);
        window.counts.readBytes += range.byteLength;
        return range;
    };
}"""
# SwiftShader takes its time over pipelines, and this machine may be busy.
TIMEOUT_MS = 180_000


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def site(tiny_bundle: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """The page and four bundles: a sound one, a flipped byte in a shard, float16 activations only, and another format version."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PAGE, site, dirs_exist_ok=True)
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "example.html").write_text((ROOT / "web/README.md").read_text().split("```html\n")[1].split("```")[0])
    for name in ("bundle", "corrupt", "half", "alien"):
        shutil.copytree(tiny_bundle, site / name)
    shard = next((site / "corrupt" / "weights").iterdir())
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    halves = [entry for entry in manifest_of(site / "half")["activations"] if entry["dtype"] == "float16"]
    change_manifest(site / "half", activations=halves)
    change_manifest(site / "alien", format_version=99)
    return site


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


# Not for the session: Playwright's event loop lasts as long as the fixture, and two cannot run at once.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def test_chromium_generates_the_tokens_of_the_reference(page: Page, address: str, tiny_bundle: Path) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    open_page(page, address, "ready")
    assert generate_tokens(page, expected["prompt_token_ids"], len(expected["token_ids"])) == expected["token_ids"]


def test_a_decoded_token_costs_one_pass_one_submit_one_write_and_four_bytes_back(page: Page, address: str, tiny_bundle: Path) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    prompt = expected["prompt_token_ids"]
    open_page(page, address, "ready")
    # Everything that is made once has been made when the same answer is generated again.
    counts = []
    for new_tokens in (4, 4, 12):
        page.evaluate(COUNT_CALLS)
        assert generate_tokens(page, prompt, new_tokens) == expected["token_ids"][:new_tokens]
        counts.append(page.evaluate("() => window.counts"))
    _, few, many = counts
    layers = manifest_of(tiny_bundle)["spec"]["num_layers"]
    assert {name: (many[name] - few[name]) / 8 for name in few} == {
        "dispatchWorkgroups": 6 * layers + 4,
        "beginComputePass": 1,
        "submit": 1,
        "writeBuffer": 1,
        "readBytes": 4,
        "createBuffer": 0,
        "createBindGroup": 0,
        "createComputePipelineAsync": 0,
    }


def test_the_page_answers_offline_with_the_text_that_python_decodes(context: BrowserContext, address: str, tiny_bundle: Path) -> None:
    from nearfar.compiler.bundle import open_bundle
    from nearfar.compiler.tokenizer import Tokenizer

    page = context.new_page()
    open_page(page, address, "ready")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    context.set_offline(True)
    question = "what is 27 + 58? ünï 🦊"
    page.fill("#prompt", question)
    page.click("#send")
    page.wait_for_selector(".answer[data-state=done]")
    answer = page.locator(".answer")
    assert float(answer.get_attribute("data-ttft-ms") or "nan") > 0
    assert float(answer.get_attribute("data-tokens-per-second") or "nan") > 0
    assert not requests
    tokenizer = Tokenizer(open_bundle(tiny_bundle).tokenizer_files())
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    token_ids = generate_tokens(page, prompt, manifest_of(tiny_bundle)["context"])
    assert page.locator(".answer .text").text_content() == tokenizer.decode(token_ids)


def test_a_stopped_answer_leaves_the_page_ready_for_the_next(page: Page, address: str) -> None:
    open_page(page, address, "ready")
    page.click("#examples button >> nth=0")
    page.wait_for_selector(".answer[data-state=streaming]")
    page.click("#send")
    page.wait_for_selector(".answer[data-state=done]")
    page.click("#new-chat")
    page.click("#examples button >> nth=1")
    page.wait_for_selector(".answer[data-state=done][data-ttft-ms]")


def test_the_example_of_the_readme_runs_as_it_stands(page: Page, address: str) -> None:
    with page.expect_console_message(lambda message: message.text.startswith(("stop", "length"))):
        page.goto(f"{address}example.html")
    assert page.text_content("#answer") not in ("", "ready")


def test_a_flipped_byte_in_a_shard_is_a_bundle_error_with_both_hashes(page: Page, address: str) -> None:
    message = failure(page, f"{address}?bundle=./corrupt/", "bundle_error")
    assert message.startswith("weights/00000.bin: has SHA-256 ")
    assert "the manifest says" in message
    assert "compile the bundle again" in message


def test_a_missing_bundle_is_a_bundle_error_with_its_address(page: Page, address: str) -> None:
    assert f"{address}nowhere/manifest.json answers 404" in failure(page, f"{address}?bundle=./nowhere", "bundle_error")


def test_another_format_version_is_a_bundle_error_that_names_both(page: Page, address: str) -> None:
    assert "has format version 99" in failure(page, f"{address}?bundle=./alien/", "bundle_error")


def test_a_float16_bundle_without_shader_f16_is_a_device_error_that_names_it(page: Page, address: str) -> None:
    assert "lacks the WebGPU feature shader-f16" in failure(page, f"{address}?bundle=./half/", "device_error")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined })", "This browser has no WebGPU;"),
        ("GPU.prototype.requestAdapter = async () => null", "This browser has no WebGPU adapter;"),
    ],
)
def test_a_browser_without_webgpu_or_adapter_is_a_device_error(page: Page, address: str, script: str, says: str) -> None:
    page.add_init_script(script)
    assert failure(page, address, "device_error").startswith(says)


def open_page(page: Page, url: str, state: str) -> None:
    """Load the page and wait for the state, or fail with what it shows instead."""
    page.goto(url)
    page.wait_for_selector("body:not([data-state=loading])")
    found = page.get_attribute("body", "data-state")
    assert found == state, page.text_content("#failure-message")


def failure(page: Page, url: str, code: str) -> str:
    """The message of the page's error card, whose code must be this one."""
    open_page(page, url, "error")
    assert page.is_visible("#failure")
    assert page.get_attribute("#failure", "data-code") == code
    return page.text_content("#failure-message") or ""


def generate_tokens(page: Page, prompt_token_ids: Sequence[int], max_tokens: int) -> list[int]:
    script = """async ([prompt, maxTokens]) => {
        const ids = [];
        for await (const id of window.nearfar.engine.generateTokens(prompt, { maxTokens })) ids.push(id);
        return ids;
    }"""
    token_ids: list[int] = page.evaluate(script, [list(prompt_token_ids), max_tokens])
    return token_ids


def manifest_of(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return manifest


def change_manifest(bundle: Path, **changes: object) -> None:
    (bundle / "manifest.json").write_text(json.dumps({**manifest_of(bundle), **changes}))
