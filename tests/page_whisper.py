"""The bundle of a tiny Whisper with random weights for tests in a browser: windows of one second, three languages."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from light_bundle import lighten, one_compilation
from made_once import kept_folder, made_once
from tiny_whisper import make_whisper


def page_whisper() -> Path:
    """The bundle, with its self-test. Tests must not change it."""
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        options = CompileOptions(target="webgpu", quantization="f32", activations=("float32",))
        with TemporaryDirectory() as parent, one_compilation():
            checkpoint = Path(parent) / "tiny-whisper"
            make_whisper(checkpoint)
            compile_model(str(checkpoint), folder, options)
        lighten(folder, self_test=True)

    return made_once(kept_folder("bundles") / "page-whisper", make)
