"""The time to the first token of a prompt of 4,000 tokens on this machine's CPU: computed, and with pages that come
back from the host's memory and from the disk after other prompts have evicted them from the device.

``make bench-kv-tiers`` runs random weights with the shapes of SmolLM2-360M, prints a table and writes
``results/kv-tiers.json``, which names the machine. The device's pages hold one prompt, and two prompts take turns, so
that each evicts the other. For the disk, a new engine opens the folder, and the files have left the system's cache.
It fails if the tokens differ, or if less than the whole pages of a prompt came back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench_compile import machine
from checkpoints import published, write_checkpoint
from rich.console import Console
from rich.table import Table

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import AnswerEnd, GeneratedToken, TokenRequest
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.kv_tiers.options import KvTierOptions

RESULTS = Path(__file__).parent / "results" / "kv-tiers.json"
MODEL, TOKENS, CONTEXT, ANSWER = "smollm2-360m-instruct", 4000, 4096, 4
LIMITS = Limits(tokens=256, sequences=2, rows=2, pages=CONTEXT // 16)
TIER_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class First:
    """``restored``: tokens of the prompt that were not computed."""

    seconds: float
    restored: int
    tokens: list[int]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2, help="how often each prompt comes back")
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        options = CompileOptions(target="cpu", context=CONTEXT, self_test=False)
        compile_model(str(write_checkpoint(published(MODEL), root / "checkpoint")), root / "bundle", options)
        found = asyncio.run(measure(open_bundle(root / "bundle"), root / "kv", rounds))
    computed = statistics.median(first.seconds for first in found["computed"])
    table = Table(title=f"time to the first token after {TOKENS:,} tokens, {MODEL}, {machine()}")
    for column in ("from", "seconds", "of computing it", "tokens restored"):
        table.add_column(column, justify="right")
    rows = []
    for source, firsts in found.items():
        seconds = statistics.median(first.seconds for first in firsts)
        rows.append(
            {
                "from": source,
                "seconds": round(seconds, 3),
                "share": round(seconds / computed, 4),
                "restored": min(first.restored for first in firsts),
                "all_seconds": [round(first.seconds, 3) for first in firsts],
            }
        )
        table.add_row(source, f"{seconds:.2f}", f"{seconds / computed:.3f}", str(rows[-1]["restored"]))
    Console(width=120).print(table)
    stored = {"machine": machine(), "model": MODEL, "prompt_tokens": TOKENS, "load_average": os.getloadavg()[0]}
    RESULTS.write_text(json.dumps({**stored, "rows": rows}, indent=1) + "\n")


async def measure(bundle: Bundle, folder: Path, rounds: int) -> dict[str, list[First]]:
    prompts = [[(index * (31 + prompt) + prompt) % 40_000 + 1 for index in range(TOKENS)] for prompt in range(2)]
    host = KvTierOptions(host_memory_bytes=TIER_BYTES, disk_bytes=TIER_BYTES, folder=folder)
    disk = KvTierOptions(disk_bytes=TIER_BYTES, folder=folder)
    found: dict[str, list[First]] = {}
    async with engine_of(bundle, host) as engine:
        found["computed"] = [await first(engine, prompt) for prompt in prompts]
        found["the host's memory"] = [await first(engine, prompt) for _ in range(rounds) for prompt in prompts]
    found["the disk"] = []
    for _ in range(rounds):
        async with engine_of(bundle, disk) as engine:
            for prompt in prompts:
                forget_files(folder)
                found["the disk"].append(await first(engine, prompt))
    for firsts in found.values():
        for index, each in enumerate(firsts):
            assert each.tokens == found["computed"][index % 2].tokens, "the tokens differ"
            # The last token is computed.
            assert firsts is found["computed"] or each.restored == (TOKENS - 1) // 16 * 16, each.restored
    return found


@asynccontextmanager
async def engine_of(bundle: Bundle, tiers: KvTierOptions) -> AsyncIterator[TokenEngine]:
    runner = open_runner("cpu", bundle, LIMITS)
    engine = TokenEngine(runner, TokenModel.of(bundle.manifest), EngineConfig(kv_tiers=tiers))
    # The first batch of a kind loads code.
    await first(engine, [1, 2, 3])
    yield engine
    await engine.close()


async def first(engine: TokenEngine, prompt: list[int]) -> First:
    started, seconds, tokens, restored = time.perf_counter(), 0.0, list[int](), 0
    async for item in engine.generate(TokenRequest(prompt, ANSWER, ignore_eos=True)):
        if isinstance(item, GeneratedToken):
            seconds = seconds or time.perf_counter() - started
            tokens.append(item.token_id)
        elif isinstance(item, AnswerEnd):
            restored = item.cached_tokens
    await stored(engine)
    return First(seconds, restored, tokens)


async def stored(engine: TokenEngine) -> None:
    """Wait until the tiers have what the answer computed."""
    before = None
    while before != (before := engine.stats().tiers):
        await asyncio.sleep(1.0)


def forget_files(folder: Path) -> None:
    """Let the system forget the contents of the files, so that they are read from the disk."""
    for path in folder.rglob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
