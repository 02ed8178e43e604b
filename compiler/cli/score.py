"""nearfar score: write the logits of a list of tokens under forced decoding, so that two runners can be compared."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from ..bundle.folder import open_any
from ..errors import OutputError, RequestError, reason_of
from ..pipeline.target import RUNNERS
from ..runtime.batch import Limits
from ..runtime.generate import PREFILL_CHUNK, score
from .output import add_command, print_json
from .phases import progress_bars
from .runner import open_command_runner
from .sign import add_trust, trusted_keys


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "score",
        run,
        example="nearfar score qwen3-web --tokens 1,2,3 -o logits.npy --runner numpy",
    )
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("--tokens", required=True, metavar="IDS", help="token ids, separated by commas")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="a .npy file: float32 (n, V), row i predicts token i + 1",
    )
    parser.add_argument(
        "--runner", choices=RUNNERS, help="the runner that computes (default: the target of the bundle)"
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    token_ids = parse_tokens(options.tokens)
    bundle = open_any(options.bundle, trusted_keys(options))
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
