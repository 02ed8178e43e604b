"""A vocabulary of a real model's order in headless Chromium: workgroups share the sampling of a row, which they do only
above a number of tokens that no other test's model has.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from light_bundle import few_kernels, lighten
from playwright.sync_api import Browser
from static_site import serve
from tiny_models import SIZES, write_tokenizer

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.targets.gpu_variants import MIN_SHARED_COLUMNS

PROMPT = [(7 * i * i + 11 * i) % 250 for i in range(20)]
MAX_TOKENS = 2
# With one candidate, a draw gives the most likely token, but by the kernels of draws.
SCRIPT = """async ([prompt, maxTokens]) => {
    const { Engine } = await import("./nearfar.js");
    const engine = await Engine.load("./bundle/", { tuning: false });
    const answers = [];
    for (const sampling of [{ temperature: 0 }, { temperature: 0.7, topK: 1 }]) {
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds: prompt, maxTokens, sampling })) {
            ids.push(tokenId);
        }
        answers.push(ids);
    }
    engine.destroy();
    return answers;
}"""


@pytest.fixture(scope="module")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    import torch
    import transformers

    site = tmp_path_factory.mktemp("vocabulary")
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "index.html").write_text("<!doctype html><title>vocabulary</title>")
    torch.manual_seed(3)
    sizes = {**SIZES, "vocab_size": MIN_SHARED_COLUMNS + 301, "num_hidden_layers": 1}
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)).save_pretrained(site / "checkpoint")
    write_tokenizer(site / "checkpoint")
    with few_kernels(keep=("sample",)):
        compile_model(str(site / "checkpoint"), site / "bundle", CompileOptions(quantization="f32", context=64))
    lighten(site / "bundle", self_test=True, keep=("sample",))
    return site


# Chromium's CPU adapter takes half a minute to compile the kernels.
@pytest.mark.exhaustive
def test_workgroups_share_a_row_of_a_large_vocabulary(site: Path, browser: Browser) -> None:
    bundle = open_bundle(site / "bundle")
    kernels = [row.kernels for name, rows in bundle.manifest.variants.items() if "sample" in name for row in rows]
    assert any(len(names) == 2 for names in kernels), kernels
    expected = list(generate(ReferenceRunner(bundle, activation="float32"), PROMPT, MAX_TOKENS, Sampler()))
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        found = page.evaluate(SCRIPT, [PROMPT, MAX_TOKENS])
    page.close()
    assert found == [expected, expected]
