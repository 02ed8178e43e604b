"""Gemma 4 in headless Chromium, with the table of its second embedding in the browser's store: the tokens equal the
reference's beyond its windows, pages of both groups are found again, and the table is not on the device.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from decoder_families import TOKENS, make_family
from light_bundle import few_kernels, lighten
from playwright.sync_api import Browser
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner

MAX_TOKENS = 6
# Two prompts at once and one more that begins with the first answer, from pages that the prefix cache has kept.
SCRIPT = """async ([bundle, prompts, maxTokens, loses]) => {
    const { Engine, cache } = await import("./nearfar.js");
    const engine = await Engine.load(bundle, { tuning: false, maxSequences: 2, selfTest: "never" });
    const answer = async (promptIds) => {
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
        return ids;
    };
    const together = await Promise.all(prompts.map(answer));
    const before = engine.counts.computedTokens;
    const again = await answer([...prompts[0], ...together[0]]);
    const computed = engine.counts.computedTokens - before;
    const { weightBytes } = engine.info;
    const stored = (await cache.list()).length;
    // The files of the table are gone, so the engine loads the bundle again.
    if (loses) await cache.clear();
    const afterLoss = loses ? await answer(prompts[1]) : null;
    const { recoveries } = engine.counts;
    engine.destroy();
    return { together, again, computed, weightBytes, stored, afterLoss, recoveries };
}"""


@pytest.fixture(scope="module")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    site = tmp_path_factory.mktemp("tables")
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "index.html").write_text("<!doctype html><title>tables</title>")
    # No layer reads another one's keys and values, which is tested on other devices.
    layers = {
        "num_hidden_layers": 2,
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    make_family("gemma4_text", site / "checkpoint", **layers)
    with few_kernels():
        compile_model(
            str(site / "checkpoint"),
            site / "bundle",
            CompileOptions(quantization="q4f32", activations=("float32",), context=128),
        )
    return site


# web/test/runtime/host_tables.test.ts and web/test/engine have a table that is lost.
@pytest.mark.exhaustive
@pytest.mark.parametrize("loses", [False, True])
def test_a_model_reads_the_rows_of_its_table_from_the_store(loses: bool, site: Path, browser: Browser) -> None:
    bundle = open_bundle(site / "bundle")
    assert bundle.manifest.host_weights
    lighten(site / "bundle")
    runner = ReferenceRunner(bundle, activation="float32")

    def answer(prompt: list[int]) -> list[int]:
        return list(generate(runner, prompt, MAX_TOKENS, Sampler()))

    # More tokens than a step computes of one prompt at once.
    prompts = [[*TOKENS, *TOKENS[::-1]], TOKENS[5:]]
    expected = [answer(prompt) for prompt in prompts]
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        found = page.evaluate(SCRIPT, ["./bundle/", prompts, MAX_TOKENS, loses])
    page.close()
    assert found["together"] == expected
    turn = [*prompts[0], *expected[0]]
    assert found["again"] == answer(turn)
    # All full pages before the turn are found, as the pages of its windows are still cached.
    assert found["computed"] == len(turn) - (len(turn) - 1) // 16 * 16 + MAX_TOKENS - 1
    assert found["afterLoss"] == (expected[1] if loses else None)
    assert found["recoveries"] == int(loses)
    assert found["stored"] == 1
    on_device = sum(plane.size for weight in bundle.manifest.weights.values() for plane in weight.planes)
    # Every plane is padded to 16 bytes.
    assert on_device <= found["weightBytes"] < on_device + 16 * 4 * len(bundle.manifest.weights)
