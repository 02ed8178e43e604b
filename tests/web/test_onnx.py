"""The demo model in ONNX's form in Node and in headless Chromium without WebGPU: the same tokens as numpy, ONNX Runtime
in Python, MLX and transformers, and the choice between bundles.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, lacks
from plain_target import compile_plain
from playwright.sync_api import Browser, Page
from static_site import serve

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

TOKENS = 48
CONTEXT = 256
QUESTION = [{"role": "user", "content": "tell me a story about a cat"}]
ORT = ROOT / "web/node_modules/onnxruntime-web/dist"
ORT_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
# A page that allows only what ONNX Runtime's WebAssembly needs, in a browser without WebGPU.
HTML = """<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; script-src 'self' 'wasm-unsafe-eval'">
<body><script type="module" src="start.js"></script>"""
START = """import { Engine } from "./nearfar.js";
window.Engine = Engine;
document.body.dataset.state = "ready";
"""
WITHOUT_WEBGPU = "Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined })"
LOAD = """async ([bundles, runtime]) => {
    window.phases = [];
    const onProgress = ({ phase }) => { if (phase !== window.phases.at(-1)) window.phases.push(phase); };
    window.engine = await window.Engine.load(bundles, { onnx: runtime ? { runtime } : undefined, onProgress });
    return window.engine.info;
}"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The demo model: as ONNX folders by quantization, and as f32 for the other runners. The f32 ones have no token
    that ends an answer.
    """
    folder = tmp_path_factory.mktemp("onnx")
    export_model(
        str(CHECKPOINT), folder / "q4f16", CompileOptions(target="onnx", quantization="q4f16", context=CONTEXT)
    )
    export_model(str(CHECKPOINT), folder / "f32", CompileOptions(target="onnx", quantization="f32", context=CONTEXT))
    export_model(str(CHECKPOINT), folder / "mlx", CompileOptions(target="mlx", quantization="f32", context=CONTEXT))
    compile_plain(CHECKPOINT, folder / "numpy", "f32", CONTEXT)
    for name in ("f32", "mlx", "numpy"):
        manifest = json.loads((folder / name / "manifest.json").read_text())
        manifest["spec"]["eos_token_ids"] = []
        (folder / name / "manifest.json").write_text(json.dumps(manifest))
    return {name: folder / name for name in ("q4f16", "f32", "mlx", "numpy")}


@pytest.fixture(scope="module")
def expected() -> list[tuple[list[int], list[int]]]:
    """Prompts, one of which is longer than a chunk of a prefill, and the tokens with which transformers continues
    greedily.
    """
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    vocab_size = model.config.vocab_size
    prompts = [
        [(7 * i * i + 11 * i + 3) % vocab_size for i in range(150)],
        Tokenizer(open_checkpoint(CHECKPOINT).tokenizer).encode_chat(QUESTION),
    ]
    answers = []
    for prompt in prompts:
        with torch.no_grad():
            # Without a mask, token 0 would be taken for padding.
            given = {
                "input_ids": torch.tensor([prompt]),
                "attention_mask": torch.ones(1, len(prompt), dtype=torch.int64),
            }
            ids = model.generate(**given, do_sample=False, max_new_tokens=TOKENS, eos_token_id=-1, pad_token_id=0)
        answers.append((prompt, ids[0, len(prompt) :].tolist()))
    return answers


@pytest.fixture(scope="module")
def address(
    exported: dict[str, Path],
    tiny_bundle: Path,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    if not (ORT / ORT_FILES[0]).is_file():
        lacks(f"{ORT} is not there (npm ci in web/)")
    site = tmp_path_factory.mktemp("site")
    for file in ("nearfar.js", "onnx.js", "grammar.js"):
        shutil.copy(PAGE.parent / file, site)
    (site / "ort").mkdir()
    for file in ORT_FILES:
        shutil.copy(ORT / file, site / "ort")
    (site / "index.html").write_text(HTML)
    (site / "start.js").write_text(START)
    shutil.copytree(exported["f32"], site / "f32")
    shutil.copytree(exported["q4f16"], site / "bundle-onnx")
    # Without WebGPU, only its manifest is read.
    (site / "bundle").mkdir()
    shutil.copy(tiny_bundle / "manifest.json", site / "bundle")
    examples = dict(re.findall(r"```js (\w+)\.js\n(.*?)```", (ROOT / "web/README.md").read_text(), flags=re.DOTALL))
    (site / "either.js").write_text(examples["either"])
    (site / "either.html").write_text(HTML.replace("start.js", "either.js"))
    with serve(site) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context()
    context.add_init_script(WITHOUT_WEBGPU)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    yield page
    context.close()


def run_in_node(node: str, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "VK_ICD_FILENAMES": "/none.json"}
    found = subprocess.run(
        [node, "dist/tools/run_bundle.js", *arguments],
        cwd=ROOT / "web",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return answer


def in_python(runner: str, path: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The greedy continuation on a Python runner."""
    opened = open_runner(runner, open_any(path), Limits(tokens=64, pages=CONTEXT // open_any(path).manifest.page_size))
    try:
        return [list(generate(opened, prompt, TOKENS, Sampler())) for prompt in prompts]
    finally:
        opened.close()


def in_node(node: str, path: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    found = []
    for prompt in prompts:
        answer = run_in_node(node, str(path), "--tokens", ",".join(map(str, prompt)), "--max-tokens", str(TOKENS))
        assert (answer["target"], answer["reason"]) == ("onnx", "it is the only bundle given")
        found.append(answer["token_ids"])
    return found


def in_browser(page: Page, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    info = page.evaluate(LOAD, [["./bundle/", "./f32/"], "./ort/ort.wasm.min.mjs"])
    assert info["target"] == "onnx"
    assert "This browser has no WebGPU" in info["reason"]
    assert "WebAssembly" in info["adapter"]
    script = """async ([prompts, maxTokens]) => {
        const found = [];
        for (const promptIds of prompts) {
            const ids = [];
            for await (const { tokenId } of window.engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
            found.push(ids);
        }
        window.engine.destroy();
        return found;
    }"""
    found: list[list[int]] = page.evaluate(script, [prompts, TOKENS])
    return found


# web/test/onnx/load.test.ts loads and runs a model in Node.
@pytest.mark.parametrize(
    "where", ["numpy", "onnx", "mlx", pytest.param("node", marks=pytest.mark.exhaustive), "browser"]
)
def test_the_model_gives_the_same_answers_everywhere(
    where: str,
    exported: Mapping[str, Path],
    expected: list[tuple[list[int], list[int]]],
    request: pytest.FixtureRequest,
) -> None:
    prompts = [prompt for prompt, _ in expected]
    if where == "node":
        found = in_node(request.getfixturevalue("node"), exported["f32"], prompts)
    elif where == "browser":
        found = in_browser(request.getfixturevalue("page"), prompts)
    else:
        if where == "mlx":
            request.getfixturevalue("mlx")
        found = in_python(where, exported["f32" if where == "onnx" else where], prompts)
    assert found == [tokens for _, tokens in expected]


def test_node_without_a_gpu_uses_the_second_bundle_and_states_why(
    node: str, exported: dict[str, Path], tiny_bundle: Path
) -> None:
    answer = run_in_node(node, str(tiny_bundle), str(exported["q4f16"]), "--tokens", "1,2,3", "--max-tokens", "4")
    assert answer["target"] == "onnx"
    assert answer["reason"].startswith("no bundle for WebGPU runs here; This browser has no WebGPU adapter")


# The float32 model answers in a browser above; web/test/onnx has chats and sessions, targets/onnx models of 4 bits.
@pytest.mark.exhaustive
def test_the_4_bit_model_answers_chats_and_keeps_sessions_in_a_browser(page: Page) -> None:
    page.evaluate(LOAD, ["./bundle-onnx/", "./ort/ort.wasm.min.mjs"])
    script = """async () => {
        const { engine } = window;
        const messages = [{ role: "user", content: "what is 27 + 58?" }];
        const answer = await engine.chat.completions.create({ messages, temperature: 0, logprobs: true,
            top_logprobs: 2 });
        const session = engine.createSession();
        const say = async (session, text) => {
            let answer = "", timings;
            for await (const event of session.generate(text)) { answer += event.text; timings = event.timings; }
            return [answer, timings.cachedTokens];
        };
        await say(session, messages[0].content);
        await session.save("sums");
        const restored = engine.createSession();
        await restored.restore("sums");
        const fork = session.clone();
        const seconds = await Promise.all([session, restored, fork].map((each) => say(each, "what is 30 + 12?")));
        const { content } = answer.choices[0].logprobs;
        const logprobs = content.map(({ logprob, top_logprobs }) => [logprob, top_logprobs[0].logprob]);
        return { text: answer.choices[0].message.content, logprobs, seconds };
    }"""
    found = page.evaluate(script)
    assert found["text"] == "27 + 58 = 85"
    assert all(logprob <= 0 and logprob == best for logprob, best in found["logprobs"])
    assert [text for text, _ in found["seconds"]] == ["30 + 12 = 42"] * 3
    assert all(cached > 10 for _, cached in found["seconds"])


def test_a_second_load_comes_from_the_store(page: Page) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate(LOAD, ["./bundle-onnx/", "./ort/ort.wasm.min.mjs"])
    assert [url.rsplit("/", 1)[-1] for url in requests if "/bundle-onnx/" in url] == ["manifest.json"]
    assert page.evaluate("() => window.phases") == ["manifest", "upload", "ready"]


def test_if_no_bundle_runs_the_error_states_the_reason_for_each(page: Page) -> None:
    script = """async () => window.Engine.load(["./bundle/", "./bundle-onnx/"])
        .catch((error) => [error.code, error.message])"""
    code, message = page.evaluate(script)
    assert code == "device_error"
    assert message.startswith("None of the 2 bundles runs here: This browser has no WebGPU")
    assert "no ONNX Runtime was given" in message


@pytest.mark.exhaustive
def test_the_example_of_the_readme_runs_as_it_stands(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.add_init_script(WITHOUT_WEBGPU)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    with page.expect_console_message(lambda message: message.text.startswith("answer:"), timeout=60_000):
        page.goto(f"{address}either.html")
    assert messages[0].startswith("onnx because no bundle for WebGPU runs here; This browser has no WebGPU")
    assert messages[-1] == "answer: 27 + 58 = 85"
    page.close()
