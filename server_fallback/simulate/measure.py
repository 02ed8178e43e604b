"""Measure: the costs of the steps of a model on this machine. The engine answers a prepared load, and each step that it
submits is timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter

import numpy as np

from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.runtime.batch import Array, Batch
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits, Output

from ..engine.model import TokenModel
from ..engine.request import TokenRequest
from ..engine.step_runner import StepRunner
from ..engine.token_engine import TokenEngine
from ..executors.local_opener import LocalOpener
from ..executors.local_recipe import Planned
from ..executors.memory import page_bytes
from .costs import Shape, StepCosts
from .device import Device
from .fitting import Measured, fit_costs

# Prompts and answers of the load, in tokens, and how many of the requests are sent at once.
PROMPTS = (4, 24, 96, 260, 400, 700)
ANSWERS = (12, 32)
AT_ONCE = (1, 1, 2, 4, 8, 16, 32, 64)
ROUNDS = 2
Progress = Callable[[str], None]


class TimedRunner:
    """A StepRunner that times the steps of another one. ``measured`` has those that computed one after the other."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.measured: list[Measured] = []
        self._ended = 0.0

    @property
    def limits(self) -> Limits:
        return self._runner.limits

    @property
    def groups(self) -> Sequence[PageGroup]:
        return self._runner.groups

    @property
    def device(self) -> str:
        return self._runner.device

    def submit(self, batch: Batch) -> Future[Output]:
        submitted, shape = perf_counter(), shape_of_batch(batch)
        future = self._runner.submit(batch)

        def ended(_: Future[Output]) -> None:
            now = perf_counter()
            self.measured.append(Measured((shape,), now - max(submitted, self._ended)))
            self._ended = now

        future.add_done_callback(ended)
        return future

    def write_state(self, name: str, slot: int, values: Array) -> None:
        self._runner.write_state(name, slot, values)

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        self._runner.copy_pages(pairs, group)

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        return self._runner.read_pages(units)

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None:
        self._runner.write_pages(units, data)

    def close(self) -> None:
        self._runner.close()


def shape_of_batch(batch: Batch) -> Shape:
    """The shape of what the engine submits, as `shape_of` has it of the step."""
    lengths = np.diff(batch.seq_starts).astype(np.int64)
    starts = batch.positions[batch.seq_starts[:-1]].astype(np.int64)
    decodes = lengths == 1
    pairs = lengths * starts + lengths * (lengths + 1) // 2
    return Shape(
        len(batch.token_ids), len(batch.sample_rows), int((starts + 1)[decodes].sum()), int(pairs[~decodes].sum())
    )


async def measure_model(
    opener: LocalOpener, model: str, seed: int, progress: Progress
) -> tuple[Device, list[Measured]]:
    """The device, and the steps from which its costs were fitted. Raises the errors of `LocalOpener`, and RequestError
    for a model that generates no text, or one whose layers have windows or states, which a simulation has not.
    """
    planned = await opener.plan(model)
    manifest = planned.bundle.manifest
    if not isinstance(manifest, Manifest) or not manifest.generates:
        raise RequestError(f"{model}: only bundles that generate text can be measured")
    runner = TimedRunner(await asyncio.to_thread(planned.open_runner))
    if len(runner.groups) > 1 or runner.groups[0].window is not None or manifest.sequence_states:
        runner.close()
        raise RequestError(f"{model}: has layers with windows or states, which are not simulated")
    try:
        engine = TokenEngine(runner, TokenModel.of(manifest))
    except BaseException:
        runner.close()
        raise
    try:
        await _load(engine, runner.limits, np.random.default_rng(seed), progress)
        costs = fit_costs(runner.measured, knots_for(runner.limits))
        return device_of(planned, manifest, costs, engine.device, engine.context), runner.measured
    finally:
        await engine.close()


def device_of(planned: Planned, manifest: Manifest, costs: StepCosts, device: str, context: int) -> Device:
    limits = planned.memory.limits
    assert limits.pages is not None
    return Device(
        name=f"{manifest.model} on {device}",
        source="nearfar simulate --measure",
        costs=costs,
        cache_tokens=limits.pages * manifest.page_size,
        token_bytes=page_bytes(manifest)[0] // manifest.page_size,
        context=context,
        step_tokens=limits.tokens,
        sequences=min(limits.sequences, limits.rows),
        page_size=manifest.page_size,
    )


def knots_for(limits: Limits) -> list[float]:
    """1, 4, 16, ... up to the largest step."""
    knots = [1.0]
    while knots[-1] * 4 < limits.tokens:
        knots.append(knots[-1] * 4)
    return [*knots, float(limits.tokens)]


async def _load(engine: TokenEngine, limits: Limits, chance: np.random.Generator, progress: Progress) -> None:
    """More and more requests at once, with prompts that no cache knows."""
    vocabulary, room = engine.model.vocab_size, engine.context

    async def ask(prompt: int, answer: int) -> None:
        ids = chance.integers(vocabulary, size=prompt).tolist()
        request = TokenRequest(ids, max_tokens=answer, ignore_eos=True)
        async for _ in engine.batches(request):
            pass

    for number in range(ROUNDS):
        for at_once in AT_ONCE:
            if at_once > limits.sequences:
                break
            lengths = [(min(prompt, room - answer), answer) for prompt in PROMPTS for answer in ANSWERS]
            chosen = [lengths[index] for index in chance.integers(len(lengths), size=at_once)]
            await asyncio.gather(*(ask(*each) for each in chosen))
            progress(f"round {number + 1} of {ROUNDS}: {at_once} requests at once")
