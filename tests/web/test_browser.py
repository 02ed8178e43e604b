"""The demo page and the package in headless Chromium, on SwiftShader, which runs WebGPU on the CPU and has no
float16.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_pages import hold_next
from conftest import ROOT
from light_bundle import lighten
from page_model import page_bundle
from playwright.sync_api import Browser, BrowserContext, Page
from static_site import serve
from tiny_models import VOCAB_SIZE

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK, Settings
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits

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
# Opens a runner for two sequences with only the runtime, and builds batches with new tokens of one sequence, the last
# of which may be sampled.
OPEN_RUNNER = """async () => {
    const runtime = await import("./runtime.js");
    const bundle = await runtime.openBundle(runtime.httpSource("./decode/"), new AbortController().signal);
    const pool = { maxSequences: 2 };
    const device = await runtime.openDevice(bundle.manifest, {}, (activation) =>
        runtime.largestBuffer(bundle.manifest, activation, pool));
    window.runner = await runtime.Runner.create(bundle, device, pool);
    window.batch = (tokens, start, pages, sample) => ({
        token_ids: tokens,
        positions: tokens.map((_, i) => start + i),
        slots: tokens.map((_, i) => pages[Math.floor((start + i) / 16)] * 16 + ((start + i) % 16)),
        seq_starts: [0, tokens.length],
        page_indptr: [0, Math.ceil((start + tokens.length) / 16)],
        page_ids: pages.slice(0, Math.ceil((start + tokens.length) / 16)),
        sample_rows: sample ? [tokens.length - 1] : [],
        sample_slots: sample ? [sample.slot, sample.flags ?? 0] : [],
        sample_settings: sample ? [...runtime.settingsRow(sample)] : [],
    });
    // The prompt, and after it this many tokens, all on their way at once: each takes the token before it on the
    // device.
    window.answer = (prompt, pages, sample, count, wanted) => {
        window.runner.submit(window.batch(prompt.slice(0, 64), 0, pages, null));
        const steps = [window.runner.submit(window.batch(prompt.slice(64), 64, pages, sample(0)), wanted)];
        for (let i = 1; i < count; i++) {
            steps.push(window.runner.submit(window.batch([-1 - sample(i).slot], prompt.length + i - 1, pages,
                sample(i)), wanted));
        }
        return Promise.all(steps);
    };
}"""
# Workgroups read memory that earlier ones filled with sevens. Returns the number of elements that were not zero at the
# start.
READ_WORKGROUP_MEMORY = """async () => {
    const device = await (await navigator.gpu.requestAdapter()).requestDevice();
    const code = `
        var<workgroup> memory: array<u32, 4096>;
        @group(0) @binding(0) var<storage, read_write> found: atomic<u32>;
        @compute @workgroup_size(64) fn main(@builtin(local_invocation_id) thread: vec3<u32>) {
            for (var i = thread.x; i < 4096u; i += 64u) {
                if (memory[i] != 0u) { atomicAdd(&found, 1u); }
                memory[i] = 7u;
            }
        }`;
    const pipeline = device.createComputePipeline({ layout: "auto", compute: { module: device.createShaderModule({
        code }) } });
    const found = device.createBuffer({ size: 4, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC });
    const read = device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const entries = [{ binding: 0, resource: { buffer: found } }];
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(256);
    pass.end();
    encoder.copyBufferToBuffer(found, 0, read, 0, 4);
    device.queue.submit([encoder.finish()]);
    await read.mapAsync(GPUMapMode.READ);
    return new Uint32Array(read.getMappedRange())[0];
}"""
# The machine may be busy.


@pytest.fixture(scope="session")
def site(tiny_bundle: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """The page and bundles: one that loads fast, the same with a flipped byte in a shard and of another version; one
    with few kernels, but all for attention; with float16 only. test_demo_tokens.py, an exhaustive test, runs
    a bundle with all its kernels.
    """
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(PAGE, site, dirs_exist_ok=True)
    for script in ("nearfar.js", "runtime.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "empty.html").write_text("<!doctype html>")
    (site / "example.html").write_text((ROOT / "web/README.md").read_text().split("```html\n")[1].split("```")[0])
    for name in ("bundle", "corrupt", "alien"):
        shutil.copytree(page_bundle(), site / name)
        lighten(site / name)
    for name in ("decode", "half"):
        shutil.copytree(tiny_bundle, site / name)
    # The number of dispatches per decoded token is the same as with all kernels.
    lighten(site / "decode", keep=("attention",))
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
    with serve(site) as url:
        yield url


@pytest.fixture(scope="module")
def ready_page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page()
    open_page(page, f"{address}?bundle=./decode/", "ready")
    yield page
    page.close()


def test_chromium_generates_the_tokens_of_the_reference(ready_page: Page, tiny_bundle: Path) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    assert (
        generate_tokens(ready_page, expected["prompt_token_ids"], len(expected["token_ids"])) == expected["token_ids"]
    )


def test_a_decoded_token_costs_one_pass_one_submit_one_write_and_four_bytes_back(
    ready_page: Page, tiny_bundle: Path
) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    prompt = expected["prompt_token_ids"]
    # All caches are filled when the same answer is generated again.
    counts = []
    for new_tokens in (4, 4, 12):
        ready_page.evaluate(COUNT_CALLS)
        assert generate_tokens(ready_page, prompt, new_tokens) == expected["token_ids"][:new_tokens]
        counts.append(ready_page.evaluate("() => window.counts"))
    _, few, many = counts
    layers = manifest_of(tiny_bundle)["spec"]["num_layers"]
    assert {name: (many[name] - few[name]) / 8 for name in few} == {
        "dispatchWorkgroups": 5 * layers + 4,
        "beginComputePass": 1,
        "submit": 1,
        "writeBuffer": 1,
        "readBytes": 4,
        "createBuffer": 0,
        "createBindGroup": 0,
        "createComputePipelineAsync": 0,
    }


@pytest.fixture(scope="module")
def runner_page(browser: Browser, address: str) -> Iterator[Page]:
    """A page with only a runner and the scripts above."""
    page = browser.new_page()
    page.goto(f"{address}empty.html")
    page.evaluate(OPEN_RUNNER)
    yield page
    page.close()


def test_workgroup_memory_starts_as_zeros_as_webgpu_promises(runner_page: Page) -> None:
    """Our flags for SwiftShader determine how memory is zeroed."""
    assert runner_page.evaluate(READ_WORKGROUP_MEMORY) == 0


@pytest.mark.parametrize(
    ("wanted", "read_bytes", "dispatches"),
    [
        pytest.param({}, 4, 0, marks=pytest.mark.exhaustive),
        pytest.param({"logprobs": True}, 8, 0, marks=pytest.mark.exhaustive),
        ({"logprobs": True, "alternatives": True}, 8 + 20 * 8, 1),
    ],
)
def test_steps_in_flight_feed_each_other_at_the_cost_of_one(
    wanted: dict[str, bool], read_bytes: int, dispatches: int, runner_page: Page, tiny_bundle: Path
) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    script = """async ([prompt, wanted, count]) => {
        const pages = Array.from({ length: 16 }, (_, i) => i);
        const steps = await window.answer(prompt, pages, () => ({ slot: 1, temperature: 0 }), count, wanted);
        return steps.map(({ tokenIds }) => tokenIds[0]);
    }"""
    counts = []
    for new_tokens in (12, 4, 12):
        runner_page.evaluate(COUNT_CALLS)
        found = runner_page.evaluate(script, [expected["prompt_token_ids"], wanted, new_tokens])
        assert found == expected["token_ids"][:new_tokens]
        counts.append(runner_page.evaluate("() => window.counts"))
    _, few, many = counts
    layers = manifest_of(tiny_bundle)["spec"]["num_layers"]
    assert {name: (many[name] - few[name]) / 8 for name in few} == {
        "dispatchWorkgroups": 5 * layers + 4 + dispatches,
        "beginComputePass": 1,
        "submit": 1,
        "writeBuffer": 1,
        "readBytes": read_bytes,
        "createBuffer": 0,
        "createBindGroup": 0,
        "createComputePipelineAsync": 0,
    }


def test_all_sampling_options_give_the_tokens_of_the_reference(runner_page: Page, tiny_bundle: Path) -> None:
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.reference import ReferenceRunner

    prompt = json.loads((tiny_bundle / "expected.json").read_text())["prompt_token_ids"]
    rng = np.random.default_rng(5)
    counts = np.zeros(VOCAB_SIZE, np.int32)
    counts[prompt] = IN_PROMPT
    bias = rng.normal(size=VOCAB_SIZE).astype(np.float32)
    mask = rng.integers(-(2**31), 2**31, -(-VOCAB_SIZE // 32)).astype(np.int32)
    settings = [Settings(1.5, 60, 0.95, 0.02, draw, 1.3, 0.6, 0.4) for draw in rng.random(10).tolist()]
    reference = ReferenceRunner(open_bundle(tiny_bundle), limits=Limits(sequences=2), activation="float32")
    for name, values in (("token_counts", counts), ("logit_bias", bias), ("token_mask", mask)):
        reference.write_state(name, 1, values)
    chunk = Chunk(prompt, 0, range(16), [len(prompt) - 1], settings[0], slot=1, flags=COUNTS | BIAS | MASK)
    outputs = [reference.forward(make_batch([chunk], 16, alternatives=True))]
    for i, each in enumerate(settings[1:]):
        chunk = replace(chunk, token_ids=[-2], start=len(prompt) + i, sample=[0], settings=each)
        outputs.append(reference.forward(make_batch([chunk], 16, alternatives=True)))

    script = """async ([prompt, settings, counts, bias, mask]) => {
        const { runner } = window;
        runner.setTokenCounts(1, Int32Array.from(counts));
        runner.setLogitBias(1, Float32Array.from(bias));
        runner.setTokenMask(1, Int32Array.from(mask));
        const names = ["temperature", "topK", "topP", "minP", "draw", "repetitionPenalty", "frequencyPenalty",
            "presencePenalty"];
        const sample = (i) => ({ slot: 1, flags: 7, ...Object.fromEntries(names.map((name, j) => [name,
            settings[i][j]])) });
        const pages = Array.from({ length: 16 }, (_, i) => 15 - i);
        const steps = await window.answer(prompt, pages, sample, settings.length, { logprobs: true,
            alternatives: true });
        const plain = ({ ids, logprobs }) => [[...ids], [...logprobs]];
        return steps.map(({ tokenIds, logprobs, alternatives }) => [tokenIds[0], logprobs[0], ...plain(alternatives)]);
    }"""
    found = runner_page.evaluate(script, [prompt, settings, counts.tolist(), bias.tolist(), mask.tolist()])
    tokens = [output.next_token_ids[0] for output in outputs]
    assert [step[0] for step in found] == tokens
    assert len(set(tokens)) > 5
    assert all(mask[token // 32] >> (token % 32) & 1 for token in tokens)
    for step, output in zip(found, outputs, strict=True):
        assert step[2] == output.top_token_ids[0].tolist()
        np.testing.assert_allclose([step[1], *step[3]], [output.token_logprobs[0], *output.top_logprobs[0]], atol=1e-3)


def test_an_answer_goes_on_from_copied_pages_and_from_pages_that_were_saved(
    runner_page: Page, tiny_bundle: Path
) -> None:
    expected = json.loads((tiny_bundle / "expected.json").read_text())
    script = """async ([prompt]) => {
        const { runner } = window;
        const sample = { slot: 0, temperature: 0 };
        const first = await runner.submit(window.batch(prompt.slice(0, 64), 0, [0, 1, 2, 3, 4, 5], null))
            .then(() => runner.submit(window.batch(prompt.slice(64), 64, [0, 1, 2, 3, 4, 5], sample)));
        const goOn = async (pages) => {
            const tokens = [first.tokenIds[0]];
            for (let i = 0; i < 3; i++) tokens.push((await runner.submit(window.batch([tokens[i]], 75 + i, pages,
                sample))).tokenIds[0]);
            return tokens;
        };
        runner.copyPages([[[0, 6], [1, 7], [2, 8], [3, 9], [4, 10]]]);
        const saved = await runner.readPages([[0, 1, 2, 3, 4]]);
        runner.writePages([[0, 1, 2, 3, 4]], new Uint8Array(saved.length));
        const copied = await goOn([6, 7, 8, 9, 10]);
        const cleared = await goOn([0, 1, 2, 3, 4]);
        runner.writePages([[15, 14, 13, 12, 11]], saved);
        return [copied, cleared, await goOn([15, 14, 13, 12, 11])];
    }"""
    copied, cleared, restored = runner_page.evaluate(script, [expected["prompt_token_ids"]])
    assert copied == restored == expected["token_ids"][:4]
    assert cleared != copied


def test_logits_that_are_not_numbers_are_a_device_error_and_never_a_token(runner_page: Page) -> None:
    script = """async () => {
        const { runner } = window;
        const page = await runner.readPages([[3]]);
        runner.writePages([[3]], new Uint8Array(page.length).fill(0xff));
        const spoilt = runner.submit(window.batch([7], 1, [3], { slot: 0, temperature: 0 })).catch((error) =>
            error.toJSON());
        runner.writePages([[3]], page);
        const sound = runner.submit(window.batch([7], 1, [3], { slot: 0, temperature: 0 }));
        return [await spoilt, (await sound).tokenIds[0]];
    }"""
    error, token = runner_page.evaluate(script)
    assert error["code"] == "device_error"
    assert error["message"].startswith("The device computed logits that are not numbers;")
    assert 0 <= token < VOCAB_SIZE


# test_chat_page.py opens the page and answers without a network.
@pytest.mark.exhaustive
def test_the_page_answers_offline_with_the_text_that_python_decodes(context: BrowserContext, address: str) -> None:
    from nearfar.compiler.bundle.folder import open_bundle
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    page = context.new_page()
    open_page(page, address, "ready")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    context.set_offline(True)
    page.fill("#max-tokens", "24")
    question = "what is 27 + 58? ünï 🦊"
    page.fill("#prompt", question)
    page.click("#send")
    page.wait_for_selector(".answer[data-state=done]")
    answer = page.locator(".answer")
    assert float(answer.get_attribute("data-ttft-ms") or "nan") > 0
    assert float(answer.get_attribute("data-tokens-per-second") or "nan") > 0
    assert not requests
    tokenizer = Tokenizer(open_bundle(page_bundle()).tokenizer_files())
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    token_ids = generate_tokens(page, prompt, 24)
    assert page.locator(".answer .text").get_attribute("data-markdown") == tokenizer.decode(token_ids)


@pytest.mark.exhaustive
def test_a_stopped_answer_leaves_the_page_ready_for_the_next(page: Page, address: str) -> None:
    open_page(page, address, "ready")
    hold_next(page, 4)
    page.click("#examples button >> nth=0")
    page.wait_for_selector(".answer[data-state=streaming]")
    page.click("#send")
    page.wait_for_selector(".answer[data-state=done]")
    page.click("#new-chat")
    # test_chat_page.py fills a context.
    page.fill("#max-tokens", "24")
    page.click("#examples button >> nth=1")
    page.wait_for_selector(".answer[data-state=done][data-ttft-ms]")


def test_the_example_of_the_readme_runs_as_it_stands(page: Page, address: str) -> None:
    with page.expect_console_message(lambda message: message.text.startswith(("stop", "length"))):
        page.goto(f"{address}example.html")
    assert page.text_content("#answer") not in ("", "ready")


@pytest.mark.exhaustive
def test_a_flipped_byte_in_a_shard_is_a_bundle_error_with_both_hashes(page: Page, address: str) -> None:
    message = failure(page, f"{address}?bundle=./corrupt/", "bundle_error")
    assert message.startswith("weights/00000.bin: has SHA-256 ")
    assert "the manifest says" in message
    assert "compile the bundle again" in message


@pytest.mark.exhaustive
def test_a_missing_bundle_is_a_bundle_error_with_its_address(page: Page, address: str) -> None:
    assert f"{address}nowhere/manifest.json answers 404" in failure(page, f"{address}?bundle=./nowhere", "bundle_error")


@pytest.mark.exhaustive
def test_another_format_version_is_a_bundle_error_that_names_both(page: Page, address: str) -> None:
    assert "has format version 99" in failure(page, f"{address}?bundle=./alien/", "bundle_error")


def test_a_float16_bundle_without_shader_f16_is_a_device_error_that_names_it(page: Page, address: str) -> None:
    assert "lacks the WebGPU feature shader-f16" in failure(page, f"{address}?bundle=./half/", "device_error")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined })", "This browser has no WebGPU;"),
        ("GPU.prototype.requestAdapter = async () => null", "This browser has no WebGPU adapter;"),
    ],
)
def test_a_browser_without_webgpu_or_adapter_is_a_device_error(
    page: Page, address: str, script: str, says: str
) -> None:
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
        for await (const { tokenId } of window.nearfar.engine.generateTokens({ promptIds: prompt, maxTokens }))
            ids.push(tokenId);
        return ids;
    }"""
    token_ids: list[int] = page.evaluate(script, [list(prompt_token_ids), max_tokens])
    return token_ids


def manifest_of(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return manifest


def change_manifest(bundle: Path, **changes: object) -> None:
    (bundle / "manifest.json").write_text(json.dumps({**manifest_of(bundle), **changes}))
