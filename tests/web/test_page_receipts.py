"""A receipt that a page's engine has signed with the key of its device, in headless Chromium, and its verification by
the command, which computes the page's answer again on another device.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_server import serve
from light_bundle import light_copy
from page_model import page_bundle
from playwright.sync_api import Browser, Page

from nearfar.compiler.browser.page_server import PAGE

REQUESTS = (
    {"messages": [{"role": "user", "content": "what is 27 + 58?"}], "temperature": 0},
    {
        "messages": [{"role": "user", "content": "tell me"}], "max_tokens": 24, "temperature": 0.8, "n": 2,
        "frequency_penalty": 0.5, "logit_bias": {"40": 2}, "stop": ["q"],
    },
)  # fmt: skip
PAGE_SCRIPT = """
import { Engine } from "./nearfar.js";
import { deviceKey, receipted } from "./receipts.js";

window.ask = async (requests) => {
    const engine = receipted(await Engine.load("./bundle/", { store: false }));
    const answers = [];
    for (const request of requests)
        answers.push(await engine.chat.completions.create({ ...request, receipt: true, return_token_ids: true }));
    return [answers, (await deviceKey()).pem];
};
document.body.dataset.state = "ready";
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("receipts")
    for name in ("nearfar.js", "receipts.js"):
        shutil.copy(PAGE.parent / name, site)
    (site / "index.html").write_text(f"<body><script type=module>{PAGE_SCRIPT}</script></body>")
    light_copy(page_bundle(), site / "bundle")
    return site


@pytest.fixture
def page(site: Path, browser: Browser, chromium: str) -> Iterator[Page]:  # noqa: ARG001
    server, context = serve(site), browser.new_context()
    context.set_default_timeout(120_000)
    try:
        page = context.new_page()
        page.goto(f"{server.url}index.html")
        page.wait_for_selector("body[data-state=ready]", state="attached")
        yield page
    finally:
        context.close()
        server.stop()


@pytest.mark.exhaustive
def test_the_command_computes_a_pages_answers_again(page: Page, site: Path, tmp_path: Path) -> None:
    answers, pem = page.evaluate("requests => ask(requests)", list(REQUESTS))
    (tmp_path / "device.pem").write_text(pem)
    for request, answer in zip(REQUESTS, answers, strict=True):
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        (tmp_path / "request.json").write_text(json.dumps(request))
        files = {"--bundle": site / "bundle", "--request": tmp_path / "request.json"}
        given = [str(part) for pair in files.items() for part in pair]
        # Playwright's event loop runs on this thread.
        command = [sys.executable, "-m", "nearfar.compiler.cli", "verify", str(tmp_path / "answer.json"), *given]
        options = ["--signed-by", str(tmp_path / "device.pem"), "--runner", "numpy", "--json"]
        run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        report = json.loads(run.stdout)
        assert report["verified"]
        [receipt] = report["receipts"]
        assert (receipt["side"], receipt["trusted"]) == ("near", True)
        computed = [choice["computed"] for choice in receipt["choices"]]
        assert computed == [len(choice["token_ids"]) for choice in answer["choices"]]
        assert min(computed) > 0
