"""Tiny models generate the same greedy tokens on numpy and in headless Chromium: families whose layers differ, with
experts, and with recurrent layers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from decoder_families import TOKENS, new_family, randomize, save
from gguf import GGMLQuantizationType as Type
from gguf_files import WIDER, make_gguf
from light_bundle import few_kernels, lighten
from playwright.sync_api import Browser
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner

# With the prompt, four full pages and a token of the fifth.
MAX_TOKENS = 24
# Added to the factors of norms behind sub-layers.
MORE_BEHIND = 20
# Sharper attention, so that a token's position matters.
SETTINGS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"query_pre_attn_scalar": 4},
    # With experts on the second layer alone, answers repeat less.
    "qwen3_moe": {"num_hidden_layers": 2, "mlp_only_layers": [0]},
}
TIMEOUT_MS = 180_000
SCRIPT = """async ([bundle, promptIds, maxTokens]) => {
    const { Engine } = await import("./nearfar.js");
    const engine = await Engine.load(bundle, { tuning: false });
    const ids = [];
    for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
    const { selfTest } = engine.info;
    engine.destroy();
    return [ids, selfTest.state];
}"""


def make_talkative(family: str, folder: Path) -> None:
    """Write a checkpoint whose answers are varied.

    The logits of tied weights favour the last token, unless the layers add much to its embedding.
    """
    import torch

    model = new_family(family, **SETTINGS.get(family, {}))
    randomize(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model.config.tie_word_embeddings and name.split(".")[-2].startswith("post_"):
                parameter.add_(MORE_BEHIND)
    save(model, folder)
    # No token ends its answers.
    (folder / "tokenizer_config.json").unlink()


@pytest.fixture(scope="module")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    site = tmp_path_factory.mktemp("decoders")
    shutil.copy(PAGE.parent / "nearfar.js", site)
    (site / "index.html").write_text("<!doctype html><title>decoders</title>")
    return site


# Their windows are shorter than a page. Phi-3's context requires its long rotation.
# test_tables_in_store.py runs Gemma 4 as well.
@pytest.mark.parametrize(
    "family",
    [
        "gemma3_text",
        pytest.param("gemma4_text", marks=pytest.mark.exhaustive),
        "phi3_long",
        "qwen3_moe",
        "qwen3_5_text",
        pytest.param("lfm2", marks=pytest.mark.exhaustive),
    ],
)
def test_numpy_and_chromium_agree(family: str, site: Path, browser: Browser, tmp_path: Path) -> None:
    make_talkative(family, tmp_path)
    options = CompileOptions(quantization="f32", context=128, activations=("float32",))
    with few_kernels():
        bundle = compile_model(str(tmp_path), site / family, options)
    expected = list(generate(ReferenceRunner(bundle), TOKENS, MAX_TOKENS, Sampler()))
    assert len(expected) == MAX_TOKENS
    # An answer that repeats one token would reveal few errors.
    assert len(set(expected)) > MAX_TOKENS // 4
    lighten(bundle.path, self_test=True)
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    with serve(site) as url:
        page.goto(url)
        found, state = page.evaluate(SCRIPT, [f"./{family}/", TOKENS, MAX_TOKENS])
    page.close()
    assert (found, state) == (expected, "passed")


@pytest.mark.exhaustive
def test_numpy_and_chromium_agree_on_a_gguf_file_of_k_blocks(site: Path, browser: Browser, tmp_path: Path) -> None:
    types = {"attn_v": Type.Q6_K, "ffn_down": Type.Q5_K, "token_embd": Type.Q3_K, "": Type.Q4_K}
    path, _ = make_gguf(
        "llama", tmp_path, lambda name: next(kind for part, kind in types.items() if part in name), WIDER
    )
    with few_kernels():
        bundle = compile_model(str(path), site / "gguf", CompileOptions(context=128, activations=("float32",)))
    assert {weight.quantization for weight in bundle.manifest.weights.values() if weight.quantization} >= {
        "q6g16_i8",
        "q5g32b_i8",
        "q4g32b_i8",
    }
    expected = list(generate(ReferenceRunner(bundle), TOKENS, 16, Sampler()))
    lighten(bundle.path, self_test=True)
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    with serve(site) as url:
        page.goto(url)
        assert page.evaluate(SCRIPT, ["./gguf/", TOKENS, 16]) == [expected, "passed"]
    page.close()
