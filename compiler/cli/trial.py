"""Chooses a command that tries a new bundle and works on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec

from ..bundle.folder import Bundle, ExportBundle
from ..pipeline.target import check_machine
from ..runtime.errors import NearfarError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from .program import path_word, program

PROMPT, PASSAGE = "hello", "greetings"
# The numpy runner is proposed up to this size of weights in bytes: it unpacks all of them for every token.
NUMPY_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Trial:
    """A line for the user's shell. ``reason`` says why it does not use the bundle's own runner; None if it does."""

    command: str
    reason: str | None = None


def find_trial(bundle: Bundle | ExportBundle) -> Trial:
    """The first command that works here: the bundle's own runner, mlx-lm or mlx-vlm for what ours does not compute,
    numpy for small models, or `nearfar inspect`.
    """
    name = path_word(str(bundle.path))
    look = f"{program()} inspect {name}"
    try:
        with native_silence():
            check_machine(bundle)
        reason = None
    except UnsupportedModel as error:
        if bundle.manifest.transcribes:
            return Trial(look, error.message)
        package = "mlx_lm" if bundle.manifest.spec.vision is None else "mlx_vlm"
        if bundle.manifest.target != "mlx" or find_spec(package) is None:
            return Trial(look, error.message)
        generate = f"{path_word(sys.executable)} -m {package} generate --model {name} --prompt {PROMPT}"
        return Trial(generate, error.message)
    except NearfarError as error:
        reason = f"this machine cannot run the bundle: {error.message}"
    if bundle.manifest.embedding is not None:
        if reason is None and find_spec("fastapi") is not None:
            return Trial(f"{program()} serve {name}")
        return Trial(look, reason or "the bundle makes embeddings; to serve it, run: pip install 'nearfar[serve]'")
    if bundle.manifest.task == "decide":
        return Trial(
            f"{program()} decide {name} {PROMPT} --questions QUESTIONS.json" if reason is None else look, reason
        )
    if bundle.manifest.classifier is not None:
        passage = f" --passage {PASSAGE}" if bundle.manifest.task == "rerank" else ""
        return Trial(f"{program()} run {name} {PROMPT}{passage}" if reason is None else look, reason)
    if bundle.manifest.transcribes:
        return Trial(f"{program()} transcribe SOUND.wav {name}" if reason is None else look, reason)
    options = prompt_options(bundle)
    if options is None:
        return Trial(look, "the bundle's context is too short for a prompt")
    small = isinstance(bundle, Bundle) and sum(shard.size for shard in bundle.manifest.shards) <= NUMPY_BYTES
    if reason is not None and not small:
        return Trial(look, reason)
    runner = [] if reason is None else ["--runner", "numpy"]
    return Trial(" ".join([program(), "run", name, *runner, *options, PROMPT]), reason)


@contextmanager
def native_silence() -> Iterator[None]:
    """Discard messages that graphics drivers print to standard error, such as "XDG_RUNTIME_DIR is invalid"."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def prompt_options(bundle: Bundle | ExportBundle) -> Sequence[str] | None:
    """The options with which `nearfar run` accepts the prompt: none for a chat, --raw if the chat template does not
    accept it.

    None if the prompt does not fit into the bundle's context either way.
    """
    tokenizer = Tokenizer(bundle.tokenizer_files())
    encoders: list[tuple[list[str], Callable[[], list[int]]]] = [
        ([], lambda: tokenizer.encode_chat([{"role": "user", "content": PROMPT}])),
        (["--raw"], lambda: tokenizer.encode(PROMPT)),
    ]
    for options, encode in encoders:
        with suppress(NearfarError):
            if 0 < len(encode()) <= bundle.manifest.context:
                return options
    return None
