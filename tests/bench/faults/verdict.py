"""What a run showed: each criterion, its figure and whether it holds, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from .faults import BROKEN, Fault
from .load import Outcome
from .questions import Question

MOST_GROWTH = 0.05
# Events of the log that show a bug of the server.
BUGS = ("crashed", "stuck", "engine_given_up", "engine_hung", "front_end_hung", "main_process_hung", "unexpected_error")


@dataclass(frozen=True, slots=True)
class Criterion:
    name: str
    figure: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """``answered``: how many lines of requests each id has in the logs. ``transfers`` is what the decode worker
    counted. ``growth`` is that of memory by server, None for a run that is too short to measure it. ``wrong``: what is
    left over at the end, and other findings.
    """

    seconds: float
    expected: Mapping[Question, str]
    outcomes: Sequence[Outcome]
    left: int
    faults: Sequence[Fault]
    answered: Mapping[str, int]
    transfers: Mapping[str, float]
    growth: Mapping[str, float | None]
    memory: Mapping[str, Sequence[tuple[float, int]]]
    wrong: Sequence[str]
    bugs: Sequence[str]

    def differences(self) -> list[str]:
        found = [each for each in self.outcomes if each.text is not None and not self._is_equal(each)]
        return [f"{each.question.path} {each.text!r}, alone {self.expected[each.question]!r}" for each in found]

    def unexplained(self) -> list[str]:
        """Failures that no fault explains."""
        return [
            f"{each.question.server} {each.question.path} {each.code}: {each.error}"[:600]
            for each in self.outcomes
            if each.text is None and not any(self._explains(fault, each) for fault in self.faults)
        ]

    def repeated(self) -> list[str]:
        """Ids of requests that were answered other than once. One whose front end was killed has no line, also if the
        answer was complete by then.
        """
        found = []
        for each in self.outcomes:
            count = self.answered.get(each.request_id, 0)
            if count > 1 or (count == 0 and each.text is not None and not self._is_cut(each)):
                found.append(f"{each.request_id}: {count}")
        return found

    def criteria(self) -> list[Criterion]:
        equal = sum(self._is_equal(each) for each in self.outcomes)
        failed = sum(each.text is None for each in self.outcomes)
        unexplained, repeated = self.unexplained(), self.repeated()
        prefilled = self.transfers.get("transfer_tokens", 0.0)
        rows = [
            Criterion("answers equal to those given alone", f"{equal:,}", equal > 0 and not self.differences()),
            Criterion("failures that no fault explains", f"{len(unexplained)} of {failed}", not unexplained),
            Criterion("requests answered other than once", str(len(repeated)), not repeated),
            Criterion("pages, sequences, processes and other findings", str(len(self.wrong)), not self.wrong),
            Criterion("tokens of prompts from the prefill worker", f"{prefilled:,.0f}", prefilled > 0),
            Criterion("lines of the logs about bugs", str(len(self.bugs)), not self.bugs),
        ]
        for name, growth in self.growth.items():
            if growth is not None:
                rows.append(Criterion(f"growth of memory, {name}", f"{100 * growth:+.1f} %", growth <= MOST_GROWTH))
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds),
            "criteria": [{"name": each.name, "figure": each.figure, "holds": each.holds} for each in self.criteria()],
            "answers": sum(each.text is not None for each in self.outcomes),
            "left": self.left,
            "failures": dict(Counter(each.code[:60] for each in self.outcomes if each.text is None)),
            "faults": dict(Counter(f"{each.server}: {each.name}" for each in self.faults)),
            "findings": [*self.differences(), *self.unexplained(), *self.repeated(), *self.wrong, *self.bugs][:200],
            "transfers": self.transfers,
            "memory": self.memory,
        }

    def print(self, console: Console) -> None:
        found = self.to_json()
        for title in ("faults", "failures"):
            table = Table(title, "number", title_justify="left")
            for name, number in sorted(found[title].items()):
                table.add_row(name, str(number))
            console.print(table)
        console.print(f"{found['answers']:,} answers; {self.left:,} that their client left", highlight=False)
        table = Table("", "criterion", "figure")
        for each in self.criteria():
            table.add_row("pass" if each.holds else "FAIL", each.name, each.figure)
        console.print(table)
        for finding in found["findings"][:20]:
            console.print(finding, highlight=False, markup=False)

    def _is_equal(self, outcome: Outcome) -> bool:
        return outcome.text is not None and outcome.question.same(outcome.text, self.expected[outcome.question])

    def _is_cut(self, outcome: Outcome) -> bool:
        return any(self._explains(fault, replace(outcome, code=BROKEN)) for fault in self.faults)

    @staticmethod
    def _explains(fault: Fault, outcome: Outcome) -> bool:
        return fault.explains(outcome.question.server, outcome.code, outcome.began, outcome.ended)
