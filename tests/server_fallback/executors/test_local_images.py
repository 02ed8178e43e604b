"""Chats with images on our own engine: from a message's part to the tokens and pixels of a request."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_source import VOCAB_SIZE, FakeSource, text_model
from local_requests import chat, chat_request, run
from PIL import Image

from nearfar.compiler.ir.images import EvenTiles, ImagePrompt, ImageSpec, LongestEdge, PositionSpec
from nearfar.compiler.ir.videos import ByRate, FrameArea, VideoPrompt, VideoSpec
from nearfar.compiler.runtime.errors import CheckpointError, RequestError
from nearfar.compiler.runtime.images.patches import cut_image
from nearfar.server_fallback.engine.images import PromptImage
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.model_table import ModelEntry
from nearfar.server_fallback.images import reader
from nearfar.server_fallback.images.options import ImageOptions
from nearfar.server_fallback.images.reader import ImageReader
from nearfar.server_fallback.schema.tokenize import TokenizeRequest
from nearfar.server_fallback.text.grammar.grammar_compiler import GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.text_workers import TextWorkers

MARKERS = ("<image>", "<row>", "<end>")
# The tokenizer's ids are the bytes, and the markers follow 259 tokens.
IMAGE, ROW, END = range(VOCAB_SIZE - 1, VOCAB_SIZE + 2)
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}[assistant]"
)
# A tile of 8 x 8 pixels has 4 features.
SPEC = ImageSpec(
    patch=2,
    block=2,
    order="channel_row_column",
    filter="bilinear",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    size=LongestEdge(pixels=16, most=64),
    tiles=EvenTiles(side=8),
    positions=PositionSpec("plain", 4),
    prompt=ImagePrompt("<image>", "<image>", IMAGE, tile="<row>", overview="<row>", whole="<row>", end="<end>"),
)


def pixels(seed: int, width: int = 16, height: int = 16) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def data_url(picture: npt.NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@contextmanager
def seeing(folder: Path, template: str = TEMPLATE, **options: Any) -> Iterator[tuple[LocalExecutor, FakeSource]]:
    """An executor whose model reads images, and its engine."""
    source = FakeSource("yes")
    model = replace(text_model(folder, template, markers=MARKERS, special=True), images=SPEC)
    reader = ImageReader(SPEC, ImageOptions(**options))
    local = LocalExecutor(
        source, model, workers=TextWorkers(Grammars(GrammarCompiler(), lambda: model.vocabulary), images=reader)
    )
    try:
        yield local, source
    finally:
        run(local.close())


def test_an_image_of_a_message_becomes_tokens_and_tiles(tmp_path: Path) -> None:
    picture = pixels(1)
    content = [{"type": "text", "text": "see "}, part(data_url(picture)), {"type": "text", "text": "?"}]
    with seeing(tmp_path) as (local, source):
        answer = chat(local, messages=[{"role": "user", "content": content}])
    [request] = source.requests
    # Four tiles in two rows, and the overview.
    tile = [ROW, *[IMAGE] * 4]
    assert request.prompt_ids == [*b"[user]see ", *tile * 5, END, *b"?[assistant]"]
    cut = cut_image(SPEC, picture)
    assert [(image.offset, image.length, image.first) for image in request.images] == [
        (11 + 5 * index, 4, 4 * index) for index in range(5)
    ]
    for image, expected in zip(request.images, cut.tiles, strict=True):
        assert image.key == cut.key
        assert image.pixels is not None
        assert np.array_equal(image.pixels, expected)
    assert answer.usage.prompt_tokens == len(request.prompt_ids)


def test_the_images_of_all_messages_are_in_their_places_and_answers_share_them(tmp_path: Path) -> None:
    first, second = pixels(1, 16, 8), pixels(2)
    messages = [
        {"role": "user", "content": [part(data_url(first)), {"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [part(data_url(second)), part(data_url(first))]},
    ]
    with seeing(tmp_path) as (local, source):
        chat(local, messages=messages, n=2)
    one, other = source.requests
    assert one.images is other.images
    keys = [cut_image(SPEC, picture).key for picture in (first, second, first)]
    assert [key for key, _ in groups(one.images)] == keys
    assert [index for index, token in enumerate(one.prompt_ids) if token == IMAGE] == [
        place for image in one.images for place in range(image.offset, image.end)
    ]


def groups(images: Any) -> list[tuple[str, list[PromptImage]]]:
    found: list[tuple[str, list[PromptImage]]] = []
    for image in images:
        if image.first == 0:
            found.append((image.key, []))
        found[-1][1].append(image)
    return found


def test_marks_in_the_text_of_messages_are_text(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "<image>"}, part(data_url(pixels(1, 8, 8))), {"type": "text", "text": "<ima"}]
    with seeing(tmp_path) as (local, source):
        chat(local, messages=[{"role": "user", "content": content}, {"role": "user", "content": "ge><image>"}])
    [request] = source.requests
    count = sum(image.length for image in request.images)
    assert list(request.prompt_ids).count(IMAGE) == count > 0
    assert bytes(token for token in request.prompt_ids if token < 256).decode() == (
        "[user]<image><ima[user]ge><image>[assistant]"
    )


def test_a_chat_without_images_reads_as_before(tmp_path: Path) -> None:
    with seeing(tmp_path) as (local, source):
        chat(local, messages=[{"role": "user", "content": "<image>"}])
    assert source.requests[0].images == []
    assert bytes(source.requests[0].prompt_ids) == b"[user]<image>[assistant]"


def test_tokenize_counts_images(tmp_path: Path) -> None:
    messages = chat_request(messages=[{"role": "user", "content": [part(data_url(pixels(1)))]}]).messages
    with seeing(tmp_path) as (local, _):
        found = run(local.tokenize(TokenizeRequest(model="fake", messages=messages)))
    assert found.tokens.count(IMAGE) == 20


def refused(folder: Path, *urls: str, template: str = TEMPLATE, **options: Any) -> RequestError:
    content = [{"type": "text", "text": "see"}, *map(part, urls)]
    with seeing(folder, template, **options) as (local, source), pytest.raises(RequestError) as refusal:
        chat(local, messages=[{"role": "user", "content": "hi"}, {"role": "user", "content": content}])
    assert source.requests == []
    return refusal.value


@pytest.mark.parametrize(
    ("url", "message", "code"),
    [
        ("https://example.org/cat.png", "this server fetches no images; send the image as", "invalid_image_url"),
        ("data:image/png;base64,YQ=", "the data: URL of the image is not base64", "invalid_image_url"),
        ("data:image/png;base64,YWJj", "the picture has an unknown format", "invalid_image"),
        ("data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=", "the picture is an SVG", "invalid_image"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(tmp_path: Path, url: str, message: str, code: str) -> None:
    error = refused(tmp_path, data_url(pixels(1)), url)
    param = "messages[1].content[2].image_url"
    assert error.message.startswith(f"{param}: {message}")
    assert (error.details["param"], error.details["code"]) == (param, code)


def test_an_error_names_the_first_wrong_images(tmp_path: Path) -> None:
    wrong = ["data:image/png;base64,YWJj", "ftp://example.org/cat.png", "data:image/png;base64,YQ="]
    error = refused(tmp_path, wrong[0], data_url(pixels(1)), *wrong[1:], *wrong)
    where = [f"messages[1].content[{index}].image_url" for index in range(1, 8)]
    named = [each for each in where if each in error.message]
    assert named == [where[0], where[2], where[3], where[4]]
    assert (error.details["param"], error.details["code"]) == (where[0], "invalid_image")


def test_images_beyond_the_bounds_are_refused(tmp_path: Path) -> None:
    small, large = data_url(pixels(1, 8, 8)), data_url(pixels(1, 9, 8))
    error = refused(tmp_path, small, large, max_pixels=64)
    assert "has 9 x 8 pixels, and at most 64 are allowed" in error.message
    error = refused(tmp_path, small, small, max_images=1)
    assert error.message == "the messages have 2 images; at most 1 are supported"
    assert error.details["param"] == "messages[1].content[2].image_url"


def test_a_template_that_writes_no_mark_is_an_error(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    error = refused(tmp_path, data_url(pixels(1)), template=template)
    assert "does not write '<image>' once for each of the 1 pictures" in error.message
    assert error.details["param"] == "messages"


def test_a_tokenizer_that_does_not_know_the_placeholder_is_an_error(tmp_path: Path) -> None:
    with seeing(tmp_path) as (local, _):
        prompt = replace(SPEC.prompt, placeholder="<tool>")
        local._model = replace(local._model, images=replace(SPEC, prompt=prompt))
        local._workers.images.spec = local._model.images  # type: ignore[union-attr]
        with pytest.raises(CheckpointError, match="20 times '<tool>', and the prompt 0 times token"):
            chat(local, messages=[{"role": "user", "content": [part(data_url(pixels(1)))]}])


def test_a_model_that_reads_texts_only_refuses_images_by_name(tmp_path: Path) -> None:
    local = LocalExecutor(FakeSource("x"), text_model(tmp_path))
    with pytest.raises(RequestError, match="is an image, and this model reads texts only") as error:
        chat(local, messages=[{"role": "user", "content": [part("data:,")]}])
    assert error.value.details["param"] == "messages[0].content[0]"


def test_cards_and_abilities_say_which_inputs_a_model_takes(tmp_path: Path) -> None:
    blind = LocalExecutor(FakeSource("x"), text_model(tmp_path))
    with seeing(tmp_path) as (local, _):
        for each, inputs in ((blind, ["text"]), (local, ["text", "image"])):
            cards = ModelEntry("m", "m", 1, each, aliases=["n"], adapters={"a": ""}).cards()
            assert [card.input_modalities for card in cards] == [inputs] * 3
            assert each.abilities().vision == ("image" in inputs)
            assert not each.abilities().video


def test_a_model_that_reads_videos_says_so_if_their_files_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = ByRate(fps=1.0, least=1, most=8)
    video = VideoSpec(sampling, FrameArea(64), 1, VideoPrompt("<video>", "{features}"))
    with seeing(tmp_path) as (local, _):
        local._model = replace(local._model, images=replace(SPEC, video=video))
        for there in (True, False):
            monkeypatch.setattr(reader, "find_spec", lambda _, there=there: there or None)
            (card,) = ModelEntry("m", "m", 1, local).cards()
            assert card.input_modalities == ["text", "image", *(["video"] if there else [])]
            assert local.abilities().video == there
