"""nearfar run: get one answer from a bundle on this machine, or have a conversation with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import GENERATE, Description, Manifest
from ..bundle.signature import read_trusted_keys
from ..formats.peft import read_adapter
from ..given_file import MAX_MEDIA_BYTES, read_given
from ..ir.sampling import DEFAULTS
from ..measure.report import quantization_of
from ..runtime.errors import RequestError
from ..runtime.images.decode import Bytes, decode_image
from ..runtime.images.decode_video import open_video
from ..runtime.images.patches import PreparedImage, prepare_image
from ..runtime.images.videos import VideoFrames, prepare_video
from ..runtime.media import encode_media, placed_features
from ..runtime.runner import Limits, Runner, require_plan
from ..runtime.text.reasoning import Parts
from ..runtime.text.stop_strings import StopAutomaton
from ..runtime.text.tokenizer import Tokenizer
from ..store.model import StoredModel
from ..store.opening import with_template
from ..store.parameters import Parameters
from ..store.store import Store
from .answer import Answer, Answerer, AnswerWriter, print_speed
from .chat import converse
from .conversation import Conversation, sampler_of
from .messages import require_videos
from .model import bundle_from, open_command_runner, stored_of
from .options import Run
from .output import print_json
from .recordings import Recording, prepare_sounds, read_recordings, require_transcriber, said, write_down
from .run_encoder import (
    encode_hypotheses,
    encode_text,
    print_encoded,
    print_labels,
    refuse_encoder_options,
    require_dimensions,
)

DEFAULT_MAX_TOKENS = 256


def run(options: Run) -> None:
    """Raises RequestError for options that exclude each other, and all errors of opening and running the bundle."""
    check_options(options)
    text = read_prompt(options)
    needs = {"--json": options.json, "--raw": options.raw, "--image": options.image}
    needs |= {"--video": options.video}
    if text is None and any(needs.values()):
        name = next(name for name, given in needs.items() if given)
        raise RequestError(f"{name} needs a prompt; pass it as an argument or on standard input")
    trusted = read_trusted_keys(options.trust)
    # What cannot be read is reported before a checkpoint is compiled, which takes a minute.
    decoded, heard = decode_pictures(options.image, options.video), read_recordings(options.audio)
    path, from_cache = bundle_from(
        options.catalog, options.bundle, options.ignore_keys, trusted, runner=options.runner, quiet=options.json
    )
    stored = stored_of(options.bundle)
    # A bundle that was compiled here needs no signature.
    bundle = with_template(open_any(path, () if from_cache else trusted), stored)
    tokenizer = Tokenizer(bundle.tokenizer_files())
    refuse_sound(bundle.manifest)
    require_transcriber(options, bundle.manifest)
    pictures = prepare_pictures(decoded, bundle.manifest)
    sounds = prepare_sounds(heard, options, bundle.manifest)
    if not bundle.manifest.generates:
        encode_once(options, bundle, tokenizer, text)
        return
    refuse_encoder_options(options, bundle.manifest.model)
    # The options count more than what a created model has.
    fields = {**({} if stored is None else stored.parameters.fields()), **given_fields(options)}
    if not fields.get("temperature") and (options.top_p is not None or options.top_k is not None):
        raise RequestError("--top-p and --top-k need --temperature above 0; at 0, the likeliest token is always chosen")
    sampler = sampler_of(fields, random=stored is not None and stored.parameters.seed == -1 and options.seed is None)
    stops = StopAutomaton(fields.get("stop", ()))
    recordings = write_down(heard, options, trusted)
    begun = [] if options.raw else first_messages(options.system, stored)
    if text is None:
        # A model without a template cannot chat. Report that before the user types the first message.
        encode(tokenizer, "", raw=False)
        prompt: list[int] = []
    elif pictures or sounds:
        content = [
            *({"type": str(picture.kind)} for picture in pictures),
            *({"type": "audio"} for _ in sounds),
            *({"type": "text", "text": written} for written in [said(recordings) + text] if written),
        ]
        messages = [*begun, {"role": "user", "content": content}]
        prompt = encode_media(tokenizer, bundle.manifest, messages, pictures, sounds)
    else:
        split = options.split_special_tokens
        prompt = encode(tokenizer, said(recordings) + text, raw=options.raw, split_special_tokens=split, begun=begun)
    adapter = None if stored is None else Store.of_user().adapter(stored)
    runner = open_command_runner(options.runner, bundle, Limits(adapters=0 if adapter is None else 1))
    try:
        answerer = Answerer(runner, tokenizer, sampler, stops, write_adapter(runner, adapter))
        if text is None:
            converse(started(options, answerer, stored), f"{weights_of(bundle)}, on {runner.device}", stored)
            return
        max_tokens = fields.get("max_tokens")
        if max_tokens is None:
            max_tokens = default_max_tokens(bundle, len(prompt))
        writer = AnswerWriter()
        features = partial(placed_features, runner, prompt, pictures, sounds)
        answer = answerer.answer(prompt, max_tokens, no_output if options.json else writer, features=features)
        device = runner.device
    finally:
        runner.close()
    if options.json:
        print_json(answer_json(answer, prompt, device, recordings))
    else:
        writer.end_reasoning()
        print(flush=True)
        print_speed(answer, f"on {device}")


def given_fields(options: Run) -> dict[str, Any]:
    """The options of sampling that were given, by the names of OpenAI's API."""
    given = {name: value for name in (*DEFAULTS, "seed", "max_tokens") if (value := getattr(options, name)) is not None}
    return {**given, "stop": list(options.stop)} if options.stop else given


def started(options: Run, answerer: Answerer, stored: StoredModel | None) -> Conversation:
    """The conversation that the options and a created model begin. Raises RequestError."""
    names = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
    given = Parameters.read({names.get(name, name): value for name, value in given_fields(options).items()}, "--")
    return Conversation(
        answerer,
        str(options.bundle),
        system=options.system if options.system is not None or stored is None else stored.system,
        parameters=given if stored is None else given.over(stored.parameters),
        messages=() if stored is None else [message.model_dump() for message in stored.messages],
    )


def first_messages(system: str | None, stored: StoredModel | None) -> list[dict[str, Any]]:
    """What precedes a message: the system prompt, and what a created model has."""
    inherited = None if stored is None else stored.system
    first = system if system is not None else inherited
    messages = [] if stored is None else [message.model_dump() for message in stored.messages]
    return [*([{"role": "system", "content": first}] if first else []), *messages]


def write_adapter(runner: Runner, folder: Path | None) -> int:
    """Load a created model's LoRA adapter. Returns its slot, -1 for none. Raises what reading it raises."""
    if folder is None:
        return -1
    manifest = runner.manifest
    if not isinstance(manifest, Manifest):
        raise RequestError(f"a bundle for {manifest.target} has no adapters; use one for cpu, cuda or webgpu")
    for name, values in read_adapter(folder, manifest).items():
        runner.write_state(name, 0, values)
    return 0


def weights_of(bundle: Bundle | ExportBundle) -> str:
    manifest = bundle.manifest
    return f"{manifest.model} in {quantization_of(manifest)}, {manifest.context:,} tokens of context"


def refuse_sound(manifest: Description) -> None:
    if manifest.transcribes:
        raise RequestError(f"{manifest.model} transcribes sound; use nearfar transcribe SOUND MODEL")


def encode_once(options: Run, bundle: Bundle | ExportBundle, tokenizer: Tokenizer, text: str | None) -> None:
    """Print the vector or the scores of a text. Raises RequestError for options of models that generate text."""
    if text is None or options.system is not None:
        require_plan(bundle.manifest, GENERATE)
    require_dimensions(bundle.manifest, options.dimensions)
    if options.labels:
        hypotheses, texts = encode_hypotheses(bundle.manifest, tokenizer, replace(options, prompt=text))
    else:
        encoded = encode_text(bundle.manifest, tokenizer, text or "", options.passage, truncate=options.truncate)
    runner = open_command_runner(options.runner, bundle, Limits())
    try:
        if options.labels:
            print_labels(runner, options, hypotheses, texts)
        else:
            print_encoded(runner, tokenizer, encoded, as_json=options.json, dimensions=options.dimensions)
    finally:
        runner.close()


def check_options(options: Run) -> None:
    for name, given in {"image": options.image, "video": options.video, "audio": options.audio}.items():
        if given and options.raw:
            raise RequestError(
                f"--{name} needs the chat template, which --raw switches off; use only one of the two options"
            )
    if options.raw and options.system is not None:
        raise RequestError(
            "--system needs the chat template, which --raw switches off; use only one of the two options"
        )
    if not options.labels and (options.hypothesis_template is not None or options.multi_label):
        name = "multi-label" if options.multi_label else "hypothesis-template"
        raise RequestError(f"--{name} needs --labels; give them, or remove the option")


def decode_pictures(files: Sequence[Path], videos: Sequence[Path]) -> list[tuple[str, Bytes | VideoFrames]]:
    """The pictures and videos in files, each with its option and path. Raises RequestError for files that cannot be
    read, ToolError without their decoders.
    """
    decoded = list[tuple[str, Bytes | VideoFrames]]()
    for option, file in [*(("--image", file) for file in files), *(("--video", file) for file in videos)]:
        place = f"{option} {file}"
        try:
            data = read_given(file, MAX_MEDIA_BYTES)
            decoded.append((place, decode_image(data) if option == "--image" else open_video(data)))
        except OSError as error:
            raise RequestError(f"{place}: cannot be read: {error.strerror}") from error
        except RequestError as error:
            raise RequestError(f"{place}: {error.message}", **error.details) from error
    return decoded


def prepare_pictures(decoded: Sequence[tuple[str, Bytes | VideoFrames]], manifest: Description) -> list[PreparedImage]:
    """As the model sees them. Raises RequestError for a model that sees none, and for what it cannot see."""
    spec, pictures = manifest.images, list[PreparedImage]()
    for place, content in decoded:
        if spec is None:
            raise RequestError(f"{place}: {manifest.model} sees no pictures; use the bundle of a model that does")
        try:
            if isinstance(content, VideoFrames):
                require_videos(spec, manifest.model)
                pictures.append(prepare_video(spec, content))
            else:
                pictures.append(prepare_image(spec, content))
        except RequestError as error:
            raise RequestError(f"{place}: {error.message}", **error.details) from error
    return pictures


def read_prompt(options: Run) -> str | None:
    """The prompt. If it is "-", or missing without a terminal, it is read from standard input; None on a terminal.
    Recordings may be the whole message: then it may be empty.

    Raises RequestError for standard input that is empty or not UTF-8.
    """
    if options.prompt not in (None, "-"):
        return str(options.prompt)
    if options.prompt is None and sys.stdin.isatty():
        return "" if options.audio else None
    text = piped_text()
    if not text and not options.audio:
        raise RequestError("the prompt on standard input is empty; pass a prompt as an argument or through a pipe")
    return text


def piped_text() -> str:
    """Standard input without the newline that `echo` adds. Raises RequestError if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8 (byte {error.start}); convert it, for example with iconv"
        ) from error


def answer_json(answer: Answer, prompt: list[int], device: str, recordings: Sequence[Recording] = ()) -> dict[str, Any]:
    timings = answer.timings
    return {
        "text": answer.text,
        **({"reasoning": answer.reasoning} if answer.reasoning else {}),
        "token_ids": answer.token_ids,
        "prompt_token_ids": prompt,
        "finish_reason": answer.finish_reason,
        "device": device,
        **({"transcripts": [recording.json() for recording in recordings]} if recordings else {}),
        "timings": {
            "prompt_tokens": timings.prompt_tokens,
            "completion_tokens": timings.completion_tokens,
            "time_to_first_token_seconds": round(timings.time_to_first_token_seconds, 6),
            "total_seconds": round(timings.total_seconds, 6),
            "tokens_per_second": round(timings.tokens_per_second, 3),
        },
    }


def encode(
    tokenizer: Tokenizer,
    prompt: str,
    *,
    raw: bool,
    split_special_tokens: bool = True,
    begun: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The token ids of the prompt, as the user's turn of a chat after the messages ``begun``, or as plain text.

    Raises RequestError if control tokens are requested in a chat.
    """
    if raw:
        return tokenizer.encode(prompt, split_special_tokens=split_special_tokens)
    if not split_special_tokens:
        raise RequestError("--no-split-special-tokens needs --raw; in a chat, only the template writes control tokens")
    return tokenizer.encode_chat([*begun, {"role": "user", "content": prompt}])


def default_max_tokens(bundle: Bundle | ExportBundle, prompt_tokens: int) -> int:
    return max(1, min(DEFAULT_MAX_TOKENS, bundle.manifest.context - prompt_tokens + 1))


def no_output(parts: Parts) -> None:
    """Replaces an `AnswerWriter` if the text is printed at the end."""
