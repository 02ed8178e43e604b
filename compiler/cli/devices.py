"""nearfar devices: read a folder of probes' reports, which users have sent, into a table and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as xml
from pathlib import Path

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from ..bundle.device_report import REPORT_FORMAT, DeviceReport, PredictedDecode, PredictedFirstToken
from ..bundle.new_folder import new_file
from ..given_file import read_given
from ..runtime.errors import RequestError, reason_of
from .options import Devices
from .output import megabytes, new_console, print_json, print_note

# The prompt and the context of the table's columns, if a report has them; otherwise the nearest.
PROMPT, CONTEXT = 256, 256
# Of the plot, in pixels.
WIDTH, LABELS, ROW, MARGIN = 760, 300, 26, 40
BAR = 10
LETTERS = 46


@dataclass(frozen=True, slots=True)
class Row:
    """A report, and the name of its device."""

    device: str
    report: DeviceReport

    @property
    def first_token(self) -> PredictedFirstToken | None:
        return min(self.report.first_token, key=lambda each: abs(each.prompt_tokens - PROMPT), default=None)

    @property
    def decode(self) -> PredictedDecode | None:
        return min(self.report.decode, key=lambda each: abs(each.context - CONTEXT), default=None)


def run(options: Devices) -> None:
    rows, unread = read_reports(options.folder)
    for problem in unread:
        print_note(f"left out: {problem}")
    if options.plot is not None:
        with new_file(options.plot, force=options.force) as file:
            file.write_text(plot(rows), encoding="utf-8")
    if options.json:
        for row in rows:
            print_json(row.report.model_dump(mode="json"))
        return
    console = new_console()
    console.print(table(rows))
    console.print(caption(), highlight=False)
    if options.plot is not None:
        shown = sum(row.decode is not None for row in rows)
        print_note(f"{options.plot}: the predicted tokens per second, in {shown} of {len(rows)} reports")


def read_reports(folder: Path) -> tuple[list[Row], list[str]]:
    """The reports of a folder's JSON files: by model, the fastest first; and why others are none, because such files
    come from strangers. Raises RequestError for a folder without any report.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder}: is not a folder; give one with the reports that probe() returns")
    rows, unread = list[Row](), list[str]()
    for file in sorted(folder.glob("*.json")):
        try:
            report = read_report(file)
        except RequestError as error:
            unread.append(error.message)
        else:
            rows.append(Row(device_name(report), report))
    if not rows:
        raise RequestError(
            unread[0] if unread else f"{folder}: has no .json files; save the reports there that probe() returns"
        )
    return sorted(
        rows, key=lambda row: (row.report.model, -(row.decode.tokens_per_second if row.decode else 0))
    ), unread


def read_report(file: Path) -> DeviceReport:
    try:
        return DeviceReport.model_validate_json(read_given(file), strict=True)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {reason_of(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(
            f"{file}: is not a report of the format {REPORT_FORMAT} ({where + ': ' if where else ''}{first['msg']}); "
            "save what probe() returns, with the nearfar of its release, or remove the file"
        ) from error


def device_name(report: DeviceReport) -> str:
    """What the browser reveals of the adapter, or the platform."""
    adapter = report.device.adapter
    parts = [adapter.description] if adapter.description else [adapter.vendor, adapter.architecture, adapter.device]
    name = " ".join(part for part in parts if part)
    return visible(name or ", ".join(report.device.platforms)) or "unnamed"


def visible(text: str) -> str:
    """Without the characters by which a report from elsewhere could command a terminal, and that no XML may have."""
    return "".join(each if each.isprintable() else " " for each in text)


def table(rows: Sequence[Row]) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column in ("model, device", "first token, s", "tokens/s", "memory", "result"):
        is_text = column in ("model, device", "result")
        shown.add_column(column, justify="left" if is_text else "right", no_wrap=column == "model, device")
    for index, row in enumerate(rows):
        report = row.report
        if index == 0 or rows[index - 1].report.model != report.model:
            shown.add_row(f"[bold]{escape(visible(report.model))}")
        shown.add_row(f"  {escape(row.device)}", *cells(row))
    return shown


def cells(row: Row) -> list[str]:
    report = row.report
    if report.refusals:
        return ["", "", "", f"[red]refused: {', '.join(each.reason for each in report.refusals)}"]
    first, decode, memory, test = row.first_token, row.decode, report.memory, report.test
    return [
        "" if first is None else span(first.seconds, first.low, first.high),
        "" if decode is None else span(decode.tokens_per_second, decode.low, decode.high),
        "" if memory is None else megabytes(memory.needed),
        "" if test is None else test.state,
    ]


def span(value: float, low: float, high: float) -> str:
    return escape(f"{short(value)} [{short(low)}, {short(high)}]")


def short(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def caption() -> str:
    return (
        f"Predicted: the first token behind a prompt of {PROMPT} tokens, and the tokens per second at that context, "
        "or at the nearest length that the report has. Memory: what the model needs on the device."
    )


def plot(rows: Sequence[Row]) -> str:
    """An SVG with a row for each report: the predicted tokens per second and their interval, on a logarithmic axis."""
    predicted = [(row, row.decode) for row in rows if row.decode is not None]
    bounds = [bound for _, decode in predicted for bound in (decode.low, decode.high)] or [1.0]
    first, last = math.floor(math.log10(min(bounds))), math.ceil(math.log10(max(bounds)))
    last = max(last, first + 1)

    def x(power: float) -> float:
        return LABELS + (WIDTH - LABELS - MARGIN) * (power - first) / (last - first)

    height = MARGIN + ROW * max(1, len(predicted)) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LABELS}" y="20">tokens per second, predicted</text>',
    ]
    for power in range(first, last + 1):
        at = f"{x(power):.1f}"
        shown = f"{10**power:g}" if abs(power) < 10 else f"1e{power}"
        parts += [
            f'<line x1="{at}" x2="{at}" y1="{MARGIN - 10}" y2="{height - MARGIN}" stroke="#ccc"/>',
            f'<text x="{at}" y="{height - MARGIN + 18}" text-anchor="middle">{shown}</text>',
        ]
    for index, (row, decode) in enumerate(predicted):
        y = MARGIN + ROW * index
        name = xml(f"{visible(row.report.model)}, {row.device}"[:LETTERS])
        left, right, middle = (x(math.log10(each)) for each in (decode.low, decode.high, decode.tokens_per_second))
        parts += [
            f'<text x="{LABELS - 12}" y="{y + BAR}" text-anchor="end">{name}</text>',
            f'<rect x="{left:.1f}" y="{y}" width="{max(1.0, right - left):.1f}" height="{BAR}" fill="#9cc3f5"/>',
            f'<circle cx="{middle:.1f}" cy="{y + BAR / 2}" r="4" fill="#1a5fb4"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])
