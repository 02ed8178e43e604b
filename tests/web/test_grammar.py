"""Structured output in a page with a strict Content-Security-Policy: it needs wasm, but only after the first answer
with a grammar starts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from conftest import ROOT
from playwright.sync_api import Browser
from static_site import serve

SCRIPT = """
import { Grammars } from "./nearfar.js";
const loaded = () => performance.getEntriesByType("resource").some(({ name }) => name.endsWith("grammar.js"));
const say = (values) => Object.assign(document.body.dataset, values);
const tokenizer = await (await fetch("./tokenizer.json")).text();
const grammars = new Grammars(tokenizer, { vocab_size: 1030, eos_token_ids: [3] });
say({ before: loaded() });
try {
  const constraint = await grammars.constraint({ kind: "json_object" }, 20);
  say({ words: constraint.mask().length, after: loaded() });
} catch (error) {
  say({ code: error.code, message: error.message });
}
say({ state: "done" });
"""
HTML = """<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; connect-src 'self'; script-src {sources}" />
<body><script type="module" src="./script.js"></script></body>"""
PAGES = {"wasm": "'self' 'wasm-unsafe-eval'", "strict": "'self'"}
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def url(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    site = tmp_path_factory.mktemp("grammar")
    for name in ("nearfar.js", "grammar.js"):
        shutil.copy(ROOT / "web/dist" / name, site)
    shutil.copy(ROOT / "compiler/demo/nearfar-demo/tokenizer.json", site)
    (site / "script.js").write_text(SCRIPT)
    for page, sources in PAGES.items():
        (site / f"{page}.html").write_text(HTML.format(sources=sources))
    with serve(site) as url:
        yield url


def result(browser: Browser, address: str) -> dict[str, str]:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-state=done]", state="attached", timeout=TIMEOUT_MS)
    data = page.evaluate("() => JSON.stringify(document.body.dataset)")
    page.close()
    found: dict[str, str] = json.loads(data)
    return found


def test_the_grammar_compiler_needs_no_eval_and_loads_on_first_use(browser: Browser, url: str) -> None:
    assert result(browser, url + "wasm.html") == {"before": "false", "after": "true", "words": "33", "state": "done"}


def test_without_wasm_the_error_names_what_the_policy_lacks(browser: Browser, url: str) -> None:
    found = result(browser, url + "strict.html")
    assert found["code"] == "device_error"
    assert "add 'wasm-unsafe-eval' to its script-src" in found["message"]
