"""nearfar score: write the logits of a list of tokens under forced decoding, so that two runners can be compared."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.markup import escape

from ..bundle.folder import open_any
from ..bundle.signature import read_trusted_keys
from ..runtime.errors import OutputError, RequestError, reason_of
from ..runtime.generate import PREFILL_CHUNK, score
from ..runtime.runner import Limits
from .model import open_command_runner
from .options import Score
from .output import print_json
from .phases import progress_bars


def run(options: Score) -> None:
    token_ids = parse_tokens(options.tokens)
    bundle = open_any(options.bundle, read_trusted_keys(options.trust))
    runner = open_command_runner(options.runner, bundle, Limits(rows=PREFILL_CHUNK))
    blocks = []
    with progress_bars(quiet=options.json) as bars:
        bars.start()
        task = bars.add_task("scoring", total=len(token_ids))
        for block in score(runner, token_ids, PREFILL_CHUNK):
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
        print_json({"output": str(options.output), "shape": list(logits.shape), "device": runner.device})
    else:
        Console(soft_wrap=True).print(
            f"wrote {escape(str(options.output))}  float32 {logits.shape}, {escape(runner.device)}", highlight=False
        )


def parse_tokens(text: str) -> list[int]:
    """The ids in a text such as "1,2,3". Raises RequestError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--tokens {text!r}: pass integers separated by commas, such as 1,2,3") from error
