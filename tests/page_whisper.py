"""The bundles of tiny models of sound with random weights for tests in a browser: a Whisper with windows of one second
and three languages, Moonshines, a Parakeet, and a model that chats about sounds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hearing_families import make_hearing
from light_bundle import Tokens, few_kernels, lighten
from made_once import kept_folder, made_once
from tiny_moonshine import make_moonshine, make_moonshine_streaming
from tiny_parakeet import make_parakeet
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


def page_parakeet() -> Path:
    """The Parakeet, which reads 20 rows of encoded sound at once, with its self-test. Tests must not change it."""
    return kept_bundle(
        "parakeet", lambda checkpoint: make_parakeet(checkpoint, num_mel_bins=80), context=20, tokens="many"
    )


def page_listener() -> Path:
    """A Gemma 4 that reads sounds and pictures in chats, with its self-test. Tests must not change it."""
    return kept_bundle("listener", lambda checkpoint: make_hearing("gemma4_unified", checkpoint), context=256)


def kept_bundle(
    name: str, make_model: Callable[[Path], object], *, context: int | None = None, tokens: Tokens = "few"
) -> Path:
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        options = CompileOptions(target="webgpu", quantization="f32", activations=("float32",), context=context)
        with TemporaryDirectory() as parent, few_kernels(tokens=tokens):
            checkpoint = Path(parent) / f"tiny-{name}"
            make_model(checkpoint)
            compile_model(str(checkpoint), folder, options)
        lighten(folder, self_test=True, tokens=tokens)

    return made_once(kept_folder("bundles") / f"page-{name}", make)
