"""nearfar score: write the logits of tokens, or of a conversation with pictures and sound, under forced decoding, so
that two runners can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.markup import escape

from ..bundle.folder import open_any
from ..bundle.signature import read_trusted_keys
from ..runtime.audio.prepared_sound import PreparedSound
from ..runtime.errors import OutputError, RequestError, reason_of
from ..runtime.generate import PREFILL_CHUNK, check_prompt, score
from ..runtime.images.patches import PreparedImage
from ..runtime.media import placed_features
from ..runtime.runner import Limits
from ..runtime.text.tokenizer import Tokenizer
from .messages import read_messages
from .model import open_command_runner
from .options import Score
from .output import new_console, print_json
from .phases import progress_bars


def run(options: Score) -> None:
    if (options.tokens is None) == (options.messages is None):
        raise RequestError("pass the tokens to score: either --tokens IDS or --messages FILE")
    token_ids = [] if options.tokens is None else parse_tokens(options.tokens)
    bundle = open_any(options.bundle, read_trusted_keys(options.trust))
    pictures: Sequence[PreparedImage] = ()
    sounds: Sequence[PreparedSound] = ()
    if options.messages is not None:
        conversation = read_messages(options.messages, bundle.manifest)
        token_ids = conversation.encode(Tokenizer(bundle.tokenizer_files()), bundle.manifest)
        pictures, sounds = conversation.pictures, conversation.sounds
    runner = open_command_runner(options.runner, bundle, Limits(rows=PREFILL_CHUNK))
    check_prompt(runner, token_ids, 0)
    placed = placed_features(runner, token_ids, pictures, sounds)
    blocks = []
    with progress_bars(quiet=options.json) as bars:
        bars.start()
        task = bars.add_task("scoring", total=len(token_ids))
        for block in score(runner, token_ids, PREFILL_CHUNK, placed):
            blocks.append(block)
            bars.advance(task, len(block))
    logits = np.concatenate(blocks)
    runner.close()
    try:
        with options.output.open("wb") as file:
            np.save(file, logits)
    except OSError as error:
        if options.output.is_file():
            # A file with only some of the rows would look like a shorter text.
            options.output.unlink()
        raise OutputError(f"{options.output}: cannot be written: {reason_of(error)}; choose another -o") from error
    if options.json:
        described = {"output": str(options.output), "shape": list(logits.shape), "device": runner.device}
        print_json({**described, "prompt_token_ids": list(token_ids)})
    else:
        new_console(soft_wrap=True).print(
            f"wrote {escape(str(options.output))}  float32 {logits.shape}, {escape(runner.device)}", highlight=False
        )


def parse_tokens(text: str) -> list[int]:
    """The ids in a text such as "1,2,3". Raises RequestError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--tokens {text!r}: pass integers separated by commas, such as 1,2,3") from error
