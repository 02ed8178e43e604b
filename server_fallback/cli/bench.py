"""nearfar bench serve: measures how fast an OpenAI-compatible server answers under load."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.compiler.cli.output import add_command
from nearfar.compiler.errors import RequestError, ToolError, Unavailable

from .numbers import count

if TYPE_CHECKING:
    from ..bench.summary import Summary

EXAMPLE = (
    "nearfar bench serve http://127.0.0.1:8000 --concurrency 1 8 32 --input-tokens 100 1000 --output-tokens 100 200"
)
KEY_VARIABLE = "NEARFAR_API_KEY"


def add_parser(commands: Any) -> None:
    benches = add_command(commands, "bench", run, example=EXAMPLE)
    kinds = benches.add_subparsers(metavar="WHAT", required=True)
    parser = add_command(kinds, "serve", run, summary="measure an OpenAI-compatible server under load", example=EXAMPLE)
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument("--model", metavar="NAME", help="the model (default: the first that the server lists)")
    parser.add_argument(
        "--concurrency",
        type=count,
        nargs="+",
        default=[1, 4, 8, 16, 32],
        metavar="N",
        help="numbers of clients that send requests at once (default: 1 4 8 16 32)",
    )
    parser.add_argument(
        "--requests",
        type=count,
        metavar="N",
        help="requests for each of these numbers (default: four for each client, at least 8)",
    )
    parser.add_argument(
        "--input-tokens",
        type=count,
        nargs=2,
        default=[100, 200],
        metavar=("A", "B"),
        help="shortest and longest prompt in tokens (default: 100 200)",
    )
    parser.add_argument(
        "--output-tokens",
        type=count,
        nargs=2,
        default=[32, 64],
        metavar=("A", "B"),
        help="smallest and largest token limit of answers (default: 32 64)",
    )
    parser.add_argument(
        "--prefix-tokens",
        type=int,
        default=0,
        metavar="N",
        help="length of the common prefix of all prompts (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random lengths and prompts (default: %(default)s)"
    )
    parser.add_argument(
        "--body",
        type=json.loads,
        default={},
        metavar="JSON",
        help="further parameters of each request, such as '{\"temperature\": 0}'",
    )
    parser.add_argument(
        "--api-key-env",
        default=KEY_VARIABLE,
        metavar="NAME",
        help="the environment variable that holds the API key (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", dest="json_file", help="write the figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures into this file, a PNG or SVG")


def run(options: argparse.Namespace) -> None:
    """Raises Unavailable if requests failed, after all figures are printed."""
    import asyncio

    from rich.console import Console

    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise ToolError("nearfar bench serve needs httpx: pip install 'nearfar[serve]'") from error
    from ..bench.summary import plot, table

    for name in ("input_tokens", "output_tokens"):
        least, most = getattr(options, name)
        if least > most:
            raise RequestError(
                f"--{name.replace('_', '-')} {least} {most}: the first number must not be larger than the second"
            )
    if options.prefix_tokens < 0 or not isinstance(options.body, dict):
        raise RequestError("--prefix-tokens must be at least 0, and --body must be a JSON object")
    console = Console()
    model, summaries = asyncio.run(measure(options))
    console.print(f"{model} at {options.url}", highlight=False, markup=False)
    console.print(table(summaries))
    if options.json_file is not None:
        settings = {
            name: getattr(options, name)
            for name in ("url", "input_tokens", "output_tokens", "prefix_tokens", "seed", "body")
        }
        figures = {"model": model, **settings, "loads": [summary.to_json() for summary in summaries]}
        options.json_file.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot is not None:
        plot(summaries, f"{model} at {options.url}", options.plot)
    failed = sum(summary.failed for summary in summaries)
    if failed:
        errors = {text: number for summary in summaries for text, number in summary.errors.items()}
        listed = "\n".join(f"  {number} x {text}" for text, number in errors.items())
        raise Unavailable(f"{failed} of {sum(summary.requests for summary in summaries)} requests failed:\n{listed}")


async def measure(options: argparse.Namespace) -> tuple[str, list[Summary]]:
    """The model's name, and a summary for each concurrency."""
    from ..bench.client import PROBE_WORDS, Server, find_model, make_client, run_load, tokens_per_word
    from ..bench.summary import summarize
    from ..bench.workload import WORDS, Lengths, make_workload

    url = options.url.rstrip("/").removesuffix("/v1")
    summaries = []
    async with make_client(os.environ.get(options.api_key_env)) as client:
        model = await find_model(client, url, options.model)
        server = Server(url, client, model, options.body)
        probe = " ".join(WORDS[index % len(WORDS)] for index in range(min(PROBE_WORDS, options.input_tokens[0])))
        ratio = await tokens_per_word(server, probe)
        for concurrency in options.concurrency:
            requests = make_workload(
                options.requests or max(8, 4 * concurrency),
                Lengths(*options.input_tokens),
                Lengths(*options.output_tokens),
                prefix_tokens=options.prefix_tokens,
                tokens_per_word=ratio,
                seed=(options.seed, concurrency),
            )
            outcomes, seconds = await run_load(server, requests, concurrency)
            summaries.append(summarize(concurrency, outcomes, seconds))
            print(
                f"{concurrency} clients: {summaries[-1].completion_tokens_per_second:.1f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    return model, summaries
