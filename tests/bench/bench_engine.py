"""What the Python engine itself costs, on a device that computes nothing: time a step in its own code, and pages held for no token.

    .venv/bin/python tests/bench/bench_engine.py            # 32 sequences, steps of 5 ms
    .venv/bin/python tests/bench/bench_engine.py --sequences 128

The overhead is wall time, so it counts what other processes take from this machine's cores; the median of several windows is given.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from nearfar.compiler.batch import Array, Batch, FloatArray, Limits, Output
from nearfar.server_fallback.engine.config import SchedulerConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.request import Sampling, TokenRequest
from nearfar.server_fallback.engine.scheduler import Scheduler
from nearfar.server_fallback.engine.sequence import Sequence as EngineSequence
from nearfar.server_fallback.engine.sequence import SequenceParams
from nearfar.server_fallback.engine.token_engine import TokenEngine

VOCAB_SIZE, PAGE_SIZE = 151_936, 16
WINDOWS = 9


class IdleRunner:
    """A device that takes ``step_seconds`` for every batch and always says the same token."""

    def __init__(self, limits: Limits, step_seconds: float) -> None:
        assert limits.pages is not None
        self.limits, self.num_pages, self.device = limits, limits.pages, "nothing"
        self._step_seconds = step_seconds
        self._device = ThreadPoolExecutor(1)

    def submit(self, batch: Batch) -> Future[Output]:
        return self._device.submit(self._work, len(batch.sample_rows))

    def _work(self, rows: int) -> Output:
        time.sleep(self._step_seconds)
        nothing = np.zeros((0, 0), np.int32)
        return Output(
            np.full(rows, 7, np.int32),
            np.zeros(rows, np.float32),
            nothing,
            nothing.astype(np.float32),
            lambda: np.zeros((0, 0), np.float32),
        )

    def embed(self, batch: Batch) -> FloatArray:
        raise NotImplementedError("the bench does not embed")

    def write_state(self, name: str, slot: int, values: Array) -> None: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None: ...

    def close(self) -> None:
        self._device.shutdown()


async def overhead(sequences: int, context: int, step_seconds: float) -> list[float]:
    """Seconds a step in the engine's own code, while so many sampled sequences decode at about ``context`` tokens; one number a window."""
    limits = Limits(tokens=2048, sequences=sequences, rows=sequences, pages=sequences * (context + 512) // PAGE_SIZE)
    engine = TokenEngine(IdleRunner(limits, step_seconds), TokenModel(VOCAB_SIZE, frozenset(), context + 512, PAGE_SIZE))

    async def ask(index: int) -> None:
        prompt = random.Random(index).choices(range(VOCAB_SIZE), k=context)
        async for _ in engine.generate(TokenRequest(prompt, 500, Sampling(temperature=0.7, top_p=0.9, seed=index))):
            pass

    tasks = [asyncio.ensure_future(ask(index)) for index in range(sequences)]
    while engine.stats().generated_tokens < 2 * sequences:
        await asyncio.sleep(0.01)
    found = []
    for _ in range(WINDOWS):
        before = engine.stats()
        while engine.stats().steps < before.steps + 40:
            await asyncio.sleep(step_seconds)
        after = engine.stats()
        found.append((after.overhead_seconds - before.overhead_seconds) / (after.steps - before.steps))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.close()
    return found


def kv_waste(count: int) -> float:
    """Of the pages' places that running sequences hold, the share with no token in it: a mean over the steps of a mixed load."""
    config = SchedulerConfig(PAGE_SIZE, count * 2048 // PAGE_SIZE, max_tokens=4096, max_sequences=count, context=2048)
    scheduler, lengths = Scheduler(config), random.Random(0)
    for id in range(count):
        prompt = [lengths.randrange(VOCAB_SIZE) for _ in range(lengths.randint(100, 1024))]
        scheduler.add(EngineSequence(id, prompt, SequenceParams(lengths.randint(100, 1024))))
    shares = []
    while (step := scheduler.next()) is not None:
        held = sum(len(sequence.pages) for sequence in scheduler.running) * PAGE_SIZE
        filled = sum(sequence.computed for sequence in scheduler.running)
        shares.append(1 - filled / held)
        scheduler.commit(step, [7] * sum(row.sample for row in step.rows))
    return statistics.mean(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=5.0)
    options = parser.parse_args()
    for context in (128, 1024):
        found = sorted(asyncio.run(overhead(options.sequences, context, options.step_ms / 1000)))
        print(
            f"overhead a step, {options.sequences} sampled sequences at {context} tokens: {statistics.median(found) * 1000:.2f} ms "
            f"({found[0] * 1000:.2f} to {found[-1] * 1000:.2f})"
        )
    print(f"pages held for no token, 256 requests of 100-1,024 tokens in and out: {kv_waste(256):.1%}")


if __name__ == "__main__":
    main()
