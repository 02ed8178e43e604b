"""`nearfar score --messages`: logits of conversations with pictures or sound, compared with those of transformers."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hearing_families import AUDIO, make_hearing, own_features, sound, stored, wav
from hearing_families import FAMILIES as HEARING
from image_families import pattern
from image_files import saved
from light_bundle import few_kernels, one_compilation
from PIL import Image
from plain_target import compile_plain
from tolerances import F32, relative_error
from vision_arguments import masks_of, pixels_of
from vision_families import FAMILIES, IMAGE, make_vision

from nearfar.compiler.cli import main
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.images.patches import prepare_image

WIDE, SQUARE = FAMILIES["smolvlm"].sizes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, its bundle, the bundle of its text model, and a picture."""
    folder = tmp_path_factory.mktemp("score")
    make_vision("smolvlm", folder / "checkpoint")
    options: dict[str, Any] = {"quantization": "f32", "context": 256, "activations": ("float32",), "self_test": False}
    with one_compilation(), few_kernels():
        for name, text_only in (("bundle", False), ("text", True)):
            given = CompileOptions(target="cpu", text_only=text_only, **options)
            compile_model(str(folder / "checkpoint"), folder / name, given)
    (folder / "wide.png").write_bytes(saved(Image.fromarray(pattern(*WIDE)), "PNG"))
    (folder / "broken.png").write_text("not a picture")
    return folder


def conversation(folder: Path, *pictures: str) -> Path:
    """A question about ``pictures``, an answer to it, and a question that follows."""
    file = folder / "messages.json"
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    asked = [{"type": "text", "text": "Which is <image> larger?"}, *parts]
    messages = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "the first"},
        {"role": "user", "content": "why?"},
    ]
    file.write_text(json.dumps({"model": "any", "messages": messages}))
    return file


def score(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["score", *arguments])
    captured = capsys.readouterr()
    return int(code or 0), captured.out, captured.err


def logits_of_transformers(folder: Path, token_ids: list[int]) -> Any:
    import torch
    import transformers

    spec = load(str(folder / "checkpoint")).images
    assert spec is not None
    images = [prepare_image(spec, pattern(*size)) for size in (WIDE, SQUARE)]
    model = transformers.SmolVLMForConditionalGeneration.from_pretrained(folder / "checkpoint").float().eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), **pixels_of(spec, images, tiles=False)).logits[0].numpy()


@pytest.mark.parametrize("runner", ["cpu", "numpy"])
def test_the_logits_of_a_conversation_are_those_of_transformers(
    runner: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    square = base64.b64encode(saved(Image.fromarray(pattern(*SQUARE)), "PNG")).decode()
    file = conversation(folder, "wide.png", f"data:image/png;base64,{square}")
    given = ["--messages", str(file), "-o", str(folder / "logits.npy"), "--runner", runner, "--json"]
    code, out, err = score(capsys, str(folder / "bundle"), *given)
    assert code == 0, err
    token_ids = json.loads(out)["prompt_token_ids"]
    # 5 tiles of 4 features for each picture. The mark in the message is text.
    assert token_ids.count(IMAGE) == 2 * 5 * 4
    found = np.load(folder / "logits.npy")
    assert found.shape[0] == len(token_ids)
    assert relative_error(found, logits_of_transformers(folder, token_ids)) <= F32


def test_the_logits_of_a_conversation_with_sound_are_those_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    family = HEARING["gemma4_unified"]
    make_hearing("gemma4_unified", tmp_path / "checkpoint")
    compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 256)
    samples = [sound(length, number) for number, length in enumerate(family.lengths)]
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(each)).decode(), "format": "wav"}}
        for each in samples
    ]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": [parts[0], {"type": "text", "text": "and"}, parts[1]]}]))
    given = ["--messages", str(file), "-o", str(tmp_path / "logits.npy"), "--runner", "numpy", "--json"]
    code, out, err = score(capsys, str(tmp_path / "bundle"), *given)
    assert code == 0, err
    token_ids = json.loads(out)["prompt_token_ids"]
    model = transformers.Gemma4UnifiedForConditionalGeneration.from_pretrained(
        tmp_path / "checkpoint", attn_implementation="eager"
    ).float()
    features, inputs = own_features(model, family, [stored(each) for each in samples])
    assert token_ids.count(AUDIO) == sum(map(len, features))
    with torch.no_grad():
        ids = torch.tensor([token_ids])
        logits = model(input_ids=ids, **inputs, **masks_of(model, token_ids)).logits[0].numpy()
    assert relative_error(np.load(tmp_path / "logits.npy"), logits) <= F32
    # A model that only sees, and data that is no sound.
    for data, problem in (("AAAA", "known format"), ("?", "is not base64")):
        file.write_text(json.dumps([{"role": "user", "content": [{**parts[0], "input_audio": {"data": data}}]}]))
        code, _, err = score(capsys, str(tmp_path / "bundle"), *given)
        assert code == 2
        assert re.search(rf"messages\[0\].content\[0\]: .*({problem})", " ".join(err.split()))


def test_a_recording_is_refused_by_a_model_that_does_not_hear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "heard.json"
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    file.write_text(json.dumps([{"role": "user", "content": [part]}]))
    code, _, err = score(capsys, str(folder / "bundle"), "--messages", str(file), "-o", str(folder / "none.npy"))
    assert code == 2
    assert "is a recording, and checkpoint hears none" in " ".join(err.split())


def test_an_assistants_message_at_the_end_opens_no_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, ids = folder / "last.json", []
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    for count in (1, 2):
        file.write_text(json.dumps(messages[:count]))
        out = score(
            capsys, str(folder / "text"), "--messages", str(file), "-o", str(folder / "x.npy"), "--runner", "numpy",
            "--json",
        )[1]  # fmt: skip
        ids.append(json.loads(out)["prompt_token_ids"])
    # The opening of the answer is followed by the answer itself.
    assert ids[1][: len(ids[0])] == ids[0]
    assert len(ids[1]) > len(ids[0])


@pytest.mark.parametrize(
    ("bundle", "picture", "message"),
    [
        ("text", "wide.png", r"messages\[0\].content\[1\] is a picture, and checkpoint sees none"),
        ("bundle", "missing.png", r"messages\[0\].content\[1\]: missing.png cannot be read: No such file"),
        ("bundle", "broken.png", r"messages\[0\].content\[1\]: images: the picture has an unknown format"),
        (
            "bundle",
            "data:image/png;base64,AAA",
            r"\[1\]: the data: URL of the image is not base64",
        ),
        (
            "bundle",
            "https://example.org/a.png",
            r"\[1\]: 'https://example.org/a.png' is not fetched",
        ),
        ("bundle", "a\0b", r"messages\[0\].content\[1\]: .* is not a path"),
    ],
)
def test_pictures_that_cannot_be_read_are_refused(
    bundle: str, picture: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conversation(folder, picture)
    code, out, err = score(capsys, str(folder / bundle), "--messages", str(file), "-o", str(folder / "none.npy"))
    assert (code, out) == (2, "")
    assert re.search(message, " ".join(err.split()))
    assert not (folder / "none.npy").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("[]", "has no messages"),
        ('{"messages": "hi"}', "has no messages"),
        ("[1]", r"messages\[0\] must be an object with a string 'role'"),
        ('[{"role": "user", "content": 1}]', r"messages\[0\].content must be a string, or a list of parts"),
        ('[{"role": "user", "content": [{"type": "input_audio"}]}]', r"messages\[0\].content\[0\] must be"),
        ('[{"role": "user", "content": [1]}]', r"messages\[0\].content\[0\] must be"),
    ],
)
def test_files_that_have_no_conversation_are_refused(
    text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "wrong.json"
    file.write_bytes(text.encode("latin-1"))
    code, _, err = score(capsys, str(folder / "bundle"), "--messages", str(file), "-o", str(folder / "none.npy"))
    assert code == 2
    assert re.search(message, " ".join(err.split()))


@pytest.mark.parametrize("more", [[], ["--tokens", "1", "--messages", "any.json"]])
def test_the_tokens_come_from_one_place(more: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = score(capsys, str(folder / "text"), "-o", str(folder / "none.npy"), *more)
    assert code == 2
    assert "either --tokens IDS or --messages FILE" in " ".join(err.split())
