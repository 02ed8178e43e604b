"""The engine in headless Chromium: pages shared by turns, forks and requests, answers that survive their device, and
grammars.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from light_bundle import lighten
from page_model import page_bundle
from playwright.sync_api import Browser, Page
from static_site import serve
from tiny_models import VOCAB_SIZE

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner

# The script policy of a page with structured output.
HTML = """<!doctype html>
<meta http-equiv="Content-Security-Policy" content="default-src 'self'; script-src 'self' 'wasm-unsafe-eval'">
<body><script type="module" src="start.js"></script>"""
START = """import { Engine } from "./nearfar.js";
const { requestDevice } = GPUAdapter.prototype;
window.devices = [];
GPUAdapter.prototype.requestDevice = async function (descriptor) {
    const device = await requestDevice.call(this, descriptor);
    window.devices.push(device);
    return device;
};
window.Engine = Engine;
window.collect = async (events) => {
    const ids = [];
    let last = null;
    for await (const event of events) {
        if (event.type === "token") ids.push(event.tokenId);
        last = event;
    }
    return { ids, ...last.timings };
};
document.body.dataset.state = "ready";
"""
LOAD = "async ([bundle, options]) => { window.engine = await window.Engine.load(bundle, options); }"
# Prints the schemas of the TypeScript tests as JSON.
SCHEMAS = json.loads((ROOT / "tests/conformance/json_schemas.json").read_text())["schemas"]
PAGE_TOKENS = 16
# "</s>" of the tiny models' tokenizer.
END_TOKEN = 257


@pytest.fixture(scope="module")
def bundle() -> Path:
    """A bundle with 4-bit keys and values, whose pages are shared, copied and saved here."""
    return page_bundle(kv="q4")


@pytest.fixture(scope="module")
def address(bundle: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    site = tmp_path_factory.mktemp("engine")
    for script in ("nearfar.js", "grammar.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text(HTML)
    (site / "start.js").write_text(START)
    # Only one model's answers end, as answers with a grammar must.
    for name, ends in {"bundle": [], "ending": [END_TOKEN]}.items():
        shutil.copytree(bundle, site / name)
        lighten(site / name)
        manifest = json.loads((site / name / "manifest.json").read_text())
        manifest["spec"]["eos_token_ids"] = ends
        (site / name / "manifest.json").write_text(json.dumps(manifest))
    with serve(site) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page with an engine, which all tests share."""
    page = browser.new_page()
    open_engine(page, address)
    yield page
    page.close()


@pytest.fixture(scope="module")
def expected(bundle: Path) -> dict[str, list[int]]:
    """A prompt of 75 tokens, and the 12 that the reference runner then generates greedily."""
    prompt = [(7 * i * i + 11 * i + 3) % VOCAB_SIZE for i in range(75)]
    runner = ReferenceRunner(open_bundle(bundle), activation="float32")
    return {"prompt_token_ids": prompt, "token_ids": list(generate(runner, prompt, 12, Sampler()))}


def open_engine(page: Page, address: str, bundle: str = "./bundle/", **options: object) -> None:
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    page.evaluate(LOAD, [bundle, options])


# Each chunk loads the model once more: a part of a prompt, then others and one longer than it. The engine of the other
# tests has chunks of 64.
@pytest.mark.parametrize("chunks", [[13], pytest.param([4, 13, 64, 75, 250], marks=pytest.mark.exhaustive)])
def test_answers_are_the_same_whatever_the_chunk_of_prompts_is(
    chunks: list[int], page: Page, expected: dict[str, list[int]]
) -> None:
    """The reference computes chunks of 64. The steps show that each chunk is used."""
    script = """async ([{ prompt_token_ids: promptIds }, chunks]) => {
        const results = [];
        for (const prefillChunk of [null, ...chunks]) {
            const engine = prefillChunk === null
                ? window.engine : await window.Engine.load("./bundle/", { prefillChunk });
            const answer = async (sampling) => {
                const ids = [];
                const request = { promptIds, maxTokens: 12, sampling };
                for await (const { tokenId } of engine.generateTokens(request)) ids.push(tokenId);
                return ids;
            };
            const before = engine.counts.steps;
            const greedy = await answer({});
            const steps = engine.counts.steps - before;
            const sampled = await answer({ temperature: 1.5, seed: 7 });
            results.push({ chunk: engine.info.prefillChunk, greedy, sampled, steps });
            if (prefillChunk === null) continue;
            engine.destroy();
            // The last device remains that of the other tests' engine.
            window.devices.pop();
        }
        return results;
    }"""
    results = page.evaluate(script, [expected, chunks])
    chunks = [64, *chunks]
    assert [result["chunk"] for result in results] == chunks
    assert [result["greedy"] for result in results] == [expected["token_ids"]] * len(chunks)
    assert [result["sampled"] for result in results] == [results[0]["sampled"]] * len(chunks)
    assert results[0]["sampled"] != expected["token_ids"]
    # The prompt's chunks, and a step for each token after the first one; others are submitted before the answer ends.
    for result, chunk in zip(results, chunks, strict=True):
        assert 0 <= result["steps"] - (-(-75 // chunk) + 11) <= 8


def test_a_second_turn_prefills_new_tokens_only(page: Page) -> None:
    script = """async () => {
        const { engine } = window;
        const ask = (messages) => engine.chat.completions.create({ messages, temperature: 0, max_tokens: 8 });
        const messages = [{ role: "user", content: "a first question, long enough to fill pages with its tokens" }];
        const first = await ask(messages);
        const before = engine.counts.computedTokens;
        messages.push(first.choices[0].message, { role: "user", content: "and a second" });
        const second = await ask(messages);
        return [first.usage, second.usage, engine.counts.computedTokens - before, engine.counts.preemptions];
    }"""
    first, second, computed, preemptions = page.evaluate(script)
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["prompt_tokens_details"]["cached_tokens"]
    # Complete pages of the first turn are found in the cache, except for the last tokens, which the template may write
    # differently.
    assert cached % PAGE_TOKENS == 0
    assert first["prompt_tokens"] - PAGE_TOKENS < cached <= first["total_tokens"]
    assert computed <= second["prompt_tokens"] - cached + second["completion_tokens"]
    assert preemptions == 0


def test_requests_made_at_once_are_answered_as_each_alone(page: Page) -> None:
    script = """async () => {
        const questions = ["what is 27 + 58?", "tell me a story about a fox", "no"];
        const answer = (question) => window.collect(window.engine.generate(question, { maxTokens: 12 }));
        const alone = [];
        for (const question of questions) alone.push((await answer(question)).ids);
        const together = await Promise.all(questions.map(answer));
        return [alone, together.map(({ ids }) => ids)];
    }"""
    alone, together = page.evaluate(script)
    assert together == alone
    assert all(len(ids) > 1 for ids in alone)


def test_a_session_goes_on_from_its_own_pages_and_a_fork_shares_them(page: Page) -> None:
    script = """async () => {
        const options = { maxTokens: 6 };
        const session = window.engine.createSession({ messages: [{ role: "system", content: "be brief" }] });
        await window.collect(session.generate("a question to begin with", options));
        const before = window.engine.counts.computedTokens;
        const fork = session.clone();
        const [one, other] = await Promise.all([
            window.collect(session.generate("go on", options)),
            window.collect(fork.generate("something else", options)),
        ]);
        const computed = window.engine.counts.computedTokens - before;
        const plain = await window.collect(window.engine.generate(fork.messages.slice(0, -1), options));
        const lengths = [session.messages.length, fork.messages.length];
        session.close();
        fork.close();
        return { one, other, plain, computed, lengths };
    }"""
    found = page.evaluate(script)
    assert found["lengths"] == [5, 5]
    assert found["other"]["ids"] == found["plain"]["ids"]
    assert found["one"]["cachedTokens"] > PAGE_TOKENS
    prompts = found["one"]["promptTokens"] + found["other"]["promptTokens"]
    assert found["computed"] < prompts + 12 - found["one"]["cachedTokens"] - found["other"]["cachedTokens"] + 1


@pytest.mark.exhaustive
def test_a_saved_session_goes_on_in_another_page(browser: Browser, address: str) -> None:
    context = browser.new_context()
    first, second = context.new_page(), context.new_page()
    save = """async () => {
        const session = window.engine.createSession();
        await window.collect(session.generate("something to remember, in a sentence of some length", { maxTokens: 6 }));
        await session.save("kept");
        return (await window.collect(session.generate("and now?", { maxTokens: 6 }))).ids;
    }"""
    restore = """async () => {
        const session = window.engine.createSession();
        await session.restore("kept");
        const missing = await session.restore("nothing").catch((error) => error.code);
        return [session.messages.length, missing, await window.collect(session.generate("and now?", { maxTokens: 6 }))];
    }"""
    open_engine(first, address)
    expected = first.evaluate(save)
    open_engine(second, address)
    messages, missing, found = second.evaluate(restore)
    context.close()
    assert (messages, missing) == (2, "storage_error")
    assert found["ids"] == expected
    assert found["cachedTokens"] > PAGE_TOKENS


def test_an_answer_goes_on_with_the_same_tokens_when_its_device_is_lost(
    page: Page, expected: dict[str, list[int]]
) -> None:
    script = """async (promptIds) => {
        const ids = [];
        const before = window.engine.counts.recoveries;
        for await (const { tokenId } of window.engine.generateTokens({ promptIds, maxTokens: 12 })) {
            ids.push(tokenId);
            if (ids.length === 3) window.devices.at(-1).destroy();
        }
        return [ids, window.engine.counts.recoveries - before, window.devices.length];
    }"""
    devices = page.evaluate("() => window.devices.length")
    ids, recoveries, after = page.evaluate(script, expected["prompt_token_ids"])
    assert ids == expected["token_ids"]
    assert recoveries == 1
    assert after == devices + 1


@pytest.mark.exhaustive
def test_the_memory_of_a_model_is_known_before_it_is_loaded(page: Page, browser: Browser, address: str) -> None:
    script = """async () => {
        const plans = [{}, { prefillChunk: 64 }].map((options) => window.Engine.plan("./bundle/", options));
        return [...(await Promise.all(plans)), window.engine.info];
    }"""
    whole, plan, info = page.evaluate(script)
    # Nothing is measured here, so that the chunk stays as it is.
    assert (info["prefillChunk"], plan["largestChunk"]) == (64, 64)
    assert plan["totalBytes"] <= whole["totalBytes"] <= 1.125 * plan["totalBytes"]
    assert plan["weightBytes"] == info["weightBytes"]
    # The plan leaves out the arguments of kernels, 256 bytes each, and what is read back: some kB for any model.
    assert 0 <= info["totalBytes"] - plan["totalBytes"] < 32_768
    assert plan["fits"]
    budget = plan["totalBytes"] - plan["keyValueBytes"] + 4 * plan["pageBytes"]
    other = browser.new_page()
    open_engine(other, address, memoryBudget=budget)
    assert other.evaluate("() => window.engine.info.context") == 4 * PAGE_TOKENS
    refused = 'async () => window.Engine.load("./bundle/", { memoryBudget: 1e5 }).catch((error) => error.message)'
    assert "kB on the device, the budget is 100.0 kB" in other.evaluate(refused)
    other.close()


# The TypeScript tests compile every schema, and test_grammar.py has grammars in a browser.
@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [4, 50])
def test_answers_meet_their_schemas(page: Page, browser: Browser, address: str, count: int) -> None:
    usable = [schema for schema in SCHEMAS.values() if isinstance(schema, dict)][:50]
    schemas = usable[:: len(usable) // count][:count]
    script = """async (schemas) => {
        const answer = async (schema, index) => {
            const answered = await window.engine.chat.completions.create({
                messages: [{ role: "user", content: `number ${index}` }],
                response_format: { type: "json_schema", json_schema: { name: "it", schema } },
                temperature: 1, seed: index, max_tokens: 48,
            }).catch((error) => ({ error: [error.code, error.message] }));
            return answered.error ?? answered.choices[0].message.content;
        };
        const texts = [];
        for (let start = 0; start < schemas.length; start += 4) {
            texts.push(...await Promise.all(schemas.slice(start, start + 4).map((schema, index) => answer(schema,
                start + index))));
        }
        return texts;
    }"""
    ask = """async () => {
        const given = { messages: [{ role: "user", content: "" }], response_format: { type: "json_object" } };
        return window.engine.chat.completions.create(given).catch((error) => error.message);
    }"""
    assert page.evaluate(ask).startswith("This model has no token that ends an answer")
    ending = browser.new_page()
    open_engine(ending, address, "./ending/")
    texts = ending.evaluate(script, schemas)
    ending.close()
    assert len(texts) == count
    # A schema whose shortest answer is longer than 48 tokens is refused before the first token.
    refused = [text for text in texts if isinstance(text, list)]
    assert all(code == "request_error" and "48" in message for code, message in refused), refused
    assert len(refused) <= count / 10
    for text in texts:
        if isinstance(text, str):
            json.loads(text)
