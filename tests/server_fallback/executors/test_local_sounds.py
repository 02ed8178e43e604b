"""Chats with recordings on our own engine, whose model hears: the answer of the model of transformers, from a message's
part to the tokens of the answer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from answers import whole
from fake_models import FakeModels
from hearing_families import AUDIO, PICTURE, Floats, make_hearing, sound, stored, wav
from image_families import pattern
from local_requests import CALL, chat, chat_request, run
from PIL import Image
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.audio.prepared_sound import prepare_sound
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.images.patches import prepare_image
from nearfar.compiler.runtime.media import encode_media, placed_features
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.image_tower import ImageTower
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.apart import ApartEngine
from nearfar.server_fallback.executors.executor import PrefillState
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.page_transfer import PageIdentity
from nearfar.server_fallback.executors.prefill_options import PrefillOptions
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.images.options import ImageOptions
from nearfar.server_fallback.images.reader import ImageReader
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.text.grammar.grammar_compiler import GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.text_workers import TextWorkers

TOKENS = 6


def heard(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def seen(width: int, height: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(pattern(width, height)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def cached(answer: Any) -> int:
    """The tokens of the prompt that were not computed again."""
    return int(answer.usage.prompt_tokens_details.cached_tokens)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("hearing")
    make_hearing("gemma4_unified", folder / "checkpoint")
    return compile_plain(folder / "checkpoint", folder / "bundle", "f32", 256)


@contextmanager
def hearing(bundle: Bundle, pages: int = 32, **config: Any) -> Iterator[LocalExecutor]:
    manifest, text = bundle.manifest, TextModel.of(bundle, "ears")
    runner = ReferenceRunner(bundle, limits=Limits(tokens=24, sequences=2, rows=2, pages=pages), activation="float32")
    tower = ImageTower(runner, manifest.images, manifest.sounds)
    engine = TokenEngine(runner, TokenModel.of(manifest), EngineConfig(**config), tower=tower)
    assert manifest.images is not None
    workers = TextWorkers(
        Grammars(GrammarCompiler(), lambda: text.vocabulary), images=ImageReader(manifest.images, ImageOptions())
    )
    local = LocalExecutor(engine, text, workers=workers)
    try:
        yield local
    finally:
        run(local.close())


def alone(bundle: Bundle, content: list[dict[str, Any]], sounds: list[Floats], picture: bool) -> str:
    """What one runner without an engine answers."""
    manifest, tokenizer = bundle.manifest, Tokenizer(bundle.tokenizer_files())
    assert manifest.sounds is not None
    assert manifest.images is not None
    kinds = {"input_audio": "audio", "image_url": "image"}
    parts = [part if part["type"] == "text" else {"type": kinds[part["type"]]} for part in content]
    heard = [prepare_sound(manifest.sounds, stored(each)) for each in sounds]
    pictures = [prepare_image(manifest.images, pattern(60, 45))] if picture else []
    prompt = encode_media(tokenizer, manifest, [{"role": "user", "content": parts}], pictures, heard)
    assert prompt.count(AUDIO) == sum(each.features for each in heard)
    assert (PICTURE in prompt) == picture
    runner = ReferenceRunner(bundle, limits=Limits(pages=32), activation="float32")
    features = lambda: placed_features(runner, prompt, pictures, heard)  # noqa: E731
    return tokenizer.decode(list(generate(runner, prompt, TOKENS, Sampler(), features=features)))


def test_an_answer_about_sounds_and_a_picture_is_that_of_one_runner(bundle: Bundle) -> None:
    first, second = sound(32 * 30 + 7), sound(32 * 4, 1)
    content = [
        {"type": "text", "text": "a"},
        heard(wav(first)),
        seen(60, 45),
        {"type": "text", "text": "b"},
        heard(wav(second)),
    ]
    with hearing(bundle) as local:
        assert local.abilities().hears
        # Steps of 24 tokens cut the first sound, which has 31 features.
        answer = chat(local, messages=[{"role": "user", "content": content}], max_tokens=TOKENS, temperature=0)
        assert answer.choices[0].message.content == alone(bundle, content, [first, second], picture=True)
        state = local.state()
        # A second question finds its pages and its features.
        again = chat(local, messages=[{"role": "user", "content": content}], max_tokens=TOKENS, temperature=0)
        assert again.choices[0].message.content == answer.choices[0].message.content
        assert cached(again) > 40
        # Another sound of the same length does not.
        other = [*content[:1], heard(wav(sound(32 * 30 + 7, 2))), *content[2:]]
        changed = chat(local, messages=[{"role": "user", "content": other}], max_tokens=TOKENS, temperature=0)
        assert cached(changed) == 0
        assert changed.choices[0].message.content == alone(bundle, other, [sound(32 * 30 + 7, 2), second], picture=True)
    assert state.ready


def test_the_text_before_a_sound_or_a_picture_may_come_from_a_prefill_worker(bundle: Bundle) -> None:
    content = [{"type": "text", "text": "a long text before everything else"}, heard(wav(sound(32 * 9))), seen(60, 45)]
    request = chat_request(messages=[{"role": "user", "content": content}], max_tokens=TOKENS, temperature=0)
    with hearing(bundle) as local, hearing(bundle) as decode, hearing(bundle) as prefill:
        expected = run(whole(local, request, CALL))
        answer, prefills = run(answer_apart(bundle, decode, prefill, request))
    assert answer.choices == expected.choices
    assert answer.usage.prompt_tokens_details == expected.usage.prompt_tokens_details
    # All whole pages of text, and no other.
    assert (prefills.transfers, prefills.tokens, prefills.fallbacks) == (1, 32, {})


async def answer_apart(
    bundle: Bundle, decode: LocalExecutor, prefill: LocalExecutor, request: ChatCompletionRequest
) -> tuple[Any, PrefillState]:
    """The answer of a decode worker, whose prefill worker is in this process, and what it had computed."""
    engine = decode._engine
    assert isinstance(engine, TokenEngine)
    identity = prefill._pages = PageIdentity.of(bundle.manifest, engine.prefix_key)
    assert identity is not None
    options = PrefillOptions(
        role="decode", prefill_from=("http://prefill",), prefill_tokens=16, local_prefill=False
    )  # fmt: skip
    apart = ApartEngine(engine, identity, options, "fake")
    models = FakeModels(prefill)  # type: ignore[arg-type]
    apart._workers.all[0].upstream.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(models, ApiConfig()))
    )
    try:
        answer = await whole(LocalExecutor(apart, decode._model, workers=decode._workers), request, CALL)
        return answer, apart.prefills()
    finally:
        await apart._workers.close()


def test_recordings_that_cannot_be_heard_are_refused_by_their_part(bundle: Bundle) -> None:
    long = sound(750 * 32 + 1)
    cases = (
        (heard(wav(long)), r"content\[0\].input_audio: .*longer than 1.5 seconds"),
        (heard(b"RIFF"), r"content\[0\].input_audio"),
        ({"type": "input_audio", "input_audio": {"data": "%", "format": "wav"}}, "not base64"),
    )
    with hearing(bundle) as local:
        several = {"role": "user", "content": [heard(b"RIFF"), {"type": "text", "text": "a"}, heard(b"")]}
        with pytest.raises(RequestError, match=r"content\[0\].input_audio: .*; messages\[0\].content\[2\]") as both:
            chat(local, messages=[several], max_tokens=1)
        assert both.value.details["param"] == "messages[0].content[0].input_audio"
        for part, message in cases:
            with pytest.raises(RequestError, match=message) as refused:
                chat(local, messages=[{"role": "user", "content": [part]}], max_tokens=1)
            assert refused.value.details["param"] == "messages[0].content[0].input_audio"
