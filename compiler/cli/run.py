"""nearfar run: ask a bundle something on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..bundle.folder import Bundle, ExportBundle, open_any
from ..errors import RequestError
from ..ir.sampling import Sampler
from ..pipeline.target import RUNNERS, open_runner
from ..runtime.batch import Limits
from ..runtime.generate import Timings, generate
from ..text.tokenizer import TextStream, Tokenizer
from .output import add_command, print_json
from .sign import add_trust, trusted_keys

DEFAULT_MAX_TOKENS = 256


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "run", run, example="nearfar run qwen3-web 'Why is the sky blue?' --max-tokens 100")
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"stop after N tokens (default: {DEFAULT_MAX_TOKENS}, or what the context holds)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default); 1 samples as the model was trained"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text (default: %(default)s)")
    parser.add_argument("--runner", choices=RUNNERS, help="what computes (default: what the bundle was compiled for)")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without the chat template")
    parser.add_argument(
        "--no-split-special-tokens", action="store_true", help="with --raw: control tokens that the prompt spells out become single tokens"
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of streaming")


def run(options: argparse.Namespace) -> None:
    bundle = open_any(options.bundle, trusted_keys(options))
    tokenizer = Tokenizer(bundle.tokenizer_files())
    prompt = encode(tokenizer, options.prompt, raw=options.raw, split_special_tokens=not options.no_split_special_tokens)
    sampler = Sampler(options.temperature, options.seed)
    max_tokens = options.max_tokens if options.max_tokens is not None else default_max_tokens(bundle, len(prompt))
    runner = open_runner(options.runner or bundle.manifest.target, bundle, Limits())
    timings, stream = Timings(), TextStream(tokenizer)
    token_ids, text = [], ""
    for token in generate(runner, prompt, max_tokens, sampler, timings):
        token_ids.append(token)
        text += show(stream.feed(token), quiet=options.json)
    text += show(stream.finish(), quiet=options.json)
    device = runner.device
    runner.close()
    if options.json:
        print_json(
            {
                "text": text,
                "token_ids": token_ids,
                "prompt_token_ids": prompt,
                "finish_reason": "length" if len(token_ids) == max_tokens else "stop",
                "device": device,
                "timings": {
                    "prompt_tokens": timings.prompt_tokens,
                    "completion_tokens": timings.completion_tokens,
                    "time_to_first_token_seconds": round(timings.time_to_first_token_seconds, 6),
                    "total_seconds": round(timings.total_seconds, 6),
                    "tokens_per_second": round(timings.tokens_per_second, 3),
                },
            }
        )
        return
    print()
    first = f"first token after {timings.time_to_first_token_seconds * 1000:.0f} ms"
    summary = f"{timings.completion_tokens} tokens, {first}, {timings.tokens_per_second:.1f} tokens/s on {escape(device)}"
    Console(stderr=True, soft_wrap=True).print(summary, style="dim", highlight=False)


def encode(tokenizer: Tokenizer, prompt: str, *, raw: bool, split_special_tokens: bool = True) -> list[int]:
    """The prompt as the user's turn of a chat, or as it stands. Raises RequestError for control tokens in a user's turn."""
    if raw:
        return tokenizer.encode(prompt, split_special_tokens=split_special_tokens)
    if not split_special_tokens:
        raise RequestError("--no-split-special-tokens needs --raw: in a chat, only the template writes control tokens")
    return tokenizer.encode_chat([{"role": "user", "content": prompt}])


def default_max_tokens(bundle: Bundle | ExportBundle, prompt_tokens: int) -> int:
    return max(1, min(DEFAULT_MAX_TOKENS, bundle.manifest.context - prompt_tokens + 1))


def show(text: str, *, quiet: bool) -> str:
    if not quiet:
        sys.stdout.write(text)
        sys.stdout.flush()
    return text
