"""The result of a soak test: each criterion, its figure and whether it holds, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from .phases import Phase
from .watch import slope_bytes_per_minute

MOST_P99_GROWTH = 2.0
MOST_GAP_SECONDS = 0.1
# Slower growth in the second half counts as flat. Runs of a few minutes are too short to measure it.
MOST_GROWTH_MB_PER_MINUTE = 5.0
# Relative to the memory of the server and its children before the attacks.
MOST_PEAK_MEGABYTES = 1000.0


@dataclass(frozen=True, slots=True)
class Criterion:
    name: str
    figure: str
    holds: bool


@dataclass(frozen=True, slots=True)
class SoakResult:
    """``attacks``: statuses and findings by attack. ``leaked``: whether private text reached the far side, None without
    a gateway.
    """

    baseline: Phase
    attacked: Phase
    liveness: Mapping[str, Any]
    memory: list[tuple[float, int, int]]
    attacks: Mapping[str, Mapping[str, Any]]
    leaked: bool | None
    public_arrived: bool
    server_alive: bool
    server_exit_code: int | None

    def criteria(self) -> list[Criterion]:
        phases = (self.baseline, self.attacked)
        compared, equal = sum(each.compared for each in phases), sum(each.equal for each in phases)
        failures = sum(
            number for each in phases for status, number in each.statuses.items() if status >= 500 or status == 0
        )
        failures += sum(each.broken_connections for each in phases)
        refused = sum(number for each in phases for status, number in each.statuses.items() if 400 <= status < 500)
        mistaken = sum(len(each.wrong_status) for each in phases)
        before, beside = self.baseline.percentile(0.99), self.attacked.percentile(0.99)
        gap = max(self.liveness["seconds"], default=0.0)
        gaps = sum(seconds > MOST_GAP_SECONDS for seconds in self.liveness["seconds"])
        waited = (
            f"{1000 * gap:.0f} ms; {gaps} of {len(self.liveness['seconds']):,} over {1000 * MOST_GAP_SECONDS:.0f} ms"
        )
        peak = self.peak_megabytes()
        growth = self.growth_megabytes_per_minute()
        findings = [f"{name}: {finding}" for name, found in self.attacks.items() for finding in found["findings"]]
        rows = [
            Criterion("honest answers equal to those given alone", f"{equal:,} of {compared:,}", equal == compared > 0),
            Criterion("honest requests with a 5xx or a broken connection", f"{failures:,}", failures == 0),
            Criterion("honest requests refused", f"{refused:,}", refused == 0),
            Criterion("invalid requests with an unexpected status", f"{mistaken:,}", mistaken == 0),
            Criterion(
                "honest p99 during the attacks", f"{before:.2f} s -> {beside:.2f} s", beside <= MOST_P99_GROWTH * before
            ),
            Criterion(
                "longest wait for /health/live", waited, gap <= MOST_GAP_SECONDS and not self.liveness["failures"]
            ),
            Criterion(
                "growth of memory in the second half", f"{growth:+.1f} MB/min", growth <= MOST_GROWTH_MB_PER_MINUTE
            ),
            Criterion("peak of memory above that without attacks", f"{peak:+.0f} MB", peak <= MOST_PEAK_MEGABYTES),
            Criterion("attacks that came through", str(len(findings)), not findings),
            Criterion("the server still runs at the end", str(self.server_alive), self.server_alive),
            Criterion("its exit code after SIGTERM", str(self.server_exit_code), self.server_exit_code == 0),
        ]
        if self.leaked is not None:
            figure = (
                "arrived"
                if self.leaked
                else "none arrived"
                if self.public_arrived
                else "nothing arrived, not even public text"
            )
            rows.append(Criterion("private text at the far side", figure, not self.leaked and self.public_arrived))
        return rows

    def growth_megabytes_per_minute(self) -> float:
        samples = [(seconds, server + children) for seconds, server, children in self.memory]
        return slope_bytes_per_minute(samples[len(samples) // 2 :]) / 1e6

    def peak_megabytes(self) -> float:
        sums = [(seconds, server + children) for seconds, server, children in self.memory]
        before = max((size for seconds, size in sums if seconds <= self.baseline.seconds), default=0)
        return (max((size for _, size in sums), default=0) - before) / 1e6

    def to_json(self) -> dict[str, Any]:
        return {
            "criteria": [{"name": each.name, "figure": each.figure, "holds": each.holds} for each in self.criteria()],
            "phases": {
                name: _phase_json(phase) for name, phase in (("baseline", self.baseline), ("attacked", self.attacked))
            },
            "liveness": {
                "polls": len(self.liveness["seconds"]),
                "longest_seconds": sorted(self.liveness["seconds"])[-20:],
                "failures": self.liveness["failures"],
                "watcher_late_seconds": self.liveness["late_wake_seconds"],
            },
            "memory_seconds_server_children": self.memory,
            "attacks": self.attacks,
        }

    def print(self, console: Console) -> None:
        table = Table(title="honest clients", title_justify="left")
        for column in ("answers", "alone: number", "p50, s", "p99, s", "attacked: number", "p50, s", "p99, s"):
            table.add_column(column, justify="right")
        kinds = sorted({outcome.kind for outcome in self.baseline.outcomes})
        for kind in (None, *kinds):
            cells = [kind or "all"]
            for phase in (self.baseline, self.attacked):
                number = sum(outcome.status == 200 and kind in (None, outcome.kind) for outcome in phase.outcomes)
                cells += [f"{number:,}", f"{phase.percentile(0.5, kind):.2f}", f"{phase.percentile(0.99, kind):.2f}"]
            table.add_row(*cells)
        console.print(table)
        table = Table(title="attacks", title_justify="left")
        for column in ("attack", "responses by status (0: broken connection, -1: timeout)", "came through"):
            table.add_column(column)
        for name, found in self.attacks.items():
            counts = ", ".join(f"{status}: {number}" for status, number in sorted(found["statuses"].items()))
            table.add_row(name, counts, "\n".join(sorted(set(found["findings"]))[:5]))
        console.print(table)
        if self.memory:
            _, server, children = self.memory[-1]
            most = max(server + children for _, server, children in self.memory)
            console.print(
                f"memory at the end: server {server / 1e6:.0f} MB, children {children / 1e6:.0f} MB; "
                f"at most {most / 1e6:.0f} MB in all"
            )
        console.print(
            f"the watching process itself woke up to  {1000 * self.liveness['late_wake_seconds']:.0f} ms late"
        )
        table = Table(title="criteria", title_justify="left")
        for column in ("", "criterion", "figure"):
            table.add_column(column)
        for each in self.criteria():
            table.add_row("pass" if each.holds else "FAIL", each.name, each.figure)
        console.print(table)


def _phase_json(phase: Phase) -> dict[str, Any]:
    kinds = sorted({outcome.kind for outcome in phase.outcomes})
    return {
        "seconds": phase.seconds,
        "statuses": {str(status): number for status, number in phase.statuses.items()},
        "compared": phase.compared,
        "equal": phase.equal,
        "differences": phase.differences[:20],
        "errors": [
            f"{outcome.kind}: {outcome.status} {outcome.error}" for outcome in phase.outcomes if outcome.status != 200
        ][:20],
        "broken_connections": phase.broken_connections,
        "wrong_answered": phase.wrong_answered,
        "wrong_status": phase.wrong_status[:20],
        "p50_seconds": phase.percentile(0.5),
        "p99_seconds": phase.percentile(0.99),
        "p99_seconds_by_kind": {kind: phase.percentile(0.99, kind) for kind in kinds},
    }
