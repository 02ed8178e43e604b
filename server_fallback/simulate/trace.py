"""Traces: recorded arrivals with the lengths of prompts and answers, in the three forms in which they are published.

* CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens, as in Azure's traces of 2023 and 2024;
* JSON lines with timestamp (ms), input_length, output_length and hash_ids, as in Mooncake's: each id is a block of 512
  tokens of the prompt, and prompts that begin with the same ids begin with the same tokens;
* JSON lines with arrival_seconds, prompt_tokens and output_tokens.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nearfar.compiler.given_file import MAX_DATA_BYTES, read_given_text
from nearfar.compiler.runtime.errors import RequestError, reason_of

HASHED_TOKENS = 512
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
OWN = ("arrival_seconds", "prompt_tokens", "output_tokens")


class Recorded(NamedTuple):
    """``blocks`` are the ids of the prompt's blocks of HASHED_TOKENS; None if they are unknown."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] | None = None


def read_trace(path: Path) -> list[Recorded]:
    """In the order of arrival; the first request arrives at 0. Requests without a prompt or without an answer, which
    servers refused, are left out. Raises RequestError, which names the line, for a file in another form.
    """
    try:
        text = read_given_text(path, MAX_DATA_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{path}: cannot be read: {reason_of(error) if isinstance(error, OSError) else error}"
        ) from error
    lines = text.splitlines()
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    rows = _json_rows(path, lines) if is_json else _csv_rows(path, lines)
    found = sorted(
        (row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0), key=lambda row: row.arrival
    )
    if not found:
        raise RequestError(f"{path}: has no requests")
    first = found[0].arrival
    return [row._replace(arrival=row.arrival - first) for row in found]


def _csv_rows(path: Path, lines: list[str]) -> Iterable[Recorded]:
    rows = csv.DictReader(lines)
    if tuple(rows.fieldnames or ()) != AZURE:
        raise RequestError(
            f"{path}: is not a trace; its first line must be {','.join(AZURE)}, or JSON with the keys "
            f"{', '.join(MOONCAKE)} or {', '.join(OWN)}"
        )
    for number, row in enumerate(rows, 2):
        yield _checked(path, number, partial(_azure, row))


def _azure(row: Mapping[str, str]) -> Recorded:
    # Fractions of seven digits are more than older Pythons read.
    at, _, fraction = row["TIMESTAMP"].partition(".")
    seconds = datetime.fromisoformat(at).timestamp() + float(f"0.{fraction[:6].partition('+')[0] or 0}")
    return Recorded(seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _json_rows(path: Path, lines: list[str]) -> Iterable[Recorded]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _checked(path, number, partial(_recorded, line))


def _recorded(line: str) -> Recorded:
    value = json.loads(line)
    keys = set(value) if isinstance(value, dict) else set()
    if keys == set(MOONCAKE):
        blocks = tuple(map(int, value["hash_ids"]))
        needed = -(-value["input_length"] // HASHED_TOKENS)
        if len(blocks) < needed:
            raise ValueError(f"{value['input_length']} tokens need {needed} hash_ids, not {len(blocks)}")
        return Recorded(value["timestamp"] / 1000, value["input_length"], value["output_length"], blocks[:needed])
    if keys == set(OWN):
        return Recorded(value["arrival_seconds"], value["prompt_tokens"], value["output_tokens"])
    raise ValueError(
        f"the keys must be {', '.join(MOONCAKE)} or {', '.join(OWN)}, not {', '.join(sorted(keys)) or 'none'}"
    )


def _checked(path: Path, number: int, read: Callable[[], Recorded]) -> Recorded:
    try:
        return read()
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise RequestError(f"{path}:{number}: is not a request of a trace: {error}") from error
