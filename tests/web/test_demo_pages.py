"""`nearfar demo` asks its model that sees about the demo's pictures and gives its recordings to the one that hears, in
headless Chromium.
"""

from __future__ import annotations

import io
from pathlib import Path

from light_bundle import few_kernels, one_compilation
from rich.console import Console

from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.cli.demo import Prompt, compile_ears, hear, show_pictures
from nearfar.compiler.demo import PICTURES, RECORDINGS


def test_the_page_answers_about_each_picture(tmp_path: Path) -> None:
    file = io.StringIO()
    with one_compilation(), few_kernels():
        show_pictures(tmp_path / "eyes", tmp_path / "demo.png", Console(file=file, soft_wrap=True))
    printed = file.getvalue()
    answers = ("The circle is purple.", "The triangle is green.", "There are 3 triangles.", "The digit is 7.")
    for (picture, question), answer in zip(PICTURES, answers, strict=True):
        assert f"{picture} {question}\n{answer}\n" in printed
    assert (tmp_path / "demo-pictures.png").stat().st_size > 10_000


def test_the_page_writes_down_a_recording(tmp_path: Path) -> None:
    with one_compilation(), few_kernels():
        bundle = compile_ears(tmp_path / "ears", Console(file=io.StringIO()))
    said = "set the thermostat to 21 degrees"
    with PageServer(bundle.path, transcriber=bundle.path) as server:
        assert hear(server, RECORDINGS[1:2]) == [Prompt(said, RECORDINGS[1])]
