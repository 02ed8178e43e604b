"""Metrics for Prometheus. A metric with the meaning of one of vLLM's has its name, so that vLLM's dashboards and
autoscalers work; all have the label ``model_name``.

Times are measured when chunks leave the executor. A chunk may hold several tokens, so the inter-token latency is the
time between chunks; a block of another server's chunks counts as one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..engine.stats import BatchStats, EngineStats, Histogram, RequestStats, TierStats, metrics
from ..executors.executor import ExecutorState, Models
from .exchange import Exchange
from .latencies import Latencies, ManyHistogram

MODEL = "model_name"
# A variable of Prometheus' library: a folder in which the processes of a server keep their figures.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
# Seconds. The buckets are close to vLLM's and extend far enough for long prompts on a CPU.
FIRST_TOKEN_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
NEXT_TOKEN_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
)
REQUEST_BUCKETS = (
    0.01,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
)

# The metrics read from an executor's state: name, help text, field of the state.
GAUGES = (
    ("vllm:num_requests_running", "Requests that the device is processing.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait.", "waiting"),
    ("nearfar:memory_bytes", "Memory that the model holds on its device.", "memory_bytes"),
    ("nearfar:model_ready", "1 if the model can answer, else 0.", "ready"),
)


class Metrics:
    def __init__(self, models: Models) -> None:
        registry = self._registry = CollectorRegistry()
        self._states = _States(models)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> PrometheusHistogram:
            return PrometheusHistogram(name, text, [MODEL], buckets=buckets, registry=registry)

        self.first_token = histogram(
            "vllm:time_to_first_token_seconds", "Time until the first token is sent.", FIRST_TOKEN_BUCKETS
        )
        self._next_token = ManyHistogram(
            "vllm:inter_token_latency_seconds",
            "Time between the chunks of an answer.",
            [MODEL],
            buckets=NEXT_TOKEN_BUCKETS,
            registry=registry,
        )
        self._latencies: dict[str, Latencies] = {}
        self.latency = histogram("vllm:e2e_request_latency_seconds", "Time until the answer ends.", REQUEST_BUCKETS)
        self.queue = histogram("vllm:request_queue_time_seconds", "Time until the device begins.", REQUEST_BUCKETS)
        self.inferences = PrometheusHistogram(
            "nearfar:inference_time_seconds",
            "Time of a request to a model, by its outcome: success or fail.",
            [MODEL, "outcome"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.last_inference = Gauge(
            "nearfar:last_inference_timestamp_seconds",
            "When the last request to a model ended, in seconds since 1970.",
            [MODEL],
            registry=registry,
            multiprocess_mode="max",
        )
        self.steps = PrometheusHistogram(
            "nearfar:step_time_seconds",
            "Time of a step of a pipeline.",
            [MODEL, "step"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = Counter("vllm:prompt_tokens", "Tokens of prompts.", [MODEL], registry=registry)
        self.generation_tokens = Counter("vllm:generation_tokens", "Tokens of answers.", [MODEL], registry=registry)
        self.success = Counter(
            "vllm:request_success", "Completed answers by finish reason.", [MODEL, "finished_reason"], registry=registry
        )
        self.routes = Counter(
            "nearfar:route", "Answers by the side that began them, and why.", ["side", "reason"], registry=registry
        )
        self.switches = Counter(
            "nearfar:switches", "Answers that the other side continued.", ["from", "to", "reason"], registry=registry
        )
        self.front_end_restarts = Counter(
            "nearfar:front_end_restarts", "Starts of front ends after they failed or hung.", registry=registry
        )
        self.http = Counter("http_requests", "HTTP requests.", ["handler", "method", "status"], registry=registry)

    def text(self) -> bytes:
        """In Prometheus' text format; with several front ends, the figures of all of them."""
        for latencies in self._latencies.values():
            latencies.flush()
        states = CollectorRegistry()
        states.register(self._states)
        return generate_latest(states) + generate_latest(self._counted())

    def value(self, name: str, **labels: str) -> float:
        """A sample of one of the metrics that requests count, such as "vllm:request_queue_time_seconds_sum"; 0 if it
        has none.
        """
        return self._counted().get_sample_value(name, labels) or 0.0

    def _counted(self) -> CollectorRegistry:
        """What the requests of all front ends have counted."""
        if SHARED_FOLDER not in os.environ:
            return self._registry
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return together

    def next_token(self, model: str) -> Latencies:
        """The times between the chunks of a model's answers."""
        latencies = self._latencies.get(model)
        if latencies is None:
            latencies = self._latencies[model] = Latencies(self._next_token.labels(model))
        return latencies

    def inference(self, model: str, status: int, seconds: float) -> None:
        """A request to a loaded model has ended."""
        self.inferences.labels(model, "success" if status < 400 else "fail").observe(seconds)
        self.last_inference.labels(model).set(time.time())

    def count(self, model: str, prompt_tokens: int, completion_tokens: int, exchange: Exchange) -> None:
        self.prompt_tokens.labels(model).inc(prompt_tokens)
        self.generation_tokens.labels(model).inc(completion_tokens)
        if exchange.admission is not None:
            exchange.admission.tokens(prompt_tokens + completion_tokens)
        exchange.log["prompt_tokens"] = prompt_tokens
        exchange.log["completion_tokens"] = completion_tokens


class _States(Collector):
    """The metrics from the executors' states, read at each scrape."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        states: Mapping[str, ExecutorState] = self._models.states()
        for name, text, field in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=[MODEL])
            for model, state in states.items():
                if (value := getattr(state, field)) is not None:
                    gauge.add_metric([model], float(value))
            yield gauge
        yield from _numbers(EngineStats, {model: state.engine for model, state in states.items()})
        yield from _numbers(TierStats, {model: state.engine.tiers for model, state in states.items()})
        yield from _histograms(BatchStats, {model: state.engine.batches for model, state in states.items()})
        yield from _histograms(RequestStats, {model: state.engine.requests for model, state in states.items()})
        yield from _infos(states)
        yield from _prefills(states)

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that no state is read before the models exist."""
        return iter(())


# Of decode workers: name, help text, field of `PrefillState`.
PREFILLS = (
    ("nearfar:prefill_transfers", "Transfers of pages from prefill workers.", "transfers"),
    ("nearfar:prefill_transfer_tokens", "Prompt tokens whose pages they brought.", "tokens"),
    ("nearfar:prefill_transfer_bytes", "Bytes received in them.", "bytes"),
    ("nearfar:prefill_transfer_seconds", "Time that prompts waited for them.", "seconds"),
)


def _prefills(states: Mapping[str, ExecutorState]) -> Iterator[Metric]:
    of = {model: state.prefill for model, state in states.items() if state.prefill is not None}
    answering = GaugeMetricFamily("nearfar:prefill_workers_answering", "Prefill workers that answer.", labels=[MODEL])
    fallbacks = CounterMetricFamily(
        "nearfar:prefill_fallbacks", "Prompts that prefill workers did not complete.", labels=[MODEL, "reason"]
    )
    for model, prefill in of.items():
        answering.add_metric([model], prefill.answering)
        for reason, count in prefill.fallbacks.items():
            fallbacks.add_metric([model, reason], count)
    yield answering
    yield fallbacks
    for name, text, field in PREFILLS:
        family = CounterMetricFamily(name, text, labels=[MODEL])
        for model, prefill in of.items():
            family.add_metric([model], getattr(prefill, field))
        yield family


def _numbers(kind: type[EngineStats] | type[TierStats], found: Mapping[str, object]) -> Iterator[Metric]:
    """``found`` are the stats of this kind by model, None for a model that has none."""
    for (metric, name, text), field in metrics(kind):
        family = (GaugeMetricFamily if metric == "gauge" else CounterMetricFamily)(name, text, labels=[MODEL])
        for model, stats in found.items():
            if (value := getattr(stats, field, None)) is not None:
                family.add_metric([model], float(value))
        yield family


def _histograms(kind: type[BatchStats] | type[RequestStats], found: Mapping[str, object]) -> Iterator[Metric]:
    """``found`` are the stats of this kind by model, None for a model that has none."""
    for (_, name, text), field in metrics(kind):
        histogram = HistogramMetricFamily(name, text, labels=[MODEL])
        for model, stats in found.items():
            if stats is not None:
                counts: Histogram = getattr(stats, field)
                histogram.add_metric([model], _buckets(counts), counts.total)
        yield histogram


def _infos(states: Mapping[str, ExecutorState]) -> Iterator[Metric]:
    """Facts as labels, in vLLM's form, which autoscalers and routers read."""
    cache = GaugeMetricFamily(
        "vllm:cache_config_info",
        "The pages of keys and values of a model.",
        labels=[MODEL, "block_size", "num_gpu_blocks", "enable_prefix_caching"],
    )
    adapters = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "The adapters of requests, and when that was so, in seconds since 1970.",
        labels=[MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
    )
    for model, state in states.items():
        engine = state.engine
        if engine.num_pages:
            cache.add_metric([model, str(engine.page_size), str(engine.num_pages), "True"], 1)
        if engine.max_adapters:
            names = ",".join(engine.running_adapters), ",".join(engine.waiting_adapters)
            adapters.add_metric([model, str(engine.max_adapters), *names], time.time())
    yield cache
    yield adapters


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus counts them: the values up to each bound."""
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
