"""Report: the results of the studies, as tables for the terminal, as JSON and as charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import HORIZONTALS
from rich.markup import escape
from rich.table import Table

from ..bench.summary import milliseconds
from .chart import Line, chart
from .studies import Split, break_even
from .summary import SimulatedSummary

LATENCIES = "latencies in milliseconds: p50 / p90 / p99; in time: within the bounds"


@dataclass(frozen=True, slots=True)
class Report:
    """``notes`` are lines below the table. ``svg`` is None for a study without a chart."""

    table: Table
    json: dict[str, Any]
    svg: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def report_run(summary: SimulatedSummary) -> Report:
    made = _table("", "")
    busy = " ".join(f"{share:.0%}" for share in summary.busy)
    pages = " ".join(f"{share:.0%}" for share in summary.pages)
    rows = [
        ("workers", f"{summary.layout}, {summary.gpus} GPUs"),
        ("requests", f"{summary.requests}{_refused(summary)}"),
        ("time", f"{summary.seconds:.1f} s"),
        ("requests a second", f"{summary.requests_per_second:.2f}"),
        ("output tokens a second", f"{summary.completion_tokens_per_second:.0f}"),
        ("first token, ms: p50 / p90 / p99", milliseconds(summary.time_to_first_token_seconds)),
        ("time per further token, ms", milliseconds(summary.token_seconds)),
        ("whole answer, ms", milliseconds(summary.request_seconds)),
        ("prompt tokens from a cache", _cached(summary)),
        ("preemptions", str(summary.preemptions)),
        ("busy, by worker", busy),
        ("most pages in use, by worker", pages),
    ]
    if summary.in_time is not None:
        rows.insert(2, ("within the bounds", f"{summary.in_time:.1%}"))
    if summary.role_changes is not None:
        rows.append(("workers joined the mixed pool", f"{summary.role_changes} times"))
    if summary.decisions:
        rows.append(("answered near", f"{summary.near_share:.1%}"))
        rows += [(f"decided {name}", str(count)) for name, count in summary.decisions.items()]
    for row in rows:
        made.add_row(*(escape(each) for each in row))
    notes = [f"{summary.cut} answers were ended by the context"] if summary.cut else []
    return Report(made, {"study": "run", "result": summary.to_json()}, notes=notes)


def report_splits(found: Sequence[Split], title: str, requests: int) -> Report:
    """``requests`` were sent in each simulation."""
    made = _table("GPUs", "whole workers", "best split", "its goodput", "split / whole")
    for split in found:
        apart = split.apart
        ratio = "-" if apart is None or not split.whole.rate else f"{apart.rate / split.whole.rate:.2f}"
        made.add_row(
            str(split.gpus),
            f"{split.whole.rate:.2f}",
            "-" if apart is None else escape(apart.layout.name),
            "-" if apart is None else f"{apart.rate:.2f}",
            ratio,
        )
    even = break_even(list(found))
    notes = [
        "goodput: requests a second within the bounds",
        "no split is as good as whole workers up to here"
        if even is None
        else f"from {even} GPUs on, a split is as good as whole workers",
    ]
    highest = max(goodput.rate for split in found for goodput in (split.whole, split.apart) if goodput is not None)
    if highest > 0:
        notes.append(
            f"at {highest:.2f} requests/s, all {requests} requests arrive within {requests / highest:.0f} s; if that "
            "is not much longer than an answer takes, simulate more requests"
        )
    lines = [Line("whole workers", [(split.gpus, split.whole.per_gpu) for split in found])]
    apart_points = [(split.gpus, split.apart.per_gpu) for split in found if split.apart is not None]
    if apart_points:
        lines.append(Line("best split into prefill and decode workers", apart_points))
    svg = chart(title, "GPUs", "goodput of a GPU, requests/s", lines)
    json = {
        "study": "split",
        "break_even_gpus": even,
        "result": [
            {
                "gpus": split.gpus,
                "whole": split.whole.rate,
                "apart": None if split.apart is None else split.apart.rate,
                "prefill": None if split.apart is None else split.apart.layout.prefill,
                "decode": None if split.apart is None else split.apart.layout.decode,
            }
            for split in found
        ],
    }
    return Report(made, json, svg, notes)


def report_caches(found: Sequence[tuple[str, SimulatedSummary]]) -> Report:
    made = _table("prefixes", "from a cache", "saved", "first token", "in time")
    base = found[0][1].prompt_tokens - found[0][1].cached_tokens
    for name, summary in found:
        computed = summary.prompt_tokens - summary.cached_tokens
        made.add_row(
            escape(name),
            f"{summary.cached_tokens / max(1, summary.prompt_tokens):.1%}",
            f"{1 - computed / max(1, base):.1%}",
            milliseconds(summary.time_to_first_token_seconds),
            "-" if summary.in_time is None else f"{summary.in_time:.1%}",
        )
    notes = [LATENCIES, "from a cache: of all prompt tokens; saved: of those that are computed without a store"]
    return Report(made, {"study": "cache", "result": {name: each.to_json() for name, each in found}}, notes=notes)


def report_near(found: Sequence[SimulatedSummary], title: str) -> Report:
    made = _table("GPUs", "near", "first token", "further tokens", "in time")
    for summary in found:
        made.add_row(
            str(summary.gpus),
            f"{summary.near_share:.1%}",
            milliseconds(summary.time_to_first_token_seconds),
            milliseconds(summary.token_seconds),
            "-" if summary.in_time is None else f"{summary.in_time:.1%}",
        )
    lines = [Line("answered near, %", [(each.gpus, 100 * each.near_share) for each in found])]
    if all(each.in_time is not None for each in found):
        lines.append(Line("within the bounds, %", [(each.gpus, 100 * (each.in_time or 0.0)) for each in found]))
    svg = chart(title, "GPUs", "share of requests, %", lines)
    notes = [LATENCIES]
    if any(each.refused for each in found):
        notes.append(f"requests in all, {found[0].requests}{_refused(found[0])}")
    return Report(made, {"study": "near", "result": [each.to_json() for each in found]}, svg, notes)


def _table(*columns: str) -> Table:
    made = Table(box=HORIZONTALS, show_edge=False, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return made


def _refused(summary: SimulatedSummary) -> str:
    listed = ", ".join(f"{count} refused ({reason})" for reason, count in summary.refused.items())
    return f", {listed}" if listed else ""


def _cached(summary: SimulatedSummary) -> str:
    share = summary.cached_tokens / max(1, summary.prompt_tokens)
    stored = f", {summary.stored_tokens:,} tokens of them from a store" if summary.stored_tokens else ""
    return f"{share:.1%}{stored}"
