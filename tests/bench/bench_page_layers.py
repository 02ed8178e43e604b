"""How long a decode worker waits for the pages of a prompt of one chunk after the prefill worker has computed it: with
a runner that reads layers while it computes later ones, and with one that reads the chunk when it is done.

Both engines are in this process, on one thread each; pages pass in frames and shared memory, are hashed on both sides,
and written into the second engine's cache. Engines of processes of their own add a message each.

    python tests/bench/bench_page_layers.py
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import Any

from bench_compile import ROOT
from checkpoints import Shapes, write_checkpoint
from rich.console import Console
from rich.table import Table
from serving_model import token_texts, write_chat_tokenizer

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.bundle.manifest import GENERATE
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Batch
from nearfar.compiler.runtime.page_groups import pages_bytes
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.page_transfer import FrameReader, PageIdentity
from nearfar.server_fallback.executors.prefill_client import Transfer, _receive
from nearfar.server_fallback.executors.prefill_server import page_frames
from nearfar.server_fallback.executors.shared_pages import SharedReader
from nearfar.targets.cpu.runner import CpuRunner

TOKENS, PAGE = 256, 16
SHAPES = Shapes(
    "layers-90m",
    {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2048,
        "tie_word_embeddings": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "max_position_embeddings": 1024,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    },
)  # fmt: skip


class TimedRunner(CpuRunner):
    """``ended``: when the last batch was computed."""

    ended = 0.0

    def submit(self, batch: Batch, plan: str = GENERATE) -> Future[Output]:
        future = super().submit(batch, plan)
        future.add_done_callback(self._end)
        return future

    def _end(self, _: object) -> None:
        self.ended = time.perf_counter()


class ChunkRunner:
    """Hides that a runner reads layers."""

    def __init__(self, runner: CpuRunner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        if name in ("read_layers", "write_layers"):
            raise AttributeError(name)
        return getattr(self._runner, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/bench", help="folder for the model")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bundle = open_bundle(make_bundle(options.folder))
    states, activation = bundle.manifest.states, bundle.manifest.activations[0].dtype
    identity = PageIdentity("0" * 64, activation, PAGE, pages_bytes(states, [range(1)], activation))
    table = Table(title=f"{identity.page_bytes * TOKENS // PAGE / 1e6:.1f} MB, load {os.getloadavg()[0]:.0f}")
    for column in ("pages are read", "computed, ms", "then until all is there, ms", "least"):
        table.add_column(column, justify="right")
    for name, layered in (("by chunk", False), ("by layer", True)):
        computed, after = zip(*asyncio.run(measure(bundle, identity, options.repeats, layered=layered)), strict=True)
        figures = (statistics.median(computed), statistics.median(after), min(after))
        table.add_row(name, *(f"{1000 * seconds:.0f}" for seconds in figures))
    Console(width=120).print(table)


def make_bundle(folder: Path) -> Path:
    checkpoint, bundle = folder / f"{SHAPES.name}-chat", folder / f"{SHAPES.name}-cpu"
    if not (bundle / "manifest.json").exists():
        write_checkpoint(SHAPES, checkpoint)
        write_chat_tokenizer(checkpoint, token_texts(SHAPES.config["vocab_size"]))
        options = CompileOptions(target="cpu", quantization="q4f16", context=1024, self_test=False, force=True)
        compile_model(str(checkpoint), bundle, options)
    return bundle


async def measure(
    bundle: Bundle, identity: PageIdentity, repeats: int, *, layered: bool
) -> Sequence[tuple[float, float]]:
    limits, model = Limits(tokens=TOKENS, sequences=2, rows=2, pages=128), TokenModel.of(bundle.manifest)
    timed, other = TimedRunner(bundle, limits=limits, threads=1), CpuRunner(bundle, limits=limits, threads=1)
    runners: list[Any] = [timed, other] if layered else [ChunkRunner(timed), ChunkRunner(other)]
    first, second = (TokenEngine(runner, model) for runner in runners)
    found = []
    for seed in range(repeats + 2):
        prompt = [(seed * 37 + 7 * i * i + 3 * i) % 4000 for i in range(TOKENS + 1)]
        began = time.perf_counter()
        await passed(first, second, identity, prompt)
        found.append((timed.ended - began, time.perf_counter() - timed.ended))
    await first.close()
    await second.close()
    # The first ones touch memory that is new.
    return found[2:]


async def passed(first: TokenEngine, second: TokenEngine, identity: PageIdentity, prompt: list[int]) -> None:
    wanted, parts = Transfer("m", prompt[:TOKENS], 0, priority=0, deadline=inf), asyncio.Queue[bytes]()
    with SharedReader() as shared:

        async def send() -> None:
            request = TokenRequest(prompt, export=range(0, TOKENS))
            async for part in page_frames(first, request, identity, shared.name):
                await parts.put(part)

        sending = asyncio.create_task(send())
        frames = FrameReader(parts.get, identity.most_bytes(TOKENS), shared.take)
        assert await _receive(frames, second, identity, wanted)
        await sending
    assert wanted.done == TOKENS


if __name__ == "__main__":
    main()
