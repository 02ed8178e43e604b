"""Statistics of models, in the form of Triton's extension "Statistics": counts, and sums of times in nanoseconds."""

from __future__ import annotations

from typing import Any

from ..api.service import Service
from ..engine.stats import BatchStats, Histogram, RequestStats
from ..executors.executor import UnknownModel
from ..executors.model_table import NOT_LOADED
from .model_tensors import VERSION

NONE: dict[str, int] = {"count": 0, "ns": 0}


def statistics(service: Service, model: str | None = None) -> list[dict[str, Any]]:
    """Those of a model, or of all. Raises UnknownModel.

    Requests count under the name that they gave, over any API; what the engine has computed counts for the model.
    ``execution_count`` are batches of texts, or steps of a model that generates.
    """
    cards = [card for card in service.models.cards() if card.id == model or (model is None and card.id == card.root)]
    if model is not None and not cards:
        raise UnknownModel(f"the model {model[:100]!r} does not exist here")
    states = service.models.states()
    found = []
    for card in cards:
        engine = states.get(service.root_of(card.id), NOT_LOADED).engine
        requests = {outcome: _requests(service, card.id, outcome) for outcome in ("success", "fail")}
        computed = engine.batches or engine.requests
        count, executions = _counts(computed, engine.steps)
        found.append(
            {
                "name": card.id,
                "version": VERSION,
                "last_inference": round(
                    1000 * service.metrics.value("nearfar:last_inference_timestamp_seconds", model_name=card.id)
                ),
                "inference_count": count,
                "execution_count": executions,
                "inference_stats": {
                    **requests,
                    "queue": _queue(service, card.id, computed),
                    "compute_input": NONE,
                    "compute_infer": _computed(computed),
                    "compute_output": NONE,
                    "cache_hit": NONE,
                    "cache_miss": NONE,
                },
                "batch_stats": [],
            }
        )
    return found


def _requests(service: Service, model: str, outcome: str) -> dict[str, int]:
    return _sum_of(service, "nearfar:inference_time_seconds", model_name=model, outcome=outcome)


def _sum_of(service: Service, histogram: str, **labels: str) -> dict[str, int]:
    count, seconds = (service.metrics.value(f"{histogram}_{end}", **labels) for end in ("count", "sum"))
    return {"count": int(count), "ns": round(seconds * 1e9)}


def _counts(computed: BatchStats | RequestStats | None, steps: int) -> tuple[int, int]:
    """The texts or answers that were computed, and in how many batches or steps."""
    if isinstance(computed, BatchStats):
        return int(computed.texts.total), computed.texts.count
    return (0, 0) if computed is None else (computed.prompt_tokens.count, steps)


def _queue(service: Service, model: str, computed: BatchStats | RequestStats | None) -> dict[str, int]:
    if isinstance(computed, BatchStats):
        return _total(computed.queue_seconds)
    return _sum_of(service, "vllm:request_queue_time_seconds", model_name=model)


def _computed(computed: BatchStats | RequestStats | None) -> dict[str, int]:
    if computed is None:
        return NONE
    if isinstance(computed, BatchStats):
        return _total(computed.compute_seconds)
    prefill, decode = _total(computed.prefill_seconds), _total(computed.decode_seconds)
    return {"count": prefill["count"], "ns": prefill["ns"] + decode["ns"]}


def _total(histogram: Histogram) -> dict[str, int]:
    return {"count": histogram.count, "ns": round(histogram.total * 1e9)}
