"""The recordings of `nearfar run --audio`, which precede the message: the model hears them, or reads what a transcriber
writes down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bundle.folder import open_any
from ..bundle.manifest import Description
from ..bundle.signature import TrustedKey
from ..runtime.audio.prepared_sound import PreparedSound, prepare_sound
from ..runtime.audio.sound import read_sound_file
from ..runtime.audio.transcribe import Transcript, TranscriptionOptions
from ..runtime.batch import FloatArray
from ..runtime.errors import RequestError
from ..shared.script import SharedScript
from .model import bundle_from
from .options import Run
from .transcribe import open_transcriber


@dataclass(frozen=True, slots=True)
class Recording:
    file: Path
    transcript: Transcript

    @property
    def text(self) -> str:
        """What the prompt has in its place."""
        return str(SharedScript.of_thread().ask("transcriptText", self.transcript.text))

    def json(self) -> dict[str, object]:
        transcript = self.transcript
        return {
            "file": str(self.file),
            "text": transcript.text,
            "language": transcript.language,
            "seconds": transcript.duration,
        }


def require_transcriber(options: Run, manifest: Description) -> None:
    """Raises RequestError for recordings that the model cannot answer about. A model that hears needs no
    transcriber.
    """
    if not options.audio:
        if options.transcriber is not None:
            raise RequestError("--transcriber writes down recordings; give some with --audio, or remove the option")
        return
    if not manifest.generates:
        raise RequestError(f"--audio: {manifest.model} generates no text; use a model that does")
    if options.transcriber is None and not manifest.hears:
        raise RequestError(
            f"--audio {options.audio[0]}: {manifest.model} hears nothing; add --transcriber BUNDLE, a model such "
            "as Whisper that writes down what is said"
        )


def read_recordings(files: Sequence[Path]) -> list[tuple[Path, FloatArray]]:
    """Raises RequestError and ToolError, which name the file."""
    return [(file, read_sound_file(file)) for file in files]


def prepare_sounds(
    heard: Sequence[tuple[Path, FloatArray]], options: Run, manifest: Description
) -> list[PreparedSound]:
    """The recordings as a model that hears reads them, unless a transcriber writes them down. Raises RequestError,
    which names the file.
    """
    sounds = list[PreparedSound]()
    if not manifest.hears or options.transcriber is not None:
        return sounds
    assert manifest.sounds is not None
    for file, samples in heard:
        try:
            sounds.append(prepare_sound(manifest.sounds, samples))
        except RequestError as error:
            raise RequestError(f"--audio {file}: {error.message}", **error.details) from error
    return sounds


def write_down(
    heard: Sequence[tuple[Path, FloatArray]], options: Run, trusted: Sequence[TrustedKey]
) -> list[Recording]:
    """Raises the errors of opening and running the transcriber."""
    if options.transcriber is None:
        return []
    catalog, quiet = options.catalog, options.json
    path, from_cache = bundle_from(catalog, options.transcriber, (), trusted, runner=None, quiet=quiet)
    bundle = open_any(path, () if from_cache else trusted)
    # Another target than the model's has another runner.
    runner = "numpy" if options.runner == "numpy" else None
    with open_transcriber(bundle, runner) as transcriber:
        return [Recording(file, transcriber.transcribe(samples, TranscriptionOptions())) for file, samples in heard]


def said(recordings: Sequence[Recording]) -> str:
    """What the recordings are in the prompt."""
    return "".join(recording.text for recording in recordings)
