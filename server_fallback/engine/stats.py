"""Counters, gauges and histograms of an engine. Those with a `Metric` are in /metrics; a new one is declared here, and
counted where it happens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, get_type_hints

from nearfar.compiler.runtime.errors import NearfarError

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# Those of vLLM.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
)  # fmt: skip
# A small model answers faster.
PHASE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, *REQUEST_SECONDS)
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts`` are those of values up to each of ``bounds`` and above the one before it; the last is of those above
    all. ``total`` is the sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Metric(NamedTuple):
    """The name and help text of a field in /metrics."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    text: str


def metrics(
    stats: type[EngineStats] | type[BatchStats] | type[RequestStats] | type[TierStats],
) -> list[tuple[Metric, str]]:
    """The metrics of a class, and the field of each."""
    hints = get_type_hints(stats, include_extras=True)
    return [(metric, name) for name, hint in hints.items() for metric in getattr(hint, "__metadata__", ())]


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What the batches of an encoder engine were like."""

    texts: Annotated[Histogram, Metric("histogram", "nearfar:batch_texts", "Texts in a batch to embed or score.")]
    tokens: Annotated[Histogram, Metric("histogram", "nearfar:batch_tokens", "Tokens in such a batch.")]
    queue_seconds: Annotated[
        Histogram, Metric("histogram", "nearfar:batch_queue_time_seconds", "Time until a text's first batch begins.")
    ]
    compute_seconds: Annotated[
        Histogram, Metric("histogram", "nearfar:batch_compute_time_seconds", "Time in which a batch is computed.")
    ]


@dataclass(frozen=True, slots=True)
class RequestStats:
    """What the steps and the answers of an engine that generates were like. Answers count once they have a token; a
    prompt of several answers counts for each.
    """

    step_tokens: Annotated[
        Histogram, Metric("histogram", "vllm:iteration_tokens_total", "Tokens that a step of the device computes.")
    ]
    prompt_tokens: Annotated[
        Histogram, Metric("histogram", "vllm:request_prompt_tokens", "Tokens of an answer's prompt.")
    ]
    generation_tokens: Annotated[
        Histogram, Metric("histogram", "vllm:request_generation_tokens", "Tokens of an answer.")
    ]
    prefill_seconds: Annotated[
        Histogram,
        Metric(
            "histogram",
            "vllm:request_prefill_time_seconds",
            "Time from the first step of an answer's prompt to its first token.",
        ),
    ]
    decode_seconds: Annotated[
        Histogram,
        Metric("histogram", "vllm:request_decode_time_seconds", "Time from an answer's first token to its end."),
    ]


@dataclass(frozen=True, slots=True)
class TierStats:
    """What the tiers below the prefix cache have held and found. ``queries`` are tokens of prompts that the device's
    cache did not hold, ``restored`` those of them that came back. A unit is a page of a group of layers, or a state.
    """

    queries: Annotated[
        int,
        Metric(
            "counter",
            "vllm:external_prefix_cache_queries",
            "Prompt tokens looked up in the tiers below the cache.",
        ),
    ]
    restored: Annotated[
        int,
        Metric("counter", "vllm:external_prefix_cache_hits", "Those that were written into the device's cache again."),
    ]
    host_bytes: Annotated[int, Metric("gauge", "nearfar:kv_host_bytes", "Evicted pages in the host's memory.")]
    disk_bytes: Annotated[
        int, Metric("gauge", "nearfar:kv_disk_bytes", "Pages on the disk, of all models that share the folder.")
    ]
    host_hits: Annotated[
        int, Metric("counter", "nearfar:kv_host_hits", "Pages and states read from the host's memory.")
    ]
    disk_hits: Annotated[int, Metric("counter", "nearfar:kv_disk_hits", "Pages and states read from the disk.")]
    host_evictions: Annotated[
        int, Metric("counter", "nearfar:kv_host_evictions", "Pages and states that the host's memory had no room for.")
    ]
    disk_evictions: Annotated[
        int,
        Metric("counter", "nearfar:kv_disk_evictions", "Files that were removed as the disk's budget was full."),
    ]
    damaged: Annotated[int, Metric("counter", "nearfar:kv_disk_damaged", "Files that were damaged, and were removed.")]
    failures: Annotated[int, Metric("counter", "nearfar:kv_disk_failures", "Failures to write a file.")]
    dropped: Annotated[
        int, Metric("counter", "nearfar:kv_dropped", "Pages and states that were evicted faster than they were stored.")
    ]


@dataclass(slots=True)
class EngineStats:
    """A snapshot. ``running`` and ``waiting`` are requests; ``kv_usage`` is the share of pages that running ones use, 0
    to 1, and ``kv_waste`` the share of the positions in these pages that hold no token.

    ``image_cache_bytes`` are those of the features of images that are retained. ``state_snapshots`` are the snapshots
    of recurrent states in the prefix cache, ``state_hits`` the sequences that continued after one, also after a
    preemption.

    All others count from the start. ``prefix_queries`` are the prompts' tokens, ``prefix_hits`` those that were in a
    cache. ``computed_tokens`` are positions that the device computed, ``generated_tokens`` those of answers.
    ``drafted_tokens`` are guesses that were checked, ``accepted_tokens`` those that were right. Pages of
    ``exported_tokens`` went to other servers, and those of ``imported_tokens`` came from them. ``recoveries``: device
    failures that the engine survived; ``failure``: the one that ended it, after which every request fails.
    ``restarts`` are those of the engine's process, and ``silent_seconds`` is the time since its last heartbeat, None if
    there is no engine of ours.

    ``overhead_seconds`` is the time of the engine's own code in all steps: wall time of its thread, including waits for
    the masks of constrained answers, without drafting, the runner's calls and waits for the device; and for delivery,
    on that thread and on the event loops, processor time, because it runs while the device works. What the callers do
    with their tokens is not included. ``batches`` are those of an encoder engine, which has no pages, and ``requests``
    those of an engine that generates. ``tiers`` is None without any.

    ``num_pages`` pages have ``page_size`` positions each, those of the first of several groups of layers.
    ``max_adapters`` can be loaded at once; ``running_adapters`` and ``waiting_adapters`` are those of requests.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: Annotated[
        float,
        Metric("gauge", "vllm:kv_cache_usage_perc", "Share of the pages of keys and values that are in use, 0 to 1."),
    ] = 0
    kv_waste: Annotated[
        float,
        Metric("gauge", "nearfar:kv_cache_waste_perc", "Share of the slots in these pages that hold no token, 0 to 1."),
    ] = 0
    prefix_queries: Annotated[
        int, Metric("counter", "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
    ] = 0
    prefix_hits: Annotated[int, Metric("counter", "vllm:prefix_cache_hits", "Prompt tokens found there.")] = 0
    state_snapshots: Annotated[
        int, Metric("gauge", "nearfar:state_snapshots", "Snapshots of recurrent states in the prefix cache.")
    ] = 0
    state_hits: Annotated[
        int, Metric("counter", "nearfar:state_hits", "Requests that continued after such a snapshot.")
    ] = 0
    image_cache_bytes: Annotated[
        int, Metric("gauge", "nearfar:mm_cache_bytes", "Memory of the features of images that are retained.")
    ] = 0
    image_queries: Annotated[
        int, Metric("counter", "vllm:mm_cache_queries", "Images, or tiles of them, in prompts.")
    ] = 0
    image_hits: Annotated[
        int, Metric("counter", "vllm:mm_cache_hits", "Those whose features were retained, or computed already.")
    ] = 0
    preemptions: Annotated[
        int, Metric("counter", "vllm:num_preemptions", "Requests that were preempted and computed again.")
    ] = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    exported_tokens: Annotated[
        int, Metric("counter", "nearfar:exported_tokens", "Prompt tokens whose pages were read for other servers.")
    ] = 0
    exported_bytes: Annotated[int, Metric("counter", "nearfar:exported_bytes", "Bytes of these pages.")] = 0
    imported_tokens: Annotated[
        int, Metric("counter", "nearfar:imported_tokens", "Prompt tokens whose pages another server computed.")
    ] = 0
    imported_bytes: Annotated[int, Metric("counter", "nearfar:imported_bytes", "Bytes of these pages.")] = 0
    steps: Annotated[int, Metric("counter", "nearfar:engine_steps", "Steps of the device.")] = 0
    overhead_seconds: Annotated[
        float, Metric("counter", "nearfar:engine_overhead_seconds", "Time spent in the engine itself, over all steps.")
    ] = 0
    drafted_tokens: Annotated[int, Metric("counter", "vllm:spec_decode_num_draft_tokens", "Tokens in drafts.")] = 0
    accepted_tokens: Annotated[
        int, Metric("counter", "vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.")
    ] = 0
    recoveries: int = 0
    failure: NearfarError | None = None
    restarts: Annotated[
        int, Metric("counter", "nearfar:engine_restarts", "Starts of the engine's process after it failed or hung.")
    ] = 0
    silent_seconds: Annotated[
        float | None,
        Metric("gauge", "nearfar:engine_heartbeat_age_seconds", "Time since the engine's process last responded."),
    ] = 0
    batches: BatchStats | None = None
    tiers: TierStats | None = None
    requests: RequestStats | None = None
    page_size: int = 0
    num_pages: int = 0
    max_adapters: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()


class _Counts:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


class BatchRecord:
    """Filled by the engine's thread; `snapshot` is callable from any. ``recoveries``: failures of the device that the
    engine survived.
    """

    def __init__(self) -> None:
        self._texts, self._tokens = _Counts(SIZES), _Counts(TOKENS)
        self._queue, self._compute = _Counts(SECONDS), _Counts(SECONDS)
        self.recoveries = 0

    def admitted(self, seconds: Iterable[float]) -> None:
        for each in seconds:
            self._queue.add(each)

    def computed(self, texts: int, tokens: int, seconds: float) -> None:
        self._texts.add(texts)
        self._tokens.add(tokens)
        self._compute.add(seconds)

    def snapshot(self) -> BatchStats:
        return BatchStats(
            self._texts.snapshot(), self._tokens.snapshot(), self._queue.snapshot(), self._compute.snapshot()
        )


class RequestRecord:
    """Filled by the engine's thread; `snapshot` is callable from any."""

    def __init__(self) -> None:
        self._step = _Counts(STEP_TOKENS)
        self._prompt, self._generation = _Counts(REQUEST_TOKENS), _Counts(REQUEST_TOKENS)
        self._prefill, self._decode = _Counts(PHASE_SECONDS), _Counts(PHASE_SECONDS)

    def step(self, tokens: int) -> None:
        self._step.add(tokens)

    def ended(self, prompt_tokens: int, generated: int, prefill_seconds: float, decode_seconds: float) -> None:
        self._prompt.add(prompt_tokens)
        self._generation.add(generated)
        self._prefill.add(prefill_seconds)
        self._decode.add(decode_seconds)

    def snapshot(self) -> RequestStats:
        return RequestStats(
            self._step.snapshot(),
            self._prompt.snapshot(),
            self._generation.snapshot(),
            self._prefill.snapshot(),
            self._decode.snapshot(),
        )
