"""Sliding windows in headless Chromium: answers equal the reference's, although pages behind the window are given back.

In the first bundle all layers have a window. In the others, window layers have a page group of their own beside that of
a full layer; in the last one, the upper layers share the keys and values of lower ones and compute only sampled rows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import CompileTiny
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

# Longer than a page, so that a window begins in another page than its last token.
WINDOW = 20
LAYERS = ("sliding_attention", "full_attention", "sliding_attention")
PROMPTS = [[(7 * i * i + 11 * i + seed) % 250 for i in range(75 + seed)] for seed in (3, 5)]
# Each answer begins two pages.
MAX_TOKENS = 20
SCRIPT = """async ([bundle, prompts, maxTokens]) => {
    const { Engine } = await import("./nearfar.js");
    const engine = await Engine.load(bundle, { tuning: false, maxSequences: 2 });
    const answer = async (promptIds) => {
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
        return ids;
    };
    const together = await Promise.all(prompts.map(answer));
    // A second turn begins with what the first one has left of its pages.
    const before = engine.counts.computedTokens;
    const again = await answer([...prompts[0], ...together[0], 1, 2]);
    const computed = engine.counts.computedTokens - before;
    const { selfTest } = engine.info;
    engine.destroy();
    return [together, again, computed, selfTest.state];
}"""


def make_mixed(folder: Path) -> Path:
    """Write a Qwen2 checkpoint with the LAYERS, and compile it."""
    import torch
    import transformers

    torch.manual_seed(9)
    config = transformers.Qwen2Config(
        **SIZES, layer_types=list(LAYERS), use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0
    )
    model = transformers.Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + noise * 0.1 if parameter.ndim == 1 else noise / parameter.shape[1] ** 0.5)
    model.save_pretrained(folder / "checkpoint")
    write_tokenizer(folder / "checkpoint")
    with few_kernels():
        compile_model(str(folder / "checkpoint"), folder / "bundle", CompileOptions(quantization="f32", context=256))
    return folder / "bundle"


def expected_ids(bundle: Path, prompt: list[int]) -> list[int]:
    runner = ReferenceRunner(open_bundle(bundle), activation="float32")
    return list(generate(runner, prompt, MAX_TOKENS, Sampler()))


@pytest.fixture(scope="module")
def site(
    compile_light: CompileTiny,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    site = tmp_path_factory.mktemp("windows")
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "index.html").write_text("<!doctype html><title>windows</title>")
    shutil.copytree(compile_light("mistral", "f32", target="webgpu", activations=("float32",)), site / "windows")
    return site


# test_tables_in_store.py answers a second turn with a model of full layers, and of windows that share keys and values.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["windows", "groups", "shared"])
def test_answers_beyond_the_window_equal_the_reference(
    site: Path, browser: Browser, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "groups":
        shutil.copytree(make_mixed(tmp_path), site / name)
    if name == "shared":
        shutil.copytree(request.getfixturevalue("windowed_bundle"), site / name)
    first, second = (expected_ids(site / name, prompt) for prompt in PROMPTS)
    turn = [*PROMPTS[0], *first, 1, 2]
    third = expected_ids(site / name, turn)
    lighten(site / name, self_test=True)
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        together, again, computed, state = page.evaluate(SCRIPT, [f"./{name}/", PROMPTS, MAX_TOKENS])
    page.close()
    assert together == [first, second]
    assert again == third
    # All full pages before the turn are found, as the pages of its window are still cached.
    assert computed == len(turn) - (len(turn) - 3) // 16 * 16 + len(third) - 1
    assert state == "passed"
