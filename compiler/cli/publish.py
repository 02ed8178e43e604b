"""nearfar publish: bundles of a model become a static site, in a folder, in a repository on the hub or in a bucket."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.markup import escape
from rich.progress import Progress

from ..bundle.entries import OriginEntry
from ..bundle.folder import Bundle, ExportBundle, open_any
from ..bundle.manifest import MANIFEST_FILE
from ..demo import DEMOS
from ..demo import FOLDER as DEMO_FOLDER
from ..formats import Checkpoint, load
from ..formats.origin import license_files
from ..measure.checkpoint_reference import CheckpointReference
from ..measure.quality import DEFAULT_WINDOW, make_windows, measure, require_same_tokens
from ..pipeline.compile import compile_any
from ..pipeline.options import CompileOptions
from ..publish.card import Measured
from ..publish.catalog import Catalog, read_catalog
from ..publish.library import require_library
from ..publish.licenses import license_of, stated
from ..publish.remote import Remote, Uploaded, open_remote, upload_site
from ..publish.site import Published, SiteOptions, Source, require_name, site_name, write_site
from ..runtime.errors import DeviceError, RequestError, ToolError
from ..runtime.text.tokenizer import Tokenizer
from .options import Publish
from .output import megabytes, new_console, print_json, print_note
from .phases import phases, progress_bars
from .program import path_word
from .quality import advance, candidate_of, read_text

# The text on which quality is measured unless the user gives one; it comes with nearfar.
PASSAGES = Path(__file__).parents[1] / "calibration/texts/passages.txt"
# Enough for an estimate; `nearfar quality` measures more.
WINDOWS = 4


def run(options: Publish) -> None:
    if options.output is None and options.to is None:
        raise RequestError(
            "nothing says where to publish; give -o FOLDER, --to hf:OWNER/NAME or --to s3://BUCKET/PREFIX"
        )
    remote = None if options.to is None else open_remote(options.to)
    paths = [Path(DEMOS.get(model, model)) for model in options.models]
    are_bundles = [(path / MANIFEST_FILE).is_file() for path in paths]
    if not all(are_bundles) and len(paths) > 1:
        odd = paths[are_bundles.index(False)]
        raise RequestError(f"{odd}: is not a bundle; give one model to compile, or bundles of one model")
    if are_bundles[0] and (options.target or options.quantization or options.context or options.quality):
        raise RequestError("--target, --quantization, --context and --quality are for a model to compile; remove them")
    if options.web:
        require_library()
    checkpoint, opened = None, [open_any(path) for path in paths] if are_bundles[0] else []
    if not are_bundles[0] or options.reference is not None:
        checkpoint = load(str(options.reference or paths[0]))
    origin = opened[0].manifest.origin if opened else checkpoint.origin if checkpoint is not None else None
    accept_terms(origin, accepted=options.accept_license, may_ask=not options.json)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as scratch:
        bundles = opened or compile_targets(str(paths[0]), Path(scratch), options)
        with progress_bars(quiet=options.json) as bars:
            bars.start()
            measured = [measured_quality(bundle, checkpoint, options, bars) for bundle in bundles]
            sources = [Source(*pair, move=not opened) for pair in zip(bundles, measured, strict=True)]
            name = options.name or site_name(bundles[0].manifest.model)
            require_name(name, sources)
            site = SiteOptions(
                name=name,
                command=command_of(options),
                key=options.key,
                base=base_of(options.base, remote),
                license_files=files_of_license(checkpoint),
                web=options.web,
            )
            output = options.output or Path(scratch) / "site"
            with stage(bars, "writing site"):
                published = write_site(sources, output, site, None if remote is None else catalog_of(remote))
            uploaded = None
            if remote is not None:
                with stage(bars, "uploading"):
                    uploaded = upload_site(output, remote)
        known = license_of(origin)
        if known is not None and known.texts("copy") and not site.license_files and not options.json:
            print_note(
                f"the text of {known.title} is not in the site; put it into the folder of the checkpoint as LICENSE, "
                f"from {known.url}, and publish again{'' if checkpoint else ' with that folder as --reference'}"
            )
        report(options, name, published, uploaded)


def accept_terms(origin: OriginEntry | None, *, accepted: bool, may_ask: bool) -> None:
    """Show the terms that go beyond a notice, and those that are unknown. Raises RequestError unless they are accepted,
    by the option or in a terminal.
    """
    known = license_of(origin)
    if known is not None and not known.terms:
        return
    if known is None:
        lines = ["its files state no license that is known here; find out whether you may publish it"]
    else:
        lines = [f"{each.kind}: {each.text}" for each in known.obligations] + [known.url]
    terms = "\n".join(f"  {line}" for line in lines)
    if accepted:
        if may_ask:
            print_note(f"{stated(origin)}, accepted:\n{terms}")
        return
    if may_ask and sys.stdin.isatty():
        new_console(stderr=True, soft_wrap=True).print(escape(f"{stated(origin)}:\n{terms}"), highlight=False)
        if input("Publish under these terms? Type yes: ").strip().lower() == "yes":
            return
    raise RequestError(
        f"{stated(origin)}: publishing needs your consent to these terms; read them, and add --accept-license:\n{terms}"
    )


def compile_targets(model: str, scratch: Path, options: Publish) -> list[Bundle | ExportBundle]:
    bundles = []
    for target in options.target or ("webgpu",):
        compiling = CompileOptions(
            target=target, quantization=options.quantization, context=options.context, quality=options.quality
        )
        with progress_bars(quiet=options.json) as bars:
            bundles.append(compile_any(model, scratch / target, compiling, phases(bars), note_for(options)))
    return bundles


def note_for(options: Publish) -> Callable[[str], None]:
    return (lambda _: None) if options.json else print_note


@contextmanager
def stage(bars: Progress, name: str) -> Iterator[None]:
    """Show a part whose length nobody knows."""
    task = bars.add_task(name, total=None)
    yield
    bars.update(task, total=1, completed=1)


def measured_quality(
    bundle: Bundle | ExportBundle, checkpoint: Checkpoint | None, options: Publish, bars: Progress
) -> Measured:
    """The bundle against the checkpoint. If that is impossible here, the reason."""
    if not options.measure:
        return Measured(reason="not asked for")
    if checkpoint is None:
        return Measured(reason="the checkpoint was not given (--reference)")
    if checkpoint.task is not None:
        return Measured(reason="the model writes no text; see nearfar quality")
    try:
        require_same_tokens(bundle, checkpoint)
        window = min(DEFAULT_WINDOW, bundle.manifest.context)
        text = read_text(options.text or PASSAGES)
        windows = make_windows(Tokenizer(checkpoint.tokenizer), text, window, options.windows)
        reference = CheckpointReference(checkpoint, window)
        task = bars.add_task("reference", total=len(windows))
        hidden = list(reference.hidden(windows, partial(advance, bars, task)))
        task = bars.add_task(f"measuring {bundle.manifest.target}", total=len(windows))
        with candidate_of(bundle, windows, window, None) as candidate:
            found = measure(candidate, reference, windows, hidden, None, partial(advance, bars, task))
            device = candidate.device
    except (DeviceError, ToolError) as error:
        return Measured(reason=error.message)
    words = options.text.name if options.text is not None else "the text that comes with nearfar"
    return Measured(
        found.kl_mean, found.top1_agreement, found.perplexity_ratio, found.tokens, words, device
    )  # fmt: skip


def files_of_license(checkpoint: Checkpoint | None) -> list[Path]:
    if checkpoint is None:
        return []
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    # The demo models share a text.
    return license_files(folder) or (license_files(DEMO_FOLDER) if folder.parent == DEMO_FOLDER else [])


def command_of(options: Publish) -> str:
    """Without paths of this machine."""
    words = ["nearfar publish", *(path_word(Path(model).name) for model in options.models)]
    words += [f"--target {target}" for target in options.target]
    for flag, value in (("--quantization", options.quantization), ("--context", options.context)):
        words += [] if value is None else [f"{flag} {value}"]
    return " ".join([*words, *([] if options.quality is None else [f"--quality {options.quality}"])])


def base_of(base: str | None, remote: Remote | None) -> str | None:
    """The site's address with a slash at its end. Raises RequestError for what is not an address."""
    address = base or (None if remote is None else remote.address)
    if address is None:
        return None
    if not address.startswith(("https://", "http://")) or any(mark in address for mark in "\"'<> \\"):
        raise RequestError(f"--base {address}: is not an address; write https://host/folder/")
    return address if address.endswith("/") else f"{address}/"


def catalog_of(remote: Remote) -> Catalog | None:
    data = remote.read("catalog.json")
    return None if data is None else read_catalog(data, f"{remote}/catalog.json")


def report(options: Publish, name: str, published: Published, uploaded: Uploaded | None) -> None:
    model = published.catalog.models[name]
    if options.json:
        sent = None if uploaded is None else asdict(uploaded)
        sizes = {"new_bytes": published.new_bytes, "kept_bytes": published.kept_bytes}
        print_json(
            {"name": name, "site": str(options.output), **model.model_dump(mode="json"), **sizes, "uploaded": sent}
        )
        return
    console = new_console(soft_wrap=True, highlight=False)
    kept = f", {megabytes(published.kept_bytes)} kept from the former version" if published.kept_bytes else ""
    console.print(f"[bold green]published[/] {escape(name)}  {megabytes(published.new_bytes)} written{kept}")
    for bundle in model.bundles:
        console.print(f"  {escape(bundle.folder)}  {bundle.quantization}, {megabytes(bundle.download_bytes)}")
    console.print(f"license: {escape(model.license.title)}")
    if uploaded is not None:
        there = f", {uploaded.kept_files} were there already ({megabytes(uploaded.kept_bytes)})"
        console.print(
            f"uploaded {uploaded.files} files to {escape(str(options.to))}  {megabytes(uploaded.bytes)}{there}"
        )
    if options.output is not None:
        where = escape(path_word(str(options.output)))
        console.print(f"[bold]try it:[/]  python3 -m http.server -d {where}    then open http://localhost:8000")
