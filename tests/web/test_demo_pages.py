"""`nearfar demo` asks its model that sees about the demo's pictures and gives its recordings to the one that hears, in
headless Chromium.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from light_bundle import few_kernels, one_compilation
from plain_target import without_kernels
from rich.console import Console

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.cli import demo, main
from nearfar.compiler.cli.demo import Prompt, compile_demo, hear, show_pictures
from nearfar.compiler.demo import PICTURES, RECORDINGS


@pytest.mark.exhaustive
def test_the_page_answers_about_each_picture(tmp_path: Path) -> None:
    file = io.StringIO()
    with one_compilation(), few_kernels():
        show_pictures(tmp_path, tmp_path / "demo.png", Console(file=file, soft_wrap=True))
    printed = file.getvalue()
    answers = ("The circle is purple.", "The triangle is green.", "There are 3 triangles.", "The digit is 7.")
    for (picture, question), answer in zip(PICTURES, answers, strict=True):
        assert f"{picture} {question}\n{answer}\n" in printed
    assert (tmp_path / "demo-pictures.png").stat().st_size > 10_000


@pytest.mark.exhaustive
def test_the_page_writes_down_a_recording(tmp_path: Path) -> None:
    with one_compilation(), few_kernels():
        bundle = compile_demo("demo-ears", tmp_path, Console(file=io.StringIO()))
    said = "set the thermostat to 21 degrees"
    with PageServer(bundle.path, transcriber=bundle.path) as server:
        assert hear(server, RECORDINGS[1:2]) == [Prompt(said, RECORDINGS[1])]


def test_demo_models_are_served_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    served = list[tuple[str, bool]]()

    def serve(server: PageServer, *_: object) -> None:
        served.append((open_bundle(server.bundle).manifest.model, server.transcribes))

    monkeypatch.setattr(demo, "serve", serve)
    with without_kernels():
        assert main(["demo", "demo-eyes", "--serve", "--transcriber", "demo-ears"]) == 0
    assert served == [("nearfar-demo-eyes", True)]


def test_a_demo_model_that_hears_nothing_is_no_transcriber(capsys: pytest.CaptureFixture[str]) -> None:
    with without_kernels():
        assert main(["demo", "--serve", "--transcriber", "demo"]) != 0
    assert "--transcriber demo: transcribes no sound" in " ".join(capsys.readouterr().err.split())
