"""Generate with one sequence on any runner: prefill in chunks, then one token per step, greedy or sampled.

The engines that serve many requests are elsewhere; `nearfar run`, `nearfar score` and the tests use this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bundle.manifest import GENERATE
from ..ir.sampling import GREEDY, Sampler, Settings, token_counts
from .batch import Chunk, FloatArray, make_batch
from .errors import DeviceError, RequestError
from .page_groups import rings
from .placed_features import PlacedFeatures, features_between, rope_positions_between
from .runner import Output, Runner, require_plan

# Prompt tokens per forward pass: enough to fill a tile kernel twice, few enough that a pass is short on small devices.
PREFILL_CHUNK = 64
# The slot of a runner's only sequence, and those of its states.
SLOT = 0
ONLY_STATE = (0, 0)


@dataclass(slots=True)
class Timings:
    """Wall time of one answer, in seconds from the start of the prefill. Filled in while the answer is generated."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    time_to_first_token_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first, divided by the time after the first. 0 without a second token."""
        decoding = self.total_seconds - self.time_to_first_token_seconds
        return (self.completion_tokens - 1) / decoding if self.completion_tokens > 1 and decoding > 0 else 0.0


def generate(
    runner: Runner,
    prompt: Sequence[int],
    max_tokens: int,
    sampler: Sampler,
    timings: Timings | None = None,
    *,
    cached: int = 0,
    cancelled: Callable[[], bool] = lambda: False,
    features: Callable[[], Sequence[PlacedFeatures]] = tuple,
    adapter: int = -1,
) -> Iterator[int]:
    """Yield token ids until the model ends (the end token is not yielded), ``max_tokens`` were yielded, or
    ``cancelled`` returns true.

    The runner's pages already hold keys and values of the first ``cached`` tokens of the prompt, from an earlier call;
    ``cached`` must be less than the length of the prompt. ``cancelled`` is called before each forward pass.
    ``features`` is called once, before the first: it returns the features of pictures. ``adapter``: see `Chunk`.

    Raises RequestError for an empty prompt, ids outside the vocabulary, or more tokens than the bundle's context.
    """
    timings = timings if timings is not None else Timings()
    check_prompt(runner, prompt, max_tokens)
    assert 0 <= cached < len(prompt), "the last token's logits are needed"
    timings.prompt_tokens = len(prompt)
    flags = sampler.flags
    if flags:
        runner.write_state("token_counts", SLOT, token_counts(runner.manifest.spec.vocab_size, prompt))
    started = time.perf_counter()
    ends = set(runner.manifest.spec.eos_token_ids)
    placed = features()
    more: Any = {"adapter": adapter, "flags": flags}
    passes = prefill(runner, prompt, sample_all=False, settings=sampler.next(), cached=cached, placed=placed, **more)
    while not cancelled() and (result := next(passes, None)) is not None:
        output = result
    if cancelled():
        return
    length = len(prompt)
    for count in range(1, max_tokens + 1):
        token = int(output.next_token_ids[-1])
        if token < 0:
            raise not_finite(runner)
        now = time.perf_counter() - started
        timings.total_seconds = now
        if count == 1:
            timings.time_to_first_token_seconds = now
        if token in ends:
            return
        timings.completion_tokens = count
        yield token
        if cancelled():
            return
        if count < max_tokens:
            output = append(runner, [token], length, [0], sampler.next(), placed, **more)
            length += 1


def score(
    runner: Runner, token_ids: Sequence[int], rows_at_once: int, placed: Sequence[PlacedFeatures] = ()
) -> Iterator[npt.NDArray[np.float32]]:
    """Forced decoding: blocks of logits, (n, V) in all for n tokens, where row i predicts token i + 1. ``placed`` are
    the features of pictures.

    Raises RequestError as `generate`, and DeviceError for logits that are not finite.
    """
    check_prompt(runner, token_ids, 0)
    for output in prefill(runner, token_ids, sample_all=True, chunk=rows_at_once, placed=placed):
        if not np.isfinite(output.logits).all():
            raise not_finite(runner)
        yield output.logits


def not_finite(runner: Runner) -> DeviceError:
    what = "logits" if GENERATE in runner.manifest.plan_names else "results"
    return DeviceError(
        f"{runner.device} computed {what} that are not finite; try --runner numpy, or another quantization"
    )


def prefill(
    runner: Runner,
    token_ids: Sequence[int],
    *,
    sample_all: bool,
    chunk: int = PREFILL_CHUNK,
    settings: Settings = GREEDY,
    cached: int = 0,
    placed: Sequence[PlacedFeatures] = (),
    adapter: int = -1,
    flags: int = 0,
) -> Iterator[Output]:
    """Run the tokens of a sequence after its first ``cached`` ones, in chunks. Every row is sampled, or only the last
    one. ``placed`` are the features of the sequence's pictures; ``adapter`` and ``flags``: see `append`.
    """
    vision, stop = runner.manifest.spec.vision, cached
    whole, most = vision is not None and vision.both_ways != "none", runner.limits.tokens
    while stop < len(token_ids):
        start, stop = stop, min(stop + chunk, len(token_ids))
        if whole:
            seen = [(each.first, each.features) for each in placed if not each.is_sound]
            stop = end_outside_pictures(seen, start, stop, most)
        rows = range(stop - start) if sample_all else [stop - start - 1] if stop == len(token_ids) else []
        yield append(runner, token_ids[start:stop], start, rows, settings, placed, adapter=adapter, flags=flags)


def end_outside_pictures(placed: Sequence[tuple[int, FloatArray]], start: int, stop: int, most: int) -> int:
    """The end of a chunk that does not end inside a picture: before it, or behind one that is longer than the chunk.
    Raises RequestError for pictures that need more than ``most`` tokens.
    """
    runs: list[tuple[int, int]] = []
    for position, features in placed:
        first = runs.pop()[0] if runs and runs[-1][1] == position else position
        runs.append((first, position + len(features)))
    cut = next(((first, end) for first, end in runs if first < stop < end), None)
    if cut is None:
        return stop
    if cut[0] > start:
        return cut[0]
    if cut[1] - start > most:
        raise RequestError(
            f"a picture has {cut[1] - start} tokens, and the runner computes at most {most} at once; this model reads "
            "a picture as a whole: open the runner with larger Limits.tokens",
            tokens=cut[1] - start,
        )
    return cut[1]


def append(
    runner: Runner,
    token_ids: Sequence[int],
    start: int,
    rows: Sequence[int],
    settings: Settings,
    placed: Sequence[PlacedFeatures] = (),
    *,
    adapter: int = -1,
    flags: int = 0,
) -> Output:
    """Run tokens that follow the first ``start`` of the only sequence, which owns the pools' first pages and has the
    features ``placed``; ``rows`` of them are sampled. ``adapter``: see `Chunk`. ``flags``: the states of the slot that
    apply, which then counts the sampled tokens.
    """
    stop = start + len(token_ids)
    pages, *window = rings(runner.groups, runner.manifest.pages_for(start + len(token_ids)))
    chunk = Chunk(
        token_ids,
        start,
        pages,
        rows,
        settings,
        window_pages=window[0] if window else None,
        state=ONLY_STATE,
        adapter=adapter,
        slot=SLOT if flags else -1,
        flags=flags,
        features=features_between(((each.first, each.features) for each in placed if not each.is_sound), start, stop),
        heard=features_between(((each.first, each.features) for each in placed if each.is_sound), start, stop),
        rope_positions=rope_positions_between((each.grid for each in placed), start, stop) if placed else None,
    )
    return runner.forward(make_batch([chunk], runner.manifest.page_size))


def check_prompt(runner: Runner, prompt: Sequence[int], max_tokens: int) -> None:
    """Raise RequestError unless the runner can run the prompt and generate ``max_tokens`` more."""
    require_plan(runner.manifest, GENERATE)
    check_tokens(runner, prompt, max_tokens)


def check_tokens(runner: Runner, token_ids: Sequence[int], max_tokens: int = 0) -> None:
    """Raise RequestError for an empty prompt, ids outside the vocabulary, or more tokens than the bundle's context."""
    vocab_size, context = runner.manifest.spec.vocab_size, runner.manifest.context
    if not token_ids:
        raise RequestError("the prompt is empty; give at least one token")
    if max_tokens < 0:
        raise RequestError(f"max_tokens is {max_tokens}; it must not be negative")
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {token} is not in the vocabulary (0 to {vocab_size - 1})")
    if len(token_ids) + max(max_tokens - 1, 0) > context:
        raise RequestError(
            f"the bundle's maximum context length is {context} tokens. However, there are {len(token_ids)} prompt "
            f"tokens and {max_tokens} "
            "new ones; shorten the prompt, request fewer tokens, or compile with a larger --context"
        )
