"""Snippets written after WebLLM's documentation in headless Chromium, as an application has them but for the name in
their imports: snippets that need a browser's workers and storage, and snippets that need a model that can answer. The
others run in web/test/webllm.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from playwright.sync_api import Browser, Page
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE

WEB = ROOT / "web"
SNIPPETS = WEB / "test/webllm/snippets"
MODELS = "https://models.example/"
START = """window.run = async (name) => (await import(`./${name}.js`)).main();
document.body.dataset.state = "ready";
"""
SUM = "27 + 58 = 85"


@pytest.fixture(scope="module")
def page(browser: Browser, node: str, light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:  # noqa: ARG001
    """The package, the snippets as JavaScript that import it by its address, and the demo's bundle."""
    site = tmp_path_factory.mktemp("webllm")
    for name in ("webllm.js", "grammar.js"):
        shutil.copy(PAGE.parent / name, site)
    esbuild = WEB / "node_modules/esbuild/bin/esbuild"
    subprocess.run([esbuild, *SNIPPETS.glob("*.ts"), f"--outdir={site}", "--log-level=error"], check=True)
    for snippet in SNIPPETS.glob("*.ts"):
        script = (site / snippet.name).with_suffix(".js")
        script.write_text(script.read_text().replace('"@nearfar/web/webllm"', '"./webllm.js"').replace(MODELS, "./"))
    shutil.copytree(light_demo, site / "demo")
    (site / "index.html").write_text(
        '<!doctype html><title>snippets</title><body><script type="module" src="start.js"></script>'
    )
    (site / "start.js").write_text(START)
    with serve(site) as url:
        page = browser.new_page()
        page.goto(url)
        page.wait_for_selector("body[data-state=ready]", state="attached")
        yield page
        page.close()


def run(page: Page, snippet: str) -> Any:
    return page.evaluate("(name) => window.run(name)", snippet)


# web/test/webllm/worker.test.ts has engines in workers, snippets.test.ts beside it WebLLM's programs on Dawn in Node.
@pytest.mark.exhaustive
def test_an_engine_in_a_web_worker(page: Page) -> None:
    found = run(page, "web_worker_main")
    assert found.pop("refused").startswith("Model 'nobody' is not loaded")
    assert found == {"content": SUM, "streamed": SUM, "message": SUM, "progress": 1}


@pytest.mark.exhaustive
def test_a_logit_processor_in_a_worker_gets_and_changes_the_model_s_logits(page: Page) -> None:
    unchanged, repeated = run(page, "logit_processor_worker_main")
    assert unchanged == SUM
    # One token, 16 times.
    assert repeated
    assert repeated == repeated[: len(repeated) // 16] * 16


@pytest.mark.exhaustive
def test_an_engine_in_a_service_worker_stays_loaded_for_later_pages(page: Page) -> None:
    assert run(page, "service_worker_main") == {
        "contents": [SUM, SUM],
        "last": "Already loaded demo-q4f32_1-MLC",
        "missed": 0,
    }


@pytest.mark.exhaustive
def test_an_answer_follows_a_json_schema_and_a_grammar(page: Page) -> None:
    found = run(page, "json_schema")
    assert sorted(found["object"]) == ["is_accepted", "size"]
    assert isinstance(found["object"]["is_accepted"], bool)
    assert found["object"]["size"] in range(10)
    assert found["word"] in ("yes", "no")
    assert isinstance(run(page, "json_mode"), dict)


# test_chat_page.py lists and deletes stored models, and web/test/store has the store.
@pytest.mark.exhaustive
def test_stored_models_are_found_and_deleted(page: Page) -> None:
    assert run(page, "cache_usage") == {"cached": True, "stillCached": True, "afterDeletion": False}
