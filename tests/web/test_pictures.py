"""Chats about pictures in headless Chromium, on the page and in a worker: the tokens are those of transformers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_pages import open_page
from image_families import pattern
from light_bundle import light_copy
from page_eyes import Eyes, page_eyes
from page_looks import fact
from PIL import Image
from playwright.sync_api import Browser, Page
from site_pages import engine_page
from vision_families import greedy_answer

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.images.patches import prepare_image
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

MAX_TOKENS = 8
# Four tiles and an overview, and single tiles.
PICTURES = {"cat": pattern(90, 61), "dog": pattern(20, 20)[::-1], "fox": pattern(24, 24)}
QUESTIONS = (("cat", "what?"), ("cat", "and who is it?"), ("dog", "what?"))
HTML = '<!doctype html><body><script type="module" src="start.js"></script>'
START = """import { Engine } from "./nearfar.js";
import { connectEngine } from "./client.js";
window.ask = async (engine, part, text, rest = {}) => {
    const content = [part, { type: "text", text }];
    const messages = [{ role: "user", content }];
    const answer = await engine.chat.completions.create(
        { messages, temperature: 0, max_tokens: 8, return_token_ids: true, ...rest });
    return { ids: answer.choices[0].token_ids, prompt: answer.prompt_token_ids,
             cached: answer.usage.prompt_tokens_details.cached_tokens };
};
window.dataUrl = (name) => new Promise(async (resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(await (await fetch(`./${name}.png`)).blob());
});
window.at = (url) => ({ type: "image_url", image_url: { url } });
Object.assign(window, { Engine, connectEngine });
document.body.dataset.state = "ready";
"""
WORKER = 'import { serveEngine } from "./worker.js"; serveEngine(self);'


Expected = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(page_eyes().bundle)


@pytest.fixture(scope="module")
def expected() -> Expected:
    return generated(page_eyes())


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    with page_with(browser, bundle, tmp_path_factory.mktemp("site")) as opened:
        yield opened


def generated(eyes: Eyes) -> Expected:
    """For each question, the prompt's tokens and those that transformers generates greedily."""
    spec = open_bundle(eyes.bundle).manifest.images
    assert spec is not None
    tokenizer = Tokenizer(TokenizerFiles.at(eyes.checkpoint / "tokenizer.json"))
    found = []
    for picture, text in QUESTIONS:
        pixels = np.ascontiguousarray(PICTURES[picture])
        written = f"user: {prepare_image(spec, pixels).text}{text}\nassistant:"
        prompt = tokenizer.encode(written, False, split_special_tokens=False)
        found.append((prompt, greedy_answer(eyes.checkpoint, prompt, [pixels], MAX_TOKENS)))
    # Otherwise a picture that was not seen would go unnoticed: the first and the last question are about two.
    assert tuple(found[0][1]) != tuple(found[-1][1])
    return found


@contextmanager
def page_with(browser: Browser, bundle: Bundle, site: Path) -> Iterator[Page]:
    """A page with an engine that has loaded a bundle."""
    for name, pixels in PICTURES.items():
        (site / f"{name}.png").write_bytes(png_of(pixels))
    scripts = (
        *("nearfar.js", "client.js", "worker.js", "images.js", "videos.js", "attachments.js", "hybrid.js"),
        *("language-model.js", "webllm.js", "describer.js"),
    )
    files = {"index.html": HTML, "start.js": START, "engine_worker.js": WORKER}
    with engine_page(browser, bundle, site, scripts, files) as opened:
        yield opened


def png_of(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return file.getvalue()


def data_url(name: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(png_of(PICTURES[name])).decode()}"


def answers_of(page: Page) -> list[dict[str, Any]]:
    asked = [[data_url(name), text] for name, text in QUESTIONS]
    found: list[dict[str, Any]] = page.evaluate(
        """async (asked) => {
            const answers = [];
            for (const [url, text] of asked) answers.push(await ask(engine, at(url), text));
            return answers;
        }""",
        asked,
    )
    return found


def require_seen_once(page: Page, found: list[dict[str, Any]], expected: Expected) -> None:
    assert [(each["prompt"], each["ids"]) for each in found] == expected
    # The second question continues after the picture.
    assert found[0]["cached"] == found[2]["cached"] == 0
    assert found[1]["cached"] >= 16
    sees, test, counts = page.evaluate("() => [engine.info.images, engine.info.selfTest.state, engine.counts.pictures]")
    assert (sees, test, counts["queries"], counts["hits"]) == (True, "passed", 3, 1)


def test_answers_are_those_of_transformers_and_a_tower_computes_a_picture_once(page: Page, expected: Expected) -> None:
    require_seen_once(page, answers_of(page), expected)


# targets/test_vision.py has their layers on webgpu, the TypeScript tests have their patches and positions.
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "gemma4", "gemma4_bounded", "gemma4_unified", "lfm2_vl"])
def test_models_that_see_both_ways_rotate_by_rows_or_have_states_answer_as_transformers(
    family: str,
    browser: Browser,
    chromium: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    eyes = page_eyes(family)
    with page_with(browser, open_bundle(eyes.bundle), tmp_path) as page:
        require_seen_once(page, answers_of(page), generated(eyes))


def test_pictures_that_a_page_has_are_the_same_as_their_addresses(page: Page, expected: Expected) -> None:
    found: list[dict[str, Any]] = page.evaluate("""async () => {
        const blob = await (await fetch("./dog.png")).blob();
        const image = async (image) => ask(engine, { type: "image", image: await image }, "what?");
        const canvas = new OffscreenCanvas(20, 20);
        const context = canvas.getContext("2d");
        context.drawImage(await createImageBitmap(blob), 0, 0);
        return Promise.all([
            ask(engine, at(URL.createObjectURL(blob)), "what?"),
            ask(engine, at(new URL("./dog.png", location).href), "what?"),
            ask(engine, at("./dog.png"), "what?"), image(blob), image(createImageBitmap(blob)),
            image(context.getImageData(0, 0, 20, 20)), image(canvas),
        ]);
    }""")
    assert [each["ids"] for each in found] == [expected[2][1]] * 7


# web/test/worker/connect_engine.test.ts has what pages send to workers, test_workers.py an engine in one.
@pytest.mark.exhaustive
def test_an_engine_in_a_worker_answers_about_pictures(page: Page, expected: Expected) -> None:
    found: list[dict[str, Any]] = page.evaluate("""async () => {
        const worker = new Worker("./engine_worker.js", { type: "module" });
        const remote = await connectEngine(worker, "./bundle/");
        const blob = await (await fetch("./cat.png")).blob();
        const address = URL.createObjectURL(blob);
        const answers = [ask(remote, at(address), "what?"), ask(remote, at("./cat.png"), "and who is it?"),
                         ask(remote, { type: "image", image: blob }, "what?")];
        await Promise.resolve();
        URL.revokeObjectURL(address);
        const found = await Promise.all(answers);
        const session = remote.createSession();
        const ids = [];
        const content = [at("./dog.png"), { type: "text", text: "what?" }];
        for await (const event of session.generate(content, { maxTokens: 8 }))
            if (event.type === "token") ids.push(event.tokenId);
        remote.destroy();
        worker.terminate();
        return [...found, { ids }];
    }""")
    assert [each["ids"] for each in found] == [expected[index][1] for index in (0, 1, 0, 2)]


# web/test/images has what is stored of messages, and web/test/session.test.ts sessions; the exhaustive tests
# of test_kept_prefixes.py and test_engine.py have the browser's storage of pages.
@pytest.mark.exhaustive
def test_a_saved_session_keeps_its_pictures(page: Page, expected: Expected) -> None:
    found: dict[str, Any] = page.evaluate("""async () => {
        const say = async (session, content) => {
            const found = { ids: [] };
            for await (const event of session.generate(content, { maxTokens: 8 }))
                if (event.type === "token") found.ids.push(event.tokenId);
                else found.cached = event.timings.cachedTokens;
            return found;
        };
        const blob = await (await fetch("./cat.png")).blob();
        const address = URL.createObjectURL(blob);
        const bitmap = await createImageBitmap(blob);
        const session = engine.createSession();
        const first = await say(session, [{ type: "image", image: bitmap }, { type: "text", text: "what?" }]);
        const other = engine.createSession();
        await say(other, [at(address), { type: "text", text: "what?" }]);
        await session.save("seen");
        await other.save("addressed");
        URL.revokeObjectURL(address);
        const next = await say(session, "again");
        engine.unload();
        const results = [];
        for (const name of ["seen", "addressed"]) {
            const restored = engine.createSession();
            await restored.restore(name);
            results.push([restored.messages[0].content[0].image_url.url.slice(0, 22), await say(restored, "again")]);
        }
        return { first, next, results };
    }""")
    assert found["first"]["ids"] == expected[0][1]
    for start, again in found["results"]:
        assert start == "data:image/png;base64,"
        assert again["ids"] == found["next"]["ids"]
        assert again["cached"] > 48


def test_a_session_of_the_prompt_api_sees_images(page: Page) -> None:
    answers: list[str] = page.evaluate("""async () => {
        const { createLanguageModel } = await import("./language-model.js");
        const options = { expectedInputs: [{ type: "image" }], samplingMode: "most-predictable" };
        // Without a limit, the model writes until its context is full.
        const create = (params, options) => engine.chat.completions.create({ ...params, max_tokens: 48 }, options);
        const countTokens = (...args) => engine.countTokens(...args);
        const bounded = { info: engine.info, countTokens, chat: { completions: { create } } };
        const session = await createLanguageModel(bounded).create(options);
        const value = await (await (await fetch("./dog.png")).blob()).arrayBuffer();
        const question = { type: "text", value: "what?" };
        const prompted = session.prompt([{ role: "user", content: [{ type: "image", value }, question] }]);
        const content = [at("./dog.png"), { type: "text", text: "what?" }];
        const answer = await create({ messages: [{ role: "user", content }], temperature: 0 });
        return [await prompted, answer.choices[0].message.content];
    }""")
    assert len(answers[0]) > 20
    assert answers[0] == answers[1]


# web/test/router/hybrid_described.test.ts has both sides and descriptions.
@pytest.mark.exhaustive
def test_both_sides_and_descriptions_read_the_pictures_that_a_page_has(page: Page) -> None:
    found: dict[str, Any] = page.evaluate("""async () => {
        const { Hybrid } = await import("./hybrid.js");
        const bodies = [];
        const model = { id: "big", context: 4096, tokenizer_sha256: null, tools: true, verify: false, vision: true };
        const chunk = (delta, finish_reason = null) =>
            `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\\n\\n`;
        const far = async (url, { body }) => {
            if (url.endsWith("/about")) return Response.json({ api_version: 1, models: [model] });
            bodies.push(JSON.parse(body).messages[0].content);
            const events = [chunk({ content: "far" }), chunk({}, "stop"), "data: [DONE]\\n\\n"];
            return new Response(events.join(""), { headers: { "Content-Type": "text/event-stream" } });
        };
        const over = (policy) => Hybrid.create(
            { near: engine, far: { baseURL: "https://far.test/v1" }, fetch: far, policy: { version: 1, ...policy } });
        const asked = async (nf, part, rest = {}) => {
            const messages = [{ role: "user", content: [part, { type: "text", text: "what?" }] }];
            const answer = await nf.chat.completions.create({ messages, temperature: 0, max_tokens: 8, ...rest });
            return [answer.choices[0].message.content, answer.route];
        };
        const blob = await (await fetch("./dog.png")).blob();
        const bitmap = await createImageBitmap(blob);
        const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
        canvas.getContext("2d").drawImage(bitmap, 0, 0);
        const nf = await over({ mode: "prefer-near" });
        const near = [];
        for (const part of [at("./dog.png"), { type: "image", image: bitmap }])
            near.push(await asked(nf, part));
        const sides = [];
        const own = [blob, bitmap, canvas].map((image) => ({ type: "image", image }));
        for (const part of [...own, at(URL.createObjectURL(blob))])
            sides.push((await asked(nf, part, { pin: "far" }))[1].side);
        const describing = await over({ mode: "prefer-far", private: { media: "describe" } });
        const [, route] = await asked(describing, { type: "image", image: bitmap });
        return { near, sides, bodies, route };
    }""")
    (first, route), (second, _) = found["near"]
    assert (first, route["side"]) == (second, "near")
    assert found["sides"] == ["far"] * 4
    *sent, described = found["bodies"]
    for part, _ in sent:
        image = Image.open(
            io.BytesIO(base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,")))
        )
        assert np.array_equal(np.asarray(image.convert("RGB")), PICTURES["dog"])
    assert described[0] == {"type": "text", "text": found["route"]["described"][0]["text"]}
    assert described[0]["text"].startswith("[Picture, described on the user's device: ")


def test_what_cannot_be_read_is_refused_by_name(page: Page) -> None:
    found: list[list[str]] = page.evaluate("""async () => {
        const refusal = (promise) => promise.then(() => null, ({ name, message, param }) => [name, param, message]);
        const image = (image) => ask(engine, { type: "image", image }, "what?");
        return Promise.all([
            ask(engine, at("http://localhost:9/cat.png"), "what?"), ask(engine, at("./nothing.png"), "what?"),
            image(new Blob(["<svg xmlns='http://www.w3.org/2000/svg'/>"])),
            image((await (await fetch("./cat.png")).blob()).slice(0, 200)),
        ].map(refusal));
    }""")
    part = "messages[0].content[0]"
    expected = [
        ["RequestError", f"{part}.image_url", "whether its server allows this page"],
        ["RequestError", f"{part}.image_url", "status 404"],
        ["RequestError", f"{part}.image", "is an SVG"],
        ["RequestError", f"{part}.image", "is damaged or incomplete"],
    ]
    for (name, param, message), wanted in zip(found, expected, strict=True):
        assert [name, param] == wanted[:2]
        assert message.startswith(f"{param}: ")
        assert wanted[2] in message


def test_the_chat_page_shows_pictures_that_are_dropped_and_pasted(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    with PageServer(light_copy(bundle.path, tmp_path / "bundle")) as server:
        page = open_page(browser, [])
        page.goto(server.url)
        page.wait_for_selector("body[data-near=ready]")
        transfer = """async ([url, name]) => {
            const data = new DataTransfer();
            const bytes = Uint8Array.from(atob(url.split(",")[1]), (byte) => byte.charCodeAt(0));
            data.items.add(new File([bytes], name, { type: "image/png" }));
            return data;
        }"""
        # One tile each; the tests above have several.
        dropped = page.evaluate_handle(transfer, [data_url("dog"), "dog.png"])
        page.dispatch_event("body", "drop", {"dataTransfer": dropped})
        page.wait_for_selector("#attachments img.picture[alt='dog.png']")
        page.evaluate(
            "(data) => document.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data }))",
            page.evaluate_handle(transfer, [data_url("fox"), "fox.png"]),
        )
        page.wait_for_function("() => document.querySelectorAll('#attachments img.picture').length === 2")
        assert page.eval_on_selector_all("#attachments img", "(all) => all.map((image) => image.naturalWidth)") == [
            20,
            24,
        ]
        # Both questions fit into the context, and the first answer has text.
        for field, value in (("max-tokens", 8), ("temperature", 0)):
            page.eval_on_selector(f"#{field}", "(input, value) => { input.value = value; }", str(value))
        for count, question in enumerate(("who is it?", "and who else?"), 1):
            page.fill("#prompt", question)
            page.press("#prompt", "Enter")
            page.wait_for_function(f"() => document.querySelectorAll('.answer[data-state=done]').length === {count}")
            assert not page.is_visible(".answer .problem")
        assert page.locator(".question img.picture").count() == 2
        counts = page.evaluate("() => window.nearfar.engine.counts.pictures")
        assert (counts["queries"], counts["hits"]) == (4, 2)
        assert fact(page, 0, "Pictures") == "2 pictures, 2 of them computed now on this device"
        assert fact(page, 1, "Pictures") == "2 pictures, 0 of them computed now on this device"
        page.click("#camera")
        page.wait_for_function("() => document.querySelector('#camera-view').videoWidth > 0")
        page.click("#camera-take")
        taken = page.wait_for_selector("#attachments img.picture[alt='camera.jpg']")
        assert taken is not None
        page.wait_for_function("() => document.querySelector('#attachments img').naturalWidth > 0")
        assert not page.is_visible("#camera-dialog")
        page.click("#attachments .chip button")
        # The page that is loaded next shows the conversation again.
        page.reload()
        page.wait_for_selector(".question img.picture")
        page.wait_for_function("() => document.querySelector('.question img.picture').naturalWidth === 20")
        page.context.close()


@pytest.mark.exhaustive
def test_webllms_engine_answers_about_a_picture(page: Page, expected: Expected) -> None:
    """As its example of ModelType.VLM does, with an address of data:."""
    answer = page.evaluate("""async () => {
        const { CreateMLCEngine, ModelType } = await import("./webllm.js");
        const record = { model: "./bundle/", model_id: "eyes", model_lib: "", model_type: ModelType.VLM };
        const engine = await CreateMLCEngine("eyes", { appConfig: { model_list: [record] } });
        const content = [at(await dataUrl("cat")), { type: "text", text: "what?" }];
        const request = { messages: [{ role: "user", content }], temperature: 0, max_tokens: 8, stream: true };
        const chunks = await engine.chat.completions.create({ ...request, return_token_ids: true });
        const ids = [];
        for await (const chunk of chunks) ids.push(...(chunk.choices[0].token_ids ?? []));
        await engine.unload();
        return ids;
    }""")
    assert answer == expected[0][1]


def test_a_file_of_text_takes_its_place_and_a_recording_needs_a_transcriber(page: Page, bundle: Bundle) -> None:
    file = {"filename": "a.md", "file_data": "data:text/markdown;base64," + base64.b64encode(b"# hi").decode()}
    prompt, refused = page.evaluate(
        """async (file) => [
            (await ask(engine, { type: "file", file }, "what?")).prompt,
            await ask(engine, { type: "input_audio", input_audio: { data: "", format: "wav" } }, "what?").catch(String),
        ]""",
        file,
    )
    text = "user: [File: a.md]\n# hi\n[End of file: a.md]\nwhat?\nassistant:"
    assert prompt == Tokenizer(bundle.tokenizer_files()).encode(text, False)
    assert "is a recording, and this model hears nothing" in refused
