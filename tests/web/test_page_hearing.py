"""Chats with sounds and a picture in headless Chromium, on the page and in a worker: the tokens are those of numpy,
whose logits are transformers'.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hearing_families import make_hearing, sound, stored, wav
from image_families import pattern
from page_whisper import kept_bundle, page_listener
from PIL import Image
from playwright.sync_api import Browser, Page
from site_pages import engine_page

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.images.patches import prepare_image
from nearfar.compiler.runtime.media import encode_media, placed_features
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

TOKENS = 8
SOUNDS = (sound(32 * 90 + 5), sound(32 * 4, 1))
HTML = '<!doctype html><body><script type="module" src="start.js"></script>'
START = """import { Engine } from "./nearfar.js";
import { connectEngine } from "./client.js";
window.ask = async (engine, content) => {
    const messages = [{ role: "user", content }];
    const answer = await engine.chat.completions.create(
        { messages, temperature: 0, max_tokens: 8, return_token_ids: true });
    return { ids: answer.choices[0].token_ids, prompt: answer.prompt_token_ids,
             cached: answer.usage.prompt_tokens_details.cached_tokens };
};
Object.assign(window, { Engine, connectEngine });
document.body.dataset.state = "ready";
"""
WORKER = 'import { serveEngine } from "./worker.js"; serveEngine(self);'


def page_with(browser: Browser, bundle: Bundle, site: Path) -> Any:
    scripts = ("nearfar.js", "client.js", "worker.js", "images.js", "audio.js", "attachments.js", "language-model.js")
    files = {"index.html": HTML, "start.js": START, "engine_worker.js": WORKER}
    return engine_page(browser, bundle, site, scripts, files)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(page_listener())


@pytest.fixture(scope="module")
def page(
    browser: Browser,
    bundle: Bundle,
    chromium: str,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    with page_with(browser, bundle, tmp_path_factory.mktemp("site")) as opened:
        yield opened


def content(sounds: tuple[Any, ...] = SOUNDS) -> list[dict[str, Any]]:
    """A sound, a picture and a sound, with texts around them."""
    first, second = (
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(each)).decode(), "format": "wav"}}
        for each in sounds
    )
    file = io.BytesIO()
    Image.fromarray(pattern(60, 45)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return [
        {"type": "text", "text": "a"},
        first,
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "b<|audio|>"},
        second,
    ]


def expected(bundle: Bundle, sounds: tuple[Any, ...] = SOUNDS) -> tuple[list[int], list[int]]:
    manifest, tokenizer = bundle.manifest, Tokenizer(bundle.tokenizer_files())
    assert manifest.sounds is not None
    assert manifest.images is not None
    kinds = {"input_audio": "audio", "image_url": "image"}
    parts = [part if part["type"] == "text" else {"type": kinds[part["type"]]} for part in content()]
    heard = [prepare_sound(manifest.sounds, stored(each)) for each in sounds]
    pictures = [prepare_image(manifest.images, np.ascontiguousarray(pattern(60, 45)))]
    prompt = encode_media(tokenizer, manifest, [{"role": "user", "content": parts}], pictures, heard)
    runner = ReferenceRunner(bundle, limits=Limits(pages=32), activation="float32")
    features = lambda: placed_features(runner, prompt, pictures, heard)  # noqa: E731
    return prompt, list(generate(runner, prompt, TOKENS, Sampler(), features=features))


def test_answers_about_sounds_and_a_picture_are_those_of_numpy(page: Page, bundle: Bundle) -> None:
    prompt, ids = expected(bundle)
    assert len(ids) == TOKENS
    first, again = page.evaluate("async (parts) => [await ask(engine, parts), await ask(engine, parts)]", content())
    assert (first["prompt"], first["ids"], first["cached"]) == (prompt, ids, 0)
    assert (again["prompt"], again["ids"]) == (prompt, ids)
    assert again["cached"] > 96
    sound_, images, test, counts = page.evaluate(
        "() => [engine.info.sound, engine.info.images, engine.info.selfTest.state, engine.counts.pictures]"
    )
    assert (sound_, images, test, counts["queries"], counts["hits"]) == (True, True, "passed", 6, 3)
    refused = page.evaluate("() => engine.transcribe(new Blob([])).catch((error) => error.message)")
    assert refused == "This model hears in chats only; ask there"
    # Another sound of the same length is another prompt.
    other = (sound(32 * 90 + 5, 2), SOUNDS[1])
    found = page.evaluate("async (parts) => ask(engine, parts)", content(other))
    assert found["cached"] < 16
    assert (found["prompt"], found["ids"]) == expected(bundle, other)


@pytest.mark.exhaustive
def test_a_conformer_hears_in_the_page_as_in_numpy(
    browser: Browser,
    chromium: str,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    bundle = open_bundle(kept_bundle("conformer", lambda checkpoint: make_hearing("gemma4", checkpoint), context=256))
    sounds = (sound(160 * 93 + 5), sound(700, 1))
    with page_with(browser, bundle, tmp_path) as page:
        found = page.evaluate("async (parts) => ask(engine, parts)", content(sounds))
        prompt, ids = expected(bundle, sounds)
        assert (found["prompt"], found["ids"]) == (prompt, ids)
        assert len(ids) == TOKENS
        assert page.evaluate("() => engine.info.selfTest.state") == "passed"


# test_pictures.py has an engine in a worker that gets parts of messages, the test above the sounds.
@pytest.mark.exhaustive
def test_samples_of_a_page_and_a_worker_are_heard_alike(page: Page, bundle: Bundle) -> None:
    _, ids = expected(bundle)
    found = page.evaluate(
        """async ([parts, samples]) => {
            const own = (index) => ({ type: "audio", audio: { samples: Float32Array.from(samples[index]),
                                                              sampleRate: 16000 } });
            const given = [parts[0], own(0), parts[2], parts[3], own(1)];
            const worker = new Worker("./engine_worker.js", { type: "module" });
            const remote = await connectEngine(worker, "./bundle/");
            const found = [await ask(engine, given), await ask(remote, given), await ask(remote, parts)];
            const { sound } = remote.info;
            worker.terminate();
            return [...found.map(({ ids }) => ids), sound];
        }""",
        [content(), [stored(each).tolist() for each in SOUNDS]],
    )
    assert found == [ids, ids, ids, True]


# The test above has what the engine makes of sounds, web/test/language_model sessions, and test_page_sound.py what a
# browser decodes.
@pytest.mark.exhaustive
def test_a_session_of_the_prompt_api_hears_what_the_browser_decoded(page: Page) -> None:
    found: dict[str, Any] = page.evaluate(
        """async (numbers) => {
            const { createLanguageModel } = await import("./language-model.js");
            const expectedInputs = [{ type: "audio" }];
            const loader = () => Promise.reject(new Error("it is not loaded"));
            const before = await createLanguageModel(loader, { bundle: "./bundle/" }).availability({ expectedInputs });
            const sent = [];
            const create = (params, options) => {
                sent.push(params.messages);
                // Without a limit, the model writes until its context is full.
                return engine.chat.completions.create({ ...params, max_tokens: 8 }, options);
            };
            const countTokens = (...args) => engine.countTokens(...args);
            const factory = createLanguageModel({ info: engine.info, countTokens, chat: { completions: { create } } });
            const session = await factory.create({ expectedInputs, samplingMode: "most-predictable" });
            const samples = Float32Array.from(numbers);
            const value = new AudioBuffer({ length: samples.length, sampleRate: 16000 });
            value.copyToChannel(samples, 0);
            const text = { type: "text", text: "a" };
            const parts = [{ type: "text", value: "a" }, { type: "audio", value }];
            await session.prompt([{ role: "user", content: parts }]);
            value.copyToChannel(new Float32Array(samples.length), 0);
            const heard = await ask(engine, sent[0][0].content);
            const own = await ask(engine, [text, { type: "audio", audio: { samples, sampleRate: 16000 } }]);
            const silence = await ask(engine, [text, { type: "audio", audio: value }]);
            return { before, after: await factory.availability({ expectedInputs }), usage: session.contextUsage,
                     heard, own: own.ids, silence: silence.ids };
        }""",
        stored(SOUNDS[0]).tolist(),
    )
    assert (found["before"], found["after"]) in [("available", "available"), ("downloadable", "available")]
    assert found["heard"]["ids"] == found["own"] != found["silence"]
    assert found["usage"] >= len(found["heard"]["prompt"]) > 90


def test_sounds_that_are_too_long_are_refused_by_their_part(page: Page) -> None:
    message = page.evaluate(
        """async () => {
            const audio = { samples: new Float32Array(750 * 32 + 1), sampleRate: 16000 };
            const content = [{ type: "text", text: "a" }, { type: "audio", audio }];
            return ask(engine, content).then(() => "", (error) => `${error.details.param} ${error.message}`);
        }"""
    )
    assert message.startswith("messages[0].content[1] messages[0].content[1]: is longer than 1.5 seconds")
