"""LoRA adapters in headless Chromium, on the page and in a worker: their tokens are those of the numpy runner."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import CompileTiny
from light_bundle import lighten
from playwright.sync_api import Browser, Page
from static_site import serve
from tiny_adapters import MLP, SELF_ATTENTION, make_adapter

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

HTML = '<!doctype html><body><script type="module" src="start.js"></script>'
START = """import { Engine } from "./nearfar.js";
import { createFetch } from "./fetch.js";
import { connectEngine } from "./client.js";
window.PROMPT = [5, 9, 2, 77, 31, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53];
window.answer = async (engine, adapter) => {
    const ids = [];
    const tokens = engine.generateTokens({ promptIds: PROMPT, maxTokens: 8, adapter });
    for await (const { tokenId } of tokens) ids.push(tokenId);
    return ids;
};
window.refusal = async (promise) => promise.then(() => null, ({ message }) => message);
Object.assign(window, { Engine, createFetch, connectEngine });
document.body.dataset.state = "ready";
"""
WORKER = 'import { serveEngine } from "./worker.js"; serveEngine(self);'
PROMPT = [5, 9, 2, 77, 31, *range(40, 54)]
NAMES = ("every", "some")


@pytest.fixture(scope="module")
def adapters(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two adapters: of all projections, and of two of them with a smaller rank and the other scale."""
    folder, checkpoint = tmp_path_factory.mktemp("adapters"), tiny_checkpoints["qwen3"]
    make_adapter(folder / "every", checkpoint, SELF_ATTENTION + MLP, rank=4, alpha=8, seed=1)
    make_adapter(folder / "some", checkpoint, ("v_proj", "up_proj"), rank=3, alpha=5, seed=2, use_rslora=True)
    return folder


@pytest.fixture(scope="module")
def bundle(compile_light: CompileTiny) -> Bundle:
    return open_bundle(compile_light("qwen3", "f32", target="webgpu", activations=("float32",), lora_rank=4))


@pytest.fixture(scope="module")
def expected(bundle: Bundle, adapters: Path) -> dict[str | None, list[int]]:
    """The 8 tokens after PROMPT, without an adapter and with each."""
    runner = ReferenceRunner(bundle, limits=Limits(tokens=64, rows=1, pages=2, adapters=2))
    for slot, adapter in enumerate(NAMES):
        for state, values in read_adapter(adapters / adapter, bundle.manifest).items():
            runner.write_state(state, slot, values)
    answers: dict[str | None, list[int]] = {}
    slots: list[tuple[int, str | None]] = [(-1, None), *enumerate(NAMES)]
    for slot, name in slots:
        tokens = list(PROMPT)
        while len(tokens) < len(PROMPT) + 8:
            chunk = Chunk(tokens, 0, [0, 1], [len(tokens) - 1], adapter=slot)
            tokens.append(int(runner.forward(make_batch([chunk], 16)).logits[0].argmax()))
        answers[name] = tokens[len(PROMPT) :]
    assert len({tuple(answer) for answer in answers.values()}) == 3
    return answers


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    adapters: Path,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    """A page with an engine that has loaded both adapters: one from an address, one from its files."""
    site = tmp_path_factory.mktemp("site")
    for script in ("nearfar.js", "adapters.js", "fetch.js", "client.js", "worker.js"):
        shutil.copy(PAGE.parent / script, site)
    for name, text in {"index.html": HTML, "start.js": START, "engine_worker.js": WORKER}.items():
        (site / name).write_text(text)
    shutil.copytree(bundle.path, site / "bundle")
    lighten(site / "bundle")
    shutil.copytree(adapters, site / "adapters")
    with serve(site) as url:
        opened = browser.new_page()
        opened.goto(url)
        opened.wait_for_selector("body[data-state=ready]", state="attached")
        opened.evaluate("""async () => {
            window.engine = await Engine.load("./bundle/");
            await engine.loadAdapter("./adapters/every", { name: "every" });
            const file = async (name) => fetch(`./adapters/some/${name}`);
            const config = await (await file("adapter_config.json")).text();
            const weights = await (await file("adapter_model.safetensors")).blob();
            window.files = { config, weights };
            await engine.loadAdapter(files, { name: "some" });
        }""")
        yield opened
        opened.close()


def test_requests_of_one_batch_have_their_own_adapters(page: Page, expected: dict[str | None, list[int]]) -> None:
    found: list[list[int]] = page.evaluate(
        "async () => Promise.all([undefined, 'every', 'some'].map((adapter) => answer(engine, adapter)))"
    )
    assert found == list(expected.values())
    # From the prefix cache of each, one after the other.
    again: list[list[int]] = page.evaluate(
        "async () => [await answer(engine, 'some'), await answer(engine), await answer(engine, 'every')]"
    )
    assert again == [expected["some"], expected[None], expected["every"]]


@pytest.mark.exhaustive
def test_the_api_names_an_adapter_as_a_model(page: Page, bundle: Bundle) -> None:
    found: dict[str, Any] = page.evaluate("""async () => {
        const ask = (model) => engine.chat.completions.create(
            { model, messages: [{ role: "user", content: "Hello there" }], temperature: 0, max_tokens: 12 });
        const answers = await Promise.all(["every", "qwen3", "unknown"].map(ask));
        const request = { model: "some", prompt: PROMPT, temperature: 0, max_tokens: 2 };
        const continued = await engine.completions.create(request);
        const models = await (await createFetch(engine)("http://localhost/v1/models")).json();
        return {
            names: [...answers, continued].map(({ model }) => model),
            texts: answers.map(({ choices }) => choices[0].message.content),
            models: models.data.map(({ id }) => id),
        };
    }""")
    own = bundle.manifest.model
    assert found["names"] == ["every", own, own, "some"]
    assert found["texts"][0] != found["texts"][1] == found["texts"][2]
    assert found["models"] == [own, *NAMES]


@pytest.mark.exhaustive
def test_a_saved_session_is_continued_only_by_its_own_adapter(page: Page) -> None:
    cached: list[int] = page.evaluate("""async () => {
        const session = engine.createSession();
        const say = async (session, adapter) => {
            let last;
            for await (const event of session.generate("and a few more words, for a page", { maxTokens: 4, adapter }))
                last = event;
            return last.timings.cachedTokens;
        };
        await say(session, "every");
        await session.save("adapted");
        session.close();
        const other = engine.createSession();
        const counts = [];
        for (const adapter of ["some", "every"]) {
            await other.restore("adapted");
            counts.push(await say(other, adapter));
        }
        other.close();
        return counts;
    }""")
    assert cached[0] == 0
    assert cached[1] > 0


def test_what_cannot_be_loaded_is_refused_by_name(page: Page) -> None:
    found: list[str] = page.evaluate("""async () => {
        const config = JSON.stringify({ ...JSON.parse(files.config), use_dora: true });
        return Promise.all([
            engine.loadAdapter({ ...files, config }, { name: "dora" }),
            engine.loadAdapter("./nowhere/", { name: "nowhere" }),
            engine.loadAdapter(files, { name: "some" }),
            engine.loadAdapter(files, { name: "third" }),
            engine.loadAdapter(files, { name: engine.info.model }),
            engine.loadAdapter(files, {}),
            answer(engine, "third"),
            engine.unloadAdapter("third"),
        ].map(refusal));
    }""")
    expected = [
        "adapter_config.json: use_dora true is not supported", ": the server answers 404; check the address",
        "An adapter 'some' is loaded already", "All 2 slots for adapters are in use", "name is", "name is missing",
        "Adapter 'third' is not loaded", "Adapter 'third' is not loaded",
    ]  # fmt: skip
    for message, part in zip(found, expected, strict=True):
        assert part in (message or ""), (message, part)


# test_workers.py has an engine in a worker, and web/test/worker what is called there.
@pytest.mark.exhaustive
def test_an_engine_in_a_worker_has_adapters(page: Page, expected: dict[str | None, list[int]]) -> None:
    found: list[Any] = page.evaluate("""async () => {
        const worker = new Worker("./engine_worker.js", { type: "module" });
        const remote = await connectEngine(worker, "./bundle/", { maxAdapters: 1 });
        await remote.loadAdapter("./adapters/every/", { name: "every" });
        const full = await refusal(remote.loadAdapter(files, { name: "some" }));
        const first = await answer(remote, "every");
        await remote.unloadAdapter("every");
        await remote.loadAdapter(files, { name: "some" });
        const result = [full, first, await answer(remote, "some"), await remote.listAdapters()];
        remote.destroy();
        worker.terminate();
        return result;
    }""")
    assert "All 1 slots for adapters are in use" in found[0]
    assert found[1:] == [expected["every"], expected["some"], ["some"]]
