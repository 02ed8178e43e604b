"""Writes a site: a static folder with the bundles of one model or several, each with its card.

catalog.json             the models by name; what `nearfar pull` and `Engine.load(name, { catalog })` read
README.md, index.html    the card of the model, or the list of the models
NAME/README.md, ...      the card of a model, its license, and snippet.html for web pages
NAME/TARGET/             a bundle
nearfar/VERSION/, chat/  the web library and the chat page, if a bundle runs in browsers
_headers, ...            settings of common hosts, which no host needs

The folder is written under a temporary name and renamed at the end, so it is complete or as before. Models that are not
published again, files that a former version has, and all that others have put there (.git, CNAME, robots.txt) are links
to the files of the former folder.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..bundle.folder import Bundle, ExportBundle
from ..bundle.new_folder import new_folder
from ..runtime.errors import OutputError, RequestError
from .bundle_copy import CopiedBundle, copy_bundle, link
from .card import Card, Measured, html_page, markdown, page
from .catalog import (
    CATALOG_FILE,
    Catalog,
    CatalogBundle,
    bundle_entry,
    is_model_name,
    model_entry,
    read_catalog,
    with_model,
)
from .hosts import host_files
from .library import CHAT_FOLDER, LIBRARY_FOLDER, copy_chat, copy_library, snippet
from .licenses import license_of

# What is written again beside the folders of models.
WRITTEN = (CHAT_FOLDER, CATALOG_FILE, "README.md", "index.html", *host_files([]))
# What a site has beside the folders of its models.
RESERVED = (LIBRARY_FOLDER, *WRITTEN)
# Targets that run in a browser.
IN_PAGES = ("webgpu", "onnx")


@dataclass(frozen=True, slots=True)
class Source:
    """A bundle to publish. ``move``: its files may be moved, because it is temporary."""

    bundle: Bundle | ExportBundle
    measured: Measured
    move: bool = False


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """``base``: the address that the site will have; snippets then work on any page. ``license_files``: of the
    checkpoint. ``web``: whether the site has the library and the chat page.
    """

    name: str
    command: str
    key: Path | None = None
    base: str | None = None
    license_files: Sequence[Path] = ()
    web: bool = True


@dataclass(frozen=True, slots=True)
class Published:
    """``former``: whether the site had this model before."""

    catalog: Catalog
    folders: Sequence[str]
    new_bytes: int
    kept_bytes: int
    former: bool


def site_name(model: str) -> str:
    """The name under which a model is published: "Qwen3-0.6B" as "qwen3-0.6b"."""
    return re.sub(r"[^a-z0-9._-]+", "-", model.lower()).strip("-._") or "model"


def require_name(name: str, sources: Sequence[Source]) -> None:
    """Raises RequestError for a name that no folder can have, or that the license does not allow."""
    # File systems without upper case have one file of both names.
    if not is_model_name(name) or name in (reserved.lower() for reserved in RESERVED):
        raise RequestError(
            f"--name {name}: must be lower-case letters, digits, '.', '_' or '-', and not {' or '.join(RESERVED)}"
        )
    known = license_of(sources[0].bundle.manifest.origin)
    for first in [] if known is None else known.texts("name"):
        if not name.startswith(site_name(first)):
            raise RequestError(
                f"--name {name}: {known.title if known else ''} asks that the name of the model begins with '{first}' "
                f"({known.url if known else ''}); give --name {site_name(first)}-..."
            )


def require_one_model(sources: Sequence[Source]) -> None:
    """Raises RequestError for bundles of different models, or two of one kind."""
    first, *others = (source.bundle for source in sources)
    for other in others:
        if (other.manifest.model, other.manifest.task) != (first.manifest.model, first.manifest.task):
            raise RequestError(
                f"{other.path}: is a bundle of {other.manifest.model}, {first.path} of {first.manifest.model}; publish "
                "one model at a time, into the same folder"
            )


def write_site(
    sources: Sequence[Source], output: Path, options: SiteOptions, former: Catalog | None = None
) -> Published:
    """Write the site, or add the model to the site that ``output`` is. ``former``: the catalog of a remote site, whose
    models stay in the catalog.

    Raises OutputError, BundleError, RequestError, ToolError, and what signing raises.
    """
    require_name(options.name, sources)
    require_one_model(sources)
    for source in sources:
        source.bundle.verify()
    own = output / CATALOG_FILE
    before = read_catalog(own.read_bytes(), str(own)) if own.is_file() else None
    if before is not None and options.name not in before.models and (output / options.name).exists():
        raise OutputError(
            f"{output / options.name}: exists, and is not a model of the catalog; choose another --name, or move it"
        )
    if former is not None:
        before = former if before is None else replace_models(former, before)
    with new_folder(output, force=True, marker=CATALOG_FILE) as site:
        copied = copy_bundles(sources, site, output, options)
        entries = [entry_of(each, site, source.measured) for each, source in zip(copied, sources, strict=True)]
        model = model_entry([each.bundle for each in copied], entries)
        catalog = with_model(before, options.name, model)
        keep_others(site, output, options.name)
        write_pages(sources, copied, site, catalog, options)
        (site / CATALOG_FILE).write_bytes(catalog.to_bytes())
    return Published(
        catalog,
        [entry.folder for entry in model.bundles],
        sum(each.new_bytes for each in copied),
        sum(each.kept_bytes for each in copied),
        before is not None and options.name in before.models,
    )


def replace_models(former: Catalog, newer: Catalog) -> Catalog:
    return former.model_copy(update={"models": {**former.models, **newer.models}})


def folder_names(sources: Sequence[Source], name: str) -> list[str]:
    """NAME/TARGET, with the quantization if there are several of a target. Raises RequestError for two alike."""
    manifests = [source.bundle.manifest for source in sources]
    names = []
    for manifest in manifests:
        several = sum(other.target == manifest.target for other in manifests) > 1
        names.append(f"{name}/{manifest.target}{f'-{manifest.quantization}' if several else ''}")
    for index, each in enumerate(names):
        if each in names[:index]:
            raise RequestError(f"{sources[index].bundle.path}: another bundle is {each}, too; publish one of them")
    return names


def copy_bundles(sources: Sequence[Source], site: Path, output: Path, options: SiteOptions) -> list[CopiedBundle]:
    return [
        copy_bundle(source.bundle, site / name, output / name, options.key, move=source.move)
        for source, name in zip(sources, folder_names(sources, options.name), strict=True)
    ]


def entry_of(copied: CopiedBundle, site: Path, measured: Measured) -> CatalogBundle:
    return bundle_entry(
        copied.bundle,
        copied.bundle.path.relative_to(site).as_posix(),
        copied.manifest_sha256,
        kl_mean=measured.kl_mean,
        signed_by=copied.signed_by,
    )


def keep_others(site: Path, output: Path, name: str) -> None:
    """Link the folders of other models, versions of the library, and what others have put into the site."""
    for path in sorted(output.iterdir()) if output.is_dir() else []:
        kept = site / path.name
        if path.name == name or path.name in WRITTEN:
            continue
        if path.is_symlink():
            kept.symlink_to(path.readlink())
        elif path.is_dir():
            shutil.copytree(path, kept, symlinks=True, copy_function=lambda a, b: link(Path(a), Path(b)))
        else:
            link(path, kept)


def write_pages(
    sources: Sequence[Source], copied: Sequence[CopiedBundle], site: Path, catalog: Catalog, options: SiteOptions
) -> None:
    name, model = options.name, catalog.models[options.name]
    origin = sources[0].bundle.manifest.origin
    in_pages = [key for key, each in catalog.models.items() if any(e.target in IN_PAGES for e in each.bundles)]
    # The pages of other models need it, too.
    hashes: Mapping[str, str] = copy_library(site) if options.web and in_pages else {}
    chats = chat_bundles(catalog)
    if options.web and chats:
        copy_chat(site, chats)
    files = write_license(site / name, options.license_files, sources)
    measured = {
        each.bundle.path.relative_to(site).as_posix(): source.measured
        for each, source in zip(copied, sources, strict=True)
    }
    first = next((folder for label, folder in chats if label == name), None)
    runs_in_pages = bool(hashes) and name in in_pages

    def code(base: str) -> str | None:
        return snippet(name, model.task, hashes, options.base or base) if runs_in_pages else None

    card = Card(
        name=name,
        model=model,
        address=options.base,
        origin=origin,
        measured=measured,
        command=options.command,
        generators=list(dict.fromkeys(source.bundle.manifest.generator for source in sources)),
        license_files=files,
        snippet=code("./"),
        chat=f"{CHAT_FOLDER}/?bundle=../{first}/" if options.web and first is not None else None,
    )
    # The files of the model's own folder are one level below.
    chat = None if card.chat is None else f"../{card.chat}"
    inner = replace(card, chat=chat, snippet=code("../"))
    (site / name / "README.md").write_text(markdown(inner), encoding="utf-8")
    (site / name / "index.html").write_text(page([inner]), encoding="utf-8")
    if inner.snippet is not None:
        (site / name / "snippet.html").write_text(inner.snippet, encoding="utf-8")
    if len(catalog.models) == 1:
        (site / "README.md").write_text(markdown(card), encoding="utf-8")
        (site / "index.html").write_text(page([card]), encoding="utf-8")
    else:
        write_list(site, catalog, has_chat=options.web and len(chats) > 0)
    hashed = [each.bundle.path.relative_to(site).as_posix() for each in copied if each.addressed]
    others = [bundle.folder for key, each in catalog.models.items() if key != name for bundle in each.bundles]
    # A bundle whose files have their hash in their names has a shard like this.
    hashed += [each for each in others if any((site / each / "weights").glob("*-????????????.bin"))]
    for file, text in host_files(hashed).items():
        (site / file).write_text(text, encoding="utf-8")


def chat_bundles(catalog: Catalog) -> list[tuple[str, str]]:
    """Name and folder of the bundles with which the page chats."""
    return [
        (name, bundle.folder)
        for name, model in catalog.models.items()
        if model.task == "generate"
        for bundle in model.bundles
        if bundle.target == "webgpu"
    ]


def write_license(folder: Path, files: Sequence[Path], sources: Sequence[Source]) -> list[str]:
    """The checkpoint's files about its terms, and the notice that its license asks for. Returns their names."""
    names = []
    for file in files:
        shutil.copyfile(file, folder / file.name)
        names.append(file.name)
    known = license_of(sources[0].bundle.manifest.origin)
    notices = [] if known is None else known.texts("notice")
    if notices and not any(name.lower().startswith("notice") for name in names):
        (folder / "NOTICE").write_text("\n".join(notices) + "\n", encoding="utf-8")
        names.append("NOTICE")
    return names


def write_list(site: Path, catalog: Catalog, *, has_chat: bool) -> None:
    rows = []
    items = []
    for name, model in catalog.models.items():
        shown = "".join(f" **{line}**" for line in model.license.display)
        rows.append(f"- [{name}]({name}/README.md): {model.model}, {model.license.title}{shown}\n")
        bold = "".join(f" <strong>{html.escape(line)}</strong>" for line in model.license.display)
        items.append(
            f'<li><a href="{name}/index.html">{name}</a>: {html.escape(model.model)}, '
            f"{html.escape(model.license.title)}{bold}</li>\n"
        )
    chat = f'<p><a href="{CHAT_FOLDER}/">Chat with one on this device</a></p>\n' if has_chat else ""
    (site / "README.md").write_text("# Models\n\n" + "".join(rows), encoding="utf-8")
    body = f"<h1>Models</h1>\n{chat}<ul>\n{''.join(items)}</ul>\n"
    (site / "index.html").write_text(html_page("Models", body), encoding="utf-8")
