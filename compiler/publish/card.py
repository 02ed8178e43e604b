"""The card of a published model: README.md with the header that the Hugging Face Hub reads, and the same as a page.

It states what was measured and what was not, the license and what it asks for, and how the bundles were made.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..bundle.entries import OriginEntry
from ..cli.output import megabytes
from ..ir.tasks import Task
from ..runtime.errors import BundleError
from .catalog import CatalogBundle, CatalogModel
from .licenses import Kind, License, license_of, stated

# The hub's names of tasks (huggingface.co/tasks).
PIPELINES: Mapping[Task, str] = {
    "generate": "text-generation",
    "embed": "feature-extraction",
    "rerank": "text-ranking",
    "classify": "text-classification",
    "decide": "text-classification",
    "transcribe": "automatic-speech-recognition",
}
WORDS: Mapping[Kind, str] = {
    "copy": "", "notice": "This notice accompanies the model: ", "display": "A page with the model shows: ",
    "name": "The name of a model that was made with it begins with: ", "changes": "Done by this card: ", "keep": "",
    "use": "", "bound": "",
    "noncommercial": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """The distance of a bundle from its checkpoint, over ``tokens`` tokens of ``text``; or why it was not measured."""

    kl_mean: float | None = None
    top1_agreement: float | None = None
    perplexity_ratio: float | None = None
    tokens: int = 0
    text: str = ""
    device: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        """Raises BundleError for a figure that is not a number: a model that computes none is not published."""
        for name in ("kl_mean", "top1_agreement", "perplexity_ratio"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise BundleError(
                    f"the measured quality is not a number ({name} is {value} over {self.tokens:,} tokens of "
                    f"{self.text}, computed by {self.device}): activations overflow, or the weights are damaged; "
                    "compile it with --quantization f32 and compare both with nearfar quality"
                )

    @property
    def words(self) -> str:
        if self.kl_mean is None or self.top1_agreement is None or self.perplexity_ratio is None:
            return f"not measured: {self.reason}"
        return (
            f"KL {self.kl_mean:.3g} nats, same first token {self.top1_agreement:.1%}, "
            f"perplexity x {self.perplexity_ratio:.4f}"
        )


@dataclass(frozen=True, slots=True)
class Card:
    """``measured``: by the folder of a bundle. ``command`` made the bundles or published them; ``generators`` compiled
    them. ``snippet`` is for web pages, None if no bundle runs in them: for those in the card's folder if the site's
    ``address`` is not known. ``chat``: the address of the chat page.
    """

    name: str
    model: CatalogModel
    origin: OriginEntry | None
    measured: Mapping[str, Measured]
    command: str
    generators: Sequence[str]
    license_files: Sequence[str]
    snippet: str | None
    chat: str | None
    address: str | None = None

    @property
    def where(self) -> str:
        """Of the pages that can have the snippet."""
        return "In a page" if self.address else "In a page in this folder"

    @property
    def license(self) -> License | None:
        return license_of(self.origin)

    def header(self) -> dict[str, Any]:
        """What the hub reads (huggingface.co/docs/hub/model-cards). Without a license that it knows, "other"."""
        origin, known = self.origin, self.license
        header: dict[str, Any] = {}
        if origin is not None and origin.license is not None:
            header["license"] = origin.license
            for key in ("license_name", "license_link"):
                if (value := getattr(origin, key)) is not None:
                    header[key] = value
        elif known is not None:
            header["license"] = known.id
        if self.model.base_models:
            header["base_model"] = list(self.model.base_models)
            header["base_model_relation"] = "quantized"
        targets = dict.fromkeys(bundle.target for bundle in self.model.bundles)
        return {
            **header,
            "library_name": "nearfar",
            "pipeline_tag": PIPELINES[self.model.task],
            "tags": ["nearfar", *targets],
        }

    def rows(self) -> list[tuple[str, ...]]:
        return [
            (
                bundle.folder, weights_of(bundle), megabytes(bundle.download_bytes),
                f"{megabytes(bundle.memory_bytes)} at {bundle.context:,} tokens", self.measured[bundle.folder].words,
                bundle.signed_by or "not signed",
            )
            for bundle in self.model.bundles
        ]  # fmt: skip

    def license_lines(self) -> list[str]:
        known = self.license
        if known is None:
            return ["What it asks of you is not known here; read it before you use the model."]
        lines = [WORDS[each.kind] + each.text for each in known.obligations]
        texts = f"Its text is in {', '.join(self.license_files)}." if self.license_files else ""
        return [*lines, *([texts] if texts else []), f"Source of these lines, which are no legal advice: {known.url}"]

    def making(self) -> list[str]:
        origin = self.origin
        lines = [f"Command: `{self.command}`", f"Compiled by {', '.join(self.generators)}"]
        if origin is not None and origin.repository is not None:
            lines.append(f"Checkpoint: {origin.repository} at revision {origin.revision}")
        if origin is not None and origin.base_models:
            lines.append(f"Made from: {', '.join(origin.base_models)}")
        if origin is not None and origin.read_from:
            lines.append(f"License and base models are stated in: {', '.join(origin.read_from)}")
        measured = next((each for each in self.measured.values() if each.kl_mean is not None), None)
        if measured is not None:
            lines.append(
                f"Quality: against the checkpoint in float32, {measured.tokens:,} tokens of {measured.text}, "
                f"computed by {measured.device}"
            )
        return [*lines, "Changed files: the weights were converted, and rounded unless they are f32"]


COLUMNS = ("bundle", "weights", "download", "memory", "against the checkpoint", "key")


def weights_of(bundle: CatalogBundle) -> str:
    dtypes = ", ".join(entry.dtype for entry in bundle.activations)
    return bundle.quantization + (f" (activations {dtypes})" if dtypes else "")


def markdown(card: Card) -> str:
    import yaml

    header = yaml.safe_dump(card.header(), sort_keys=False, allow_unicode=True, width=1 << 16)
    display = "".join(f"**{line}**\n\n" for line in card.model.license.display)
    link = card.model.license.link
    title = f"[{stated(card.origin)}]({link})" if link else stated(card.origin)
    parts = [
        f"---\n{header}---\n\n# {card.name}\n\n{display}"
        f"{card.model.model}, compiled by nearfar for {', '.join(targets(card))}.\n",
        "## Bundles\n\n" + table(COLUMNS, card.rows()),
        f"## License: {title}\n\n" + bullets(card.license_lines()),
        "## Use\n\n" + use(card),
        "## How it was made\n\n" + bullets(card.making()),
        "## Hashes\n\nSHA-256 of each manifest, which has the hashes of all other files of its bundle:\n\n"
        + table(
            ("manifest", "SHA-256"), [(f"{e.folder}/manifest.json", e.manifest_sha256) for e in card.model.bundles]
        ),
    ]
    return "\n".join(parts)


def targets(card: Card) -> list[str]:
    return list(dict.fromkeys(bundle.target for bundle in card.model.bundles))


def commands(card: Card) -> str:
    """What uses the model without a page."""
    catalog = f"{card.address or 'ADDRESS/'}catalog.json"
    lines = [
        *([f"nearfar run {card.name} --catalog {catalog}"] if card.model.task != "transcribe" else []),
        f"nearfar serve {card.name} --catalog {catalog}",
        f"nearfar pull {card.name} --catalog {catalog} -o {card.name}",
    ]
    return "".join(f"{line}\n" for line in lines)


def use(card: Card) -> str:
    code = "" if card.snippet is None else f"{card.where}:\n\n```html\n{card.snippet}```\n\n"
    return f"{code}On this machine:\n\n```\n{commands(card)}```\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #8888;"
    "padding:.3rem .6rem;text-align:left}code,pre{font-size:.85em;overflow-wrap:anywhere}pre{overflow-x:auto;"
    "border:1px solid #8888;padding:.6rem}"
)


def page(cards: Sequence[Card]) -> str:
    """The site's first page."""
    return html_page(", ".join(card.name for card in cards), "".join(map(section, cards)))


def html_page(title: str, body: str) -> str:
    """A page without scripts. Its icon is empty, because browsers request /favicon.ico of a page that names none."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n<link rel="icon" href="data:," />\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1" />\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def section(card: Card) -> str:
    known, link = stated(card.origin), card.model.license.link
    license_title = html.escape(known)
    if link is not None and link.startswith(("https://", "http://")):
        license_title = f'<a href="{html.escape(link)}">{license_title}</a>'
    display = "".join(f"<p><strong>{html.escape(line)}</strong></p>\n" for line in card.model.license.display)
    chat = "" if card.chat is None else f'<p><a href="{html.escape(card.chat)}">Chat with it on this device</a></p>\n'
    code = "" if card.snippet is None else f"<h2>{card.where}</h2>\n<pre>{html.escape(card.snippet)}</pre>\n"
    code += f"<h2>On this machine</h2>\n<pre>{html.escape(commands(card))}</pre>\n"
    hashes = [(f"{each.folder}/manifest.json", each.manifest_sha256) for each in card.model.bundles]
    return (
        f"<h1>{html.escape(card.name)}</h1>\n{display}<p>{html.escape(card.model.model)}, compiled by nearfar for "
        f"{html.escape(', '.join(targets(card)))}.</p>\n{chat}{html_table(COLUMNS, card.rows())}"
        f"<h2>License: {license_title}</h2>\n{html_list(card.license_lines())}{code}"
        f"<h2>How it was made</h2>\n{html_list(card.making())}{html_table(('manifest', 'SHA-256'), hashes)}"
    )


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}</table>\n"


def html_list(lines: Sequence[str]) -> str:
    """Words between backticks are code."""
    shown = (re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(line)) for line in lines)
    return "<ul>\n" + "".join(f"<li>{line}</li>\n" for line in shown) + "</ul>\n"
