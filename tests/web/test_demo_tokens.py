"""The demo model generates the same 64 greedy tokens on numpy, in the Python runner and in headless Chromium."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from light_bundle import few_kernels, lighten
from playwright.sync_api import Page

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import MANIFEST_FILE
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Runner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

PROMPT = [{"role": "user", "content": "tell me a story about a fox"}]
TOKENS = 64
GENERATE = """async ([messages, maxTokens]) => {
    const ids = [];
    for await (const event of window.nearfar.engine.generate(messages, { maxTokens })) if (event.type === "token")
        ids.push(event.tokenId);
    return ids;
}"""


pytestmark = pytest.mark.exhaustive

# test_browser.py compares the tokens of a tiny model, targets/webgpu/test_webgpu_runner.py those of all kernels. Every
# template meets every format of weights and of keys and values in tests/targets/webgpu/kernel_cases.py. q4f32
# answers in Chromium in test_workers.py, with 4-bit keys and values in test_engine.py.
CASES = [("q4f16", "activation"), ("q4f32", "activation"), ("f32", "activation"), ("q4f16", "q8")]


@pytest.fixture(scope="module", params=CASES)
def endless_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The demo model without tokens that end an answer, so that it generates all 64 tokens; float32 activations."""
    quantization, kv = request.param
    path = tmp_path_factory.mktemp("demo") / f"{quantization}-{kv}"
    options = CompileOptions(quantization=quantization, kv=kv, activations=("float32",))
    # One bundle has all its kernels.
    is_light = (quantization, kv) != ("q4f16", "activation")
    with few_kernels() if is_light else nullcontext():
        compile_model(str(CHECKPOINT), path, options)
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    manifest["spec"]["eos_token_ids"] = []
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))
    if is_light:
        lighten(path)
    return open_bundle(path)


def tokens_of(runner: Runner, bundle: Bundle) -> list[int]:
    prompt = Tokenizer(bundle.tokenizer_files()).encode_chat(PROMPT)
    try:
        return list(generate(runner, prompt, TOKENS, Sampler()))
    finally:
        runner.close()


def test_numpy_python_runner_and_chromium_agree(endless_bundle: Bundle, page: Page, vulkan: None) -> None:  # noqa: ARG001
    from nearfar.targets.webgpu.runner import WebGPURunner

    expected = tokens_of(ReferenceRunner(endless_bundle), endless_bundle)
    assert len(expected) == TOKENS
    assert tokens_of(WebGPURunner(endless_bundle), endless_bundle) == expected
    with PageServer(endless_bundle.path) as server:
        page.goto(server.url)
        page.wait_for_selector("body[data-state=ready]", timeout=120_000)
        assert page.evaluate(GENERATE, [PROMPT, TOKENS]) == expected
