"""The Python engine's own time per step on a device that computes nothing, and the share of page positions without a
token.

    .venv/bin/python tests/bench/bench_engine.py                       # 32, 64, 128 and 256 sequences, steps of 5 ms
    .venv/bin/python tests/bench/bench_engine.py --sequences 64 512
    .venv/bin/python tests/bench/bench_engine.py --constrained 1 8     # a grammar for every sequence; for one in eight

The overhead is `EngineStats.overhead_seconds`. It is mostly wall time, so other processes on the machine increase it.
The processor time is that of the entire process: the engine, the event loop, and callers that ignore their tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from nearfar.compiler.ir.sampling import Sampling
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.server_fallback.engine.config import SchedulerConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import Sequence as EngineSequence
from nearfar.server_fallback.engine.sequence import SequenceParams
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.text.grammar.grammar_compiler import GrammarCompiler
from nearfar.server_fallback.text.grammar.grammars import Grammars
from nearfar.server_fallback.text.grammar.source import EbnfSource
from nearfar.server_fallback.text.vocabulary import Vocabulary

VOCAB_SIZE, PAGE_SIZE = 151_936, 16
SAMPLED = 7
WINDOWS = 9


class IdleRunner:
    """A device that takes ``step_seconds`` for every batch and always samples the same token."""

    def __init__(self, limits: Limits, step_seconds: float) -> None:
        assert limits.pages is not None
        self.limits, self.groups, self.device = limits, (PageGroup(limits.pages),), "nothing"
        self._step_seconds = step_seconds
        self._device = ThreadPoolExecutor(1)

    def submit(self, batch: Batch) -> Future[Output]:
        return self._device.submit(self._work, len(batch.sample_rows))

    def _work(self, rows: int) -> Output:
        time.sleep(self._step_seconds)
        nothing = np.zeros((0, 0), np.int32)
        return Output(
            np.full(rows, SAMPLED, np.int32),
            np.zeros(rows, np.float32),
            nothing,
            nothing.astype(np.float32),
            lambda: np.zeros((0, 0), np.float32),
        )

    def embed(self, batch: Batch) -> FloatArray:
        raise NotImplementedError("the bench does not embed")

    def write_state(self, name: str, slot: int, values: Array) -> None: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None: ...

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        raise NotImplementedError("a device without pages")

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None: ...

    def close(self) -> None:
        self._device.shutdown()


@dataclass(frozen=True, slots=True)
class Window:
    """Milliseconds per step: the engine's overhead, and the processor time of the process."""

    overhead_ms: float
    processor_ms: float


def words() -> Vocabulary:
    """A vocabulary in which the token that the device samples can always continue the text."""
    letters, tokens = random.Random(0), [bytes([byte]) for byte in range(256)]
    tokens += [
        bytes(letters.choices(b'abcdefghijklmnopqrstuvwxyz 0123456789"{}[],:', k=letters.randint(2, 9)))
        for _ in range(VOCAB_SIZE)
    ]
    tokens[SAMPLED] = b"word"
    return Vocabulary((*tokens[: VOCAB_SIZE - 1], b""), frozenset(), (VOCAB_SIZE - 1,), None)


async def measure(sequences: int, context: int, step_seconds: float, constrained: int | None = None) -> list[Window]:
    """Measure windows of 40 steps while the sampled sequences decode at about ``context`` tokens. One in
    ``constrained`` has a grammar.
    """
    grammars = Grammars(GrammarCompiler(), words)
    count = 0 if constrained is None else sequences // constrained
    source = EbnfSource('root ::= text "\\"" [0-9]+\ntext ::= [^"\\\\]*')
    constraints = await grammars.constraints(source, count, "response_format", 500) if count > 0 else []
    limits = Limits(tokens=2048, sequences=sequences, rows=sequences, pages=sequences * (context + 512) // PAGE_SIZE)
    engine = TokenEngine(
        IdleRunner(limits, step_seconds), TokenModel(VOCAB_SIZE, frozenset(), context + 512, PAGE_SIZE)
    )

    async def call(index: int) -> None:
        prompt = random.Random(index).choices(range(VOCAB_SIZE), k=context)
        constraint = constraints[index // constrained] if constrained is not None and index % constrained == 0 else None
        async for _ in engine.generate(
            TokenRequest(prompt, 500, Sampling(temperature=0.7, top_p=0.9, seed=index), constraint=constraint)
        ):
            pass

    tasks = [asyncio.ensure_future(call(index)) for index in range(sequences)]
    while engine.stats().generated_tokens < 2 * sequences:
        await asyncio.sleep(0.01)
    found = []
    for _ in range(WINDOWS):
        before, processor = engine.stats(), time.process_time()
        while engine.stats().steps < before.steps + 40:
            await asyncio.sleep(step_seconds)
        after, processor = engine.stats(), time.process_time() - processor
        steps = after.steps - before.steps
        found.append(
            Window(1000 * (after.overhead_seconds - before.overhead_seconds) / steps, 1000 * processor / steps)
        )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.close()
    grammars.close()
    return found


def kv_waste(count: int) -> float:
    """The mean share of positions without a token in the pages of running sequences, over the steps of a mixed load."""
    config = SchedulerConfig(
        PAGE_SIZE, (PageGroup(count * 2048 // PAGE_SIZE),), max_tokens=4096, max_sequences=count, context=2048
    )
    scheduler, lengths = Scheduler(config), random.Random(0)
    for id in range(count):
        prompt = [lengths.randrange(VOCAB_SIZE) for _ in range(lengths.randint(100, 1024))]
        scheduler.add(EngineSequence(id, prompt, SequenceParams(lengths.randint(100, 1024))))
    shares = []
    while (step := scheduler.next()) is not None:
        held = sum(len(sequence.tables[0].pages) for sequence in scheduler.running) * PAGE_SIZE
        filled = sum(sequence.computed for sequence in scheduler.running)
        shares.append(1 - filled / held)
        scheduler.commit(step, [7] * sum(row.sample for row in step.rows))
    return statistics.mean(shares)


def line(sequences: int, context: int, constrained: int | None, windows: list[Window]) -> str:
    overhead = sorted(window.overhead_ms for window in windows)
    processor = statistics.median(window.processor_ms for window in windows)
    grammars = "" if constrained is None else f", 1 in {constrained} with a grammar"
    return (
        f"{sequences:4d} sampled sequences at {context:4d} tokens{grammars}: "
        f"overhead {statistics.median(overhead):.2f} ms per step "
        f"({overhead[0]:.2f} to {overhead[-1]:.2f}), processor time of the process {processor:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--constrained", type=int, nargs="+", default=[])
    options = parser.parse_args()
    for sequences in options.sequences:
        for context in (128, 1024):
            for constrained in [None, *options.constrained]:
                windows = asyncio.run(measure(sequences, context, options.step_ms / 1000, constrained))
                print(line(sequences, context, constrained, windows), flush=True)
    print(f"positions of pages without a token, 256 requests of 100-1,024 tokens in and out: {kv_waste(256):.1%}")


if __name__ == "__main__":
    main()
