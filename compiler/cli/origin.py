"""What commands print about where a model comes from and what its license asks of whoever publishes it."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from ..bundle.entries import OriginEntry
from ..publish.licenses import license_of, stated


def add_origin(table: Table, origin: OriginEntry | None) -> None:
    if origin is None:
        table.add_row("license", "unknown: the bundle was compiled by a release that did not record it")
        return
    known = license_of(origin)
    link = origin.license_link or (None if known is None else known.url)
    read_from = f" (from {', '.join(origin.read_from)})" if origin.license is not None else ""
    lines = [f"{stated(origin)}{read_from}", *([link] if link else [])]
    lines += [] if known is None else [f"{each.kind}: {each.text}" for each in known.obligations]
    made_from = [name for name in (origin.repository, *origin.base_models) if name is not None]
    table.add_row("license", escape("\n".join(lines)))
    table.add_row("made from", escape(", ".join(made_from) or "unknown: its files name no base model"))


def origin_json(origin: OriginEntry | None) -> dict[str, Any] | None:
    if origin is None:
        return None
    known = license_of(origin)
    terms = None if known is None else {"id": known.id, "url": known.url, "obligations": known.obligations_json()}
    return {**origin.model_dump(), "known_license": terms}
