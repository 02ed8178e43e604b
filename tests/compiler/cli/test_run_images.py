"""`nearfar run --image`: answers about pictures, compared with transformers' model."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from image_families import pattern
from image_files import saved
from light_bundle import few_kernels, one_compilation
from PIL import Image
from rich.console import Console
from video_families import greedy_video_answer
from video_files import grey_video
from vision_families import FAMILIES, IMAGE, greedy_answer, make_vision

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import main
from nearfar.compiler.cli import run as run_module
from nearfar.compiler.cli.answer import Answerer
from nearfar.compiler.cli.chat_commands import Chat, run_command
from nearfar.compiler.cli.conversation import Conversation
from nearfar.compiler.formats import load
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.images.decode_video import open_video
from nearfar.compiler.runtime.images.videos import prepare_video
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.stop_strings import StopAutomaton
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.store.parameters import Parameters

COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, its bundle, the bundle of its text model, and two pictures."""
    folder = tmp_path_factory.mktemp("images")
    make_vision("smolvlm", folder / "checkpoint")
    options = {"quantization": "f32", "context": 256, "activations": ("float32",), "self_test": False}
    with one_compilation(), few_kernels():
        for name, text_only in (("bundle", False), ("text", True)):
            given = CompileOptions(target="cpu", text_only=text_only, **options)  # type: ignore[arg-type]
            compile_model(str(folder / "checkpoint"), folder / name, given)
    for name, size in zip(("wide", "square"), FAMILIES["smolvlm"].sizes, strict=True):
        (folder / f"{name}.png").write_bytes(saved(Image.fromarray(pattern(*size)), "PNG"))
    (folder / "text.png").write_text("not a picture")
    (folder / "grey.webm").write_bytes(grey_video("webm"))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["run", *arguments])
    captured = capsys.readouterr()
    return int(code or 0), captured.out, captured.err


def test_an_answer_about_two_pictures_is_that_of_transformers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = ["--image", str(folder / "wide.png"), "--image", str(folder / "square.png")]
    given = [str(folder / "bundle"), "Which is <image> larger?", *pictures, "--max-tokens", str(COUNT), "--json"]
    code, out, _ = run(capsys, *given)
    assert code == 0
    answer = json.loads(out)
    prompt = answer["prompt_token_ids"]
    # 5 tiles of 4 features each. The mark in the message is text.
    assert prompt.count(IMAGE) == 2 * 5 * 4
    pixels = [pattern(*size) for size in FAMILIES["smolvlm"].sizes]
    assert answer["token_ids"] == greedy_answer(folder / "checkpoint", prompt, pixels, COUNT)


def test_a_conversation_about_pictures_answers_as_single_prompts_do(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = open_bundle(folder / "bundle")
    with closing(open_runner("cpu", bundle, Limits())) as runner:
        answerer = Answerer(runner, Tokenizer(bundle.tokenizer_files()), Sampler(), StopAutomaton([]))
        parameters = Parameters(num_predict=COUNT)
        chat = Chat(Conversation(answerer, "eyes", parameters=parameters), Console(stderr=True, soft_wrap=True))
        found = []
        # The second picture has the same number of tokens as the first, which the runner still has.
        for name in ("wide", "square"):
            capsys.readouterr()
            run_command(chat, f"/image {folder / name}.png")
            assert f"{name}.png (" in capsys.readouterr().err
            answer, _ = chat.conversation.send(chat.content("What is it?"), lambda _: None, lambda: False)
            found.append(answer.token_ids)
            run_command(chat, f"/save {tmp_path / name}.json")
            run_command(chat, "/clear")
        single = []
        for name in ("wide", "square"):
            code, out, _ = run(
                capsys, str(folder / "bundle"), "What is it?", "--image", f"{folder / name}.png",
                "--max-tokens", str(COUNT), "--json",
            )  # fmt: skip
            assert code == 0
            single.append(json.loads(out)["token_ids"])
        assert found == single
        assert found[0] != found[1]
        # The saved picture is the one that was sent.
        run_command(chat, f"/load {tmp_path}/wide.json")
        again, _ = chat.conversation.send("And now?", lambda _: None, lambda: False)
        fresh = Conversation(answerer, "eyes", parameters=parameters)
        fresh.load(json.loads((tmp_path / "wide.json").read_text())["messages"], "", tmp_path)
        assert again.token_ids == fresh.send("And now?", lambda _: None, lambda: False).answer.token_ids
        assert "the picture has an unknown format" in refused_picture(chat, capsys, folder / "text.png")


def refused_picture(chat: Chat, capsys: pytest.CaptureFixture[str], file: Path) -> str:
    capsys.readouterr()
    run_command(chat, f"/image {file}")
    return capsys.readouterr().err


def test_an_answer_about_a_video_is_that_of_transformers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video, checkpoint = folder / "grey.webm", folder / "checkpoint"
    given = [str(folder / "bundle"), "What <video> moves?", "--video", str(video), "--max-tokens", str(COUNT), "--json"]
    code, out, err = run(capsys, *given)
    assert code == 0, err
    answer = json.loads(out)
    prompt = answer["prompt_token_ids"]
    spec = load(str(checkpoint)).images
    assert spec is not None
    prepared = prepare_video(spec, open_video(video.read_bytes()))
    assert prompt.count(IMAGE) == sum(prepared.features) == 3 * 4
    assert answer["token_ids"] == greedy_video_answer(checkpoint, prompt, prepared, COUNT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text", "hi", "--video", "grey.webm"], "--video .*grey.webm: checkpoint sees no pictures"),
        (["bundle", "hi", "--video", "wide.png"], "--video .*wide.png: videos: the video is a picture; send it as"),
        (["bundle", "hi", "--video", "wide.png", "--raw"], "--video needs the chat template"),
        (["text", "hi", "--image", "wide.png"], "--image .*wide.png: checkpoint sees no pictures"),
        (["bundle", "hi", "--image", "missing.png"], "--image .*missing.png: cannot be read: No such file"),
        (["bundle", "hi", "--image", "text.png"], "--image .*text.png: images: the picture has an unknown format"),
        (["bundle", "hi", "--image", "wide.png", "--raw"], "--image needs the chat template"),
    ],
)
def test_pictures_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(folder / each) if "." in each or each in ("text", "bundle") else each for each in arguments]
    code, out, err = run(capsys, *places)
    assert code != 0
    assert not out
    assert re.search(message, " ".join(err.split()))


@pytest.mark.parametrize("option", ["--image", "--video", "--audio"])
def test_nothing_is_compiled_for_a_file_that_cannot_be_read(
    option: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Path]()
    monkeypatch.setattr(run_module, "bundle_from", lambda model, *_, **__: asked.append(model))
    code, _, err = run(capsys, str(folder / "checkpoint"), "hi", option, str(folder / "missing"))
    assert code != 0
    assert "missing: cannot be read: No such file" in " ".join(err.split())
    assert asked == []
