"""Summary: the figures of one load, as rows of a table, as JSON and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import HORIZONTALS
from rich.table import Table

from nearfar.compiler.runtime.errors import ToolError

from .client import Outcome

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In seconds; None if nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """``errors`` counts failed requests by message. Tokens and times are those of the other requests. ``seconds`` is
    the duration of the entire load.
    """

    concurrency: int
    requests: int
    failed: int
    errors: dict[str, int]
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests_per_second: float
    prompt_tokens_per_second: float
    completion_tokens_per_second: float
    time_to_first_token_seconds: Percentiles
    inter_token_seconds: Percentiles
    request_seconds: Percentiles

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(concurrency: int, outcomes: Sequence[Outcome], seconds: float) -> Summary:
    well = [outcome for outcome in outcomes if outcome.error is None]
    prompt, completion = (
        sum(outcome.prompt_tokens for outcome in well),
        sum(outcome.completion_tokens for outcome in well),
    )
    return Summary(
        concurrency=concurrency,
        requests=len(outcomes),
        failed=len(outcomes) - len(well),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None).most_common()),
        seconds=seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(outcome.cached_tokens for outcome in well),
        completion_tokens=completion,
        requests_per_second=len(well) / seconds,
        prompt_tokens_per_second=prompt / seconds,
        completion_tokens_per_second=completion / seconds,
        time_to_first_token_seconds=percentiles([outcome.time_to_first_token for outcome in well]),
        inter_token_seconds=percentiles([gap for outcome in well for gap in outcome.gaps]),
        request_seconds=percentiles([outcome.total for outcome in well]),
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles(None, None, None)
    return Percentiles(*(float(value) for value in np.percentile(values, PERCENTILES)))


def table(summaries: Sequence[Summary]) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    made = Table(box=HORIZONTALS, show_edge=False, pad_edge=False, caption="latencies in milliseconds: p50 / p90 / p99")
    for column in ("clients", "sent", "failed", "out tok/s", "in tok/s", "first token", "next token"):
        made.add_column(column, justify="right", no_wrap=True)
    for summary in summaries:
        made.add_row(
            str(summary.concurrency),
            str(summary.requests),
            f"[red]{summary.failed}[/]" if summary.failed else "0",
            f"{summary.completion_tokens_per_second:.0f}",
            f"{summary.prompt_tokens_per_second:.0f}",
            milliseconds(summary.time_to_first_token_seconds),
            milliseconds(summary.inter_token_seconds),
        )
    return made


def milliseconds(measured: Percentiles) -> str:
    values = (measured.p50, measured.p90, measured.p99)
    return " / ".join("-" if value is None else f"{value * 1000:.{1 if value < 0.01 else 0}f}" for value in values)


def plot(summaries: Sequence[Summary], title: str, file: Path) -> None:
    """Throughput and the two latencies by concurrency. Raises ToolError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolError("--plot needs matplotlib: pip install 'nearfar[bench]'") from error
    figure = Figure(figsize=(12, 4), layout="constrained")
    throughput, first, following = figure.subplots(1, 3)
    clients = [summary.concurrency for summary in summaries]
    throughput.plot(clients, [summary.completion_tokens_per_second for summary in summaries], marker="o")
    throughput.set_title("output tokens per second")
    panels = (
        (first, "time to first token, ms", [summary.time_to_first_token_seconds for summary in summaries]),
        (following, "time between tokens, ms", [summary.inter_token_seconds for summary in summaries]),
    )
    for axes, name, measured in panels:
        for percentile in PERCENTILES:
            values = [getattr(each, f"p{percentile}") for each in measured]
            axes.plot(
                clients,
                [None if value is None else value * 1000 for value in values],
                marker="o",
                label=f"p{percentile}",
            )
        axes.set_title(name)
        axes.legend()
    for axes in (throughput, first, following):
        axes.set_xlabel("clients")
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, [str(count) for count in clients])
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(file, dpi=120)
