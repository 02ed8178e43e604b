"""The bundles of tiny models of sound with random weights for tests in a browser: a Whisper with windows of one second
and three languages, and a Moonshine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from light_bundle import few_kernels, lighten
from made_once import kept_folder, made_once
from tiny_moonshine import make_moonshine, make_moonshine_streaming
from tiny_whisper import make_whisper


def page_whisper() -> Path:
    """The Whisper, with its self-test. Tests must not change it."""
    return kept_bundle("whisper", make_whisper)


def page_moonshine() -> Path:
    """The Moonshine, with its self-test. Tests must not change it."""
    return kept_bundle("moonshine", lambda checkpoint: make_moonshine(checkpoint, seed=2, scale=0.2))


def page_moonshine_streaming() -> Path:
    """The Moonshine streaming, with its self-test. Tests must not change it."""
    return kept_bundle(
        "moonshine-streaming", lambda checkpoint: make_moonshine_streaming(checkpoint, seed=2, scale=0.3)
    )


def kept_bundle(name: str, make_model: Callable[[Path], object]) -> Path:
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        options = CompileOptions(target="webgpu", quantization="f32", activations=("float32",))
        with TemporaryDirectory() as parent, few_kernels():
            checkpoint = Path(parent) / f"tiny-{name}"
            make_model(checkpoint)
            compile_model(str(checkpoint), folder, options)
        lighten(folder, self_test=True)

    return made_once(kept_folder("bundles") / f"page-{name}", make)
