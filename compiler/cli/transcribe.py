"""nearfar transcribe: write down what is said in a sound file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import AUDIO, CTC
from ..bundle.signature import read_trusted_keys
from ..pipeline.target import check_machine
from ..runtime.audio.ctc import transcriber_of
from ..runtime.audio.formats import write_transcript
from ..runtime.audio.hearing import HEARING_LIMITS
from ..runtime.audio.sound import read_sound_file
from ..runtime.audio.transcribe import LIMITS, TranscriptionOptions, WindowByWindow
from ..runtime.errors import OutputError, reason_of
from ..runtime.runner import require_plan
from ..runtime.text.tokenizer import Tokenizer
from .model import bundle_of, open_command_runner
from .options import Transcribe
from .phases import progress_bars


def run(options: Transcribe) -> None:
    """Raises RequestError and ToolError for sound that cannot be read and for what the model does not have,
    OutputError, and all errors of opening and running the bundle.
    """
    quiet = options.quiet
    samples = read_sound_file(options.sound)
    trusted = read_trusted_keys(options.trust)
    path, from_cache = bundle_of(options.bundle, options.ignore_keys, quiet=quiet)
    bundle = open_any(path, () if from_cache else trusted)
    task = TranscriptionOptions(
        language=options.language,
        translate=options.translate,
        timestamps=options.timestamps or options.format in ("verbose_json", "srt", "vtt"),
        prompt=options.prompt or "",
        continues=options.continue_text,
        temperature=options.temperature,
        seed=options.seed,
    )
    with open_transcriber(bundle, options.runner) as transcriber:
        transcriber.check(task)
        with progress_bars(quiet=quiet, transient=True) as bars:
            bars.start()
            bar = bars.add_task("transcribing", total=None)
            transcript = transcriber.transcribe(
                samples, task, lambda done, total, _: bars.update(bar, completed=done, total=total)
            )
    text = write_transcript(transcript, options.format, stamped=options.timestamps)
    if options.output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{options.output}: cannot be written: {reason_of(error)}; choose another -o") from error


@contextmanager
def open_transcriber(bundle: Bundle | ExportBundle, runner_name: str | None) -> Iterator[WindowByWindow]:
    """Raises RequestError for a bundle that neither transcribes sound nor hears, and the errors of
    `open_command_runner`.
    """
    if isinstance(bundle, ExportBundle) and bundle.manifest.transcribes:
        # Raises an error that names the tools for the bundle.
        check_machine(bundle)
    hears = bundle.manifest.hears
    if not hears:
        require_plan(bundle.manifest, CTC if CTC in bundle.manifest.plan_names else AUDIO)
    runner = open_command_runner(runner_name, bundle, HEARING_LIMITS if hears else LIMITS)
    try:
        yield transcriber_of(runner, Tokenizer(bundle.tokenizer_files()))
    finally:
        runner.close()
