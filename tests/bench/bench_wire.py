"""Speculation across the wire: the demo model in q4f16 drafts tokens, and `nearfar serve` verifies them. Prints a
table.

    make bench-wire               # far is the same checkpoint in f16: nearly all drafts are right
    make bench-wire FAR=FOLDER    # far is another checkpoint with the same tokenizer

It runs one greedy answer at a time to held-out prompts of the demo's tasks and compares it with the far model's own.
Near and far share this machine's cores, so times would be meaningless and are not measured. Forward passes, rows and
bytes do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path

import httpx
from bench_compile import machine
from demo_model.corpus import CORPORA, held_out_examples
from demo_model.example import Split
from serving_process import Process, nearfar_serve

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import GeneratedToken, TokenRequest, TokenSource
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.router.sides.wire_speculation import FarModel, WireSpeculation

SEED, MAX_TOKENS = 2024, 128
DRAFTS = (2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--near", type=Path, default=CHECKPOINT, help="the checkpoint that drafts (default: the demo model)"
    )
    parser.add_argument(
        "--far", type=Path, default=CHECKPOINT, help="the checkpoint that answers (default: the demo model)"
    )
    parser.add_argument("--far-quantization", default="f16")
    parser.add_argument(
        "--tasks",
        choices=tuple(CORPORA),
        default="near",
        help="the model whose held-out prompts are used (default: %(default)s)",
    )
    parser.add_argument("--examples", type=int, default=4, help="examples of each task (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nearfar-") as name:
        folder = Path(name)
        near = compiled(options.near, "q4f16", folder / "near")
        far = compiled(options.far, options.far_quantization, folder / "far")
        prompts = held_out_prompts(far, options.tasks, options.examples)
        expected = asyncio.run(answered_alone(far, prompts))
        count = sum(map(len, expected))
        print(machine())
        print(
            f"near q4f16, far {options.far_quantization}, {len(prompts)} prompts of tasks of the {options.tasks} "
            f"model, "
            f"{count:,} tokens\n"
        )
        with nearfar_serve([str(far.path), "--threads", "1"], folder / "far.log") as server:
            print(
                "| | tokens per round | accepted drafts | forward passes, with prompts "
                "| bytes sent per token | received |"
            )
            print("|---|---|---|---|---|---|")
            print(streamed(server, far, prompts, count), flush=True)
            for drafts in DRAFTS:
                print(asyncio.run(measured(server, near, far, prompts, expected, drafts)), flush=True)


def compiled(checkpoint: Path, quantization: str, folder: Path) -> Bundle:
    compile_model(str(checkpoint), folder, CompileOptions(target="cpu", quantization=quantization, self_test=False))
    return open_bundle(folder)


def held_out_prompts(bundle: Bundle, tasks: str, count: int) -> list[list[int]]:
    tokenizer, corpus = Tokenizer(bundle.tokenizer_files()), CORPORA[tasks]
    examples = [
        each for task in corpus for each in held_out_examples(task, Split.HELD_OUT_PARAPHRASES, count, SEED, corpus)
    ]
    return [tokenizer.encode_chat([{"role": "user", "content": example.prompt}]) for example in examples]


def engine_of(bundle: Bundle) -> TokenEngine:
    limits = Limits(tokens=64, sequences=1, rows=1, pages=4 * bundle.manifest.pages_for(bundle.manifest.context))
    return TokenEngine(open_runner("cpu", bundle, limits), TokenModel.of(bundle.manifest))


async def answer(source: TokenSource, prompt: list[int]) -> list[int]:
    async with aclosing(source.generate(TokenRequest(prompt, MAX_TOKENS))) as items:
        return [each.token_id async for each in items if isinstance(each, GeneratedToken)]


async def answered_alone(bundle: Bundle, prompts: Sequence[list[int]]) -> list[list[int]]:
    engine = engine_of(bundle)
    answers = [await answer(engine, prompt) for prompt in prompts]
    await engine.close()
    return answers


def streamed(server: Process, bundle: Bundle, prompts: Sequence[list[int]], count: int) -> str:
    """A row of the table: the same answers as events of /v1/completions, without HTTP headers."""
    body = {"model": bundle.path.name, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True}
    before = steps(server)
    received = sum(
        len(httpx.post(f"{server.url}/v1/completions", json={**body, "prompt": prompt}).content) for prompt in prompts
    )
    return f"| far alone, streamed | | | {steps(server) - before:,.0f} | | {received / count:.0f} |"


async def measured(
    server: Process, near: Bundle, far: Bundle, prompts: Sequence[list[int]], expected: list[list[int]], drafts: int
) -> str:
    """A row of the table. Every answer must equal the far model's own."""
    engine = engine_of(near)
    source = WireSpeculation(engine, FarModel(server.url, far.path.name, tokenizer_sha256(near)), drafts)
    before = steps(server)
    found = [await answer(source, prompt) for prompt in prompts]
    forwards = steps(server) - before
    await engine.close()
    assert found == expected, "an answer is not the far model's own"
    counts = source.counts
    cells = (
        f"{drafts} drafts", f"{counts.tokens / counts.rounds:.2f}", f"{counts.accepted / counts.drafted:.0%}",
        f"{forwards:,.0f}",
        f"{counts.sent_bytes / counts.tokens:.0f}", f"{counts.received_bytes / counts.tokens:.0f}",
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def tokenizer_sha256(bundle: Bundle) -> str:
    return sha256(bundle.tokenizer_files().content).hexdigest()


def steps(server: Process) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("nearfar:engine_steps_total{"))


if __name__ == "__main__":
    main()
