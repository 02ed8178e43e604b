"""Prints how bundles compare with their checkpoint: a table with a summary, or one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..bundle.folder import Bundle, ExportBundle
from ..measure.report import weight_bytes_of
from ..runtime.errors import QuantizationError
from .options import Quality
from .output import new_console, print_json


@dataclass(frozen=True, slots=True)
class Comparison:
    """``window``: the most tokens of a text. ``entries``: one for each bundle, for JSON. ``devices`` computed them.
    ``losses``: the names of the bundles, and how far each is from its checkpoint, in the unit of ``--fail-above``.
    """

    window: int
    entries: Sequence[dict[str, Any]]
    table: Table
    summary: str
    devices: Sequence[str]
    losses: Sequence[tuple[str, float]]

    def show(self, options: Quality) -> None:
        """Print as the options of `nearfar quality` ask for. Raises QuantizationError for a bundle beyond
        ``--fail-above``.
        """
        self._print(options)
        bound = options.fail_above
        # NaN is no quality either.
        worse = [f"{name} {loss:.3g}" for name, loss in self.losses if bound is not None and not loss <= bound]
        if worse:
            raise QuantizationError(
                f"farther from the checkpoint than --fail-above {bound:g}: {', '.join(worse)}; compile with more bits "
                "or smaller groups, or allow more"
            )

    def _print(self, options: Quality) -> None:
        if options.json:
            texts = {"reference": options.reference, "text": str(options.text), "window": self.window}
            print_json({**texts, "bundles": self.entries})
            return
        console = new_console()
        console.print(self.table)
        console.print(self.summary, highlight=False)
        for device in dict.fromkeys(self.devices):
            console.print(f"computed by {escape(device)}", highlight=False)


def bundle_entry(bundle: Bundle | ExportBundle, device: str, quality: Any, **formats: object) -> dict[str, Any]:
    """The JSON entry of a bundle. ``quality`` is a dataclass; ``formats``: more about how the weights are stored."""
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.path),
        "target": manifest.target,
        "quantization": manifest.quantization,
        **formats,
        "device": device,
        "weight_bytes": weight_bytes_of(bundle),
        **asdict(quality),
    }


def comparison_table(title: str, columns: Sequence[str]) -> Table:
    """A table of bundles, with these columns of numbers."""
    made = Table(title=f"{title} compared with the checkpoint's in float32", title_justify="left")
    made.add_column("bundle", overflow="fold")
    for column in columns:
        made.add_column(column, justify="right")
    return made
