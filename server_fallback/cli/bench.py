"""nearfar bench serve: measures how fast an OpenAI-compatible server answers under load."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from nearfar.compiler.cli.output import new_console
from nearfar.compiler.runtime.errors import RequestError, Unavailable

from ..bench.client import PROBE_WORDS, Server, find_model, make_client, run_load, tokens_per_word
from ..bench.summary import Summary, plot, summarize, table
from ..bench.workload import WORDS, Lengths, make_workload
from .options import BenchServe


def run_serve(options: BenchServe) -> None:
    """Raises Unavailable if requests failed, after all figures are printed."""
    for name in ("input_tokens", "output_tokens"):
        least, most = getattr(options, name)
        if least > most:
            raise RequestError(
                f"--{name.replace('_', '-')} {least} {most}: the first number must not be larger than the second"
            )
    console = new_console()
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


async def measure(options: BenchServe) -> tuple[str, list[Summary]]:
    """The model's name, and a summary for each concurrency."""
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
