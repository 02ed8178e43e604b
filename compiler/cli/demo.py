"""nearfar demo: run a bundle in a real browser, from the terminal.

The command compiles the demo model (or uses a bundle), serves the page on this machine, types the prompts in headless
Chromium, prints the streamed answers with their speed and saves a screenshot. Unless it got a bundle or prompts, it
also sends what the demo model that hears writes down of three recordings, and asks the one that sees about three
pictures. With --document it also visits the documents page, adds the files and prints the passages that it finds. With
--serve it only serves the pages, for the user's own browser.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..browser.page_server import PageServer, require_page
from ..bundle.folder import Bundle, open_bundle
from ..demo import DEMOS, MODELS, PICTURES, RECORDINGS
from ..pipeline.compile import compile_model
from ..pipeline.options import CompileOptions
from ..runtime.errors import BundleError, RequestError
from .options import Demo
from .output import megabytes, new_console
from .phases import phases, progress_bars
from .program import program

QUESTION = "can the cloud see my confidential messages?"
PASSAGE_SHOWN = 160
PROMPTS: Sequence[str] = ("dim the kitchen lights to 30 percent", "what is 27 + 58?", "sort pear apple fig")


@dataclass(frozen=True, slots=True)
class Prompt:
    """``file``: the recording that says it, or the picture that it asks about."""

    text: str
    file: Path | None = None


def run(options: Demo) -> None:
    if options.list:
        show_models(new_console())
        return
    if options.policy is not None and options.far is None:
        raise RequestError("--policy chooses between this device and a server; name the server with --far URL")
    if options.policy is not None and not options.policy.is_file():
        raise RequestError(f"--policy {options.policy}: the file does not exist")
    if options.far is not None and not options.far.startswith(("http://", "https://")):
        raise RequestError(f"--far {options.far}: is not the URL of a server; write http://host:port")
    documents = options.document
    require_documents(options)
    given = (options.bundle, options.encoder, options.transcriber, options.finder)
    opened = {place: open_page_bundle(place) for place in given if place is not None and not names_demo(place)}
    # Before the demo models are compiled, which takes 20 seconds each.
    require_page()
    # Addresses and paths are not wrapped.
    console = new_console(soft_wrap=True)
    # The models that see and hear are asked besides the one that answers.
    alone = options.bundle is not None or len(options.prompt) > 0
    with tempfile.TemporaryDirectory(prefix="nearfar-") as name:
        folder = Path(name)
        encoder = transcriber = finder = None
        if options.transcriber is not None or not (options.serve or alone):
            place = options.transcriber or Path("demo-ears")
            transcriber = opened.get(place) or compile_demo(str(place), folder, console)
            if not transcriber.manifest.transcribes:
                raise RequestError(
                    f"--transcriber {place}: transcribes no sound; give the bundle of a model that does, such as "
                    "Whisper, or demo-ears"
                )
        if options.encoder is not None or options.serve or documents:
            place = options.encoder or Path("demo-encoder")
            encoder = opened.get(place) or compile_demo(str(place), folder, console)
            if encoder.manifest.embedding is None:
                raise RequestError(f"--encoder {place}: makes no embeddings; give the bundle of an embedding model")
        if options.finder is not None:
            finder = opened.get(options.finder) or compile_demo(str(options.finder), folder, console)
            if finder.manifest.classifier is None or not finder.manifest.classifier.per_token:
                raise RequestError(
                    f"--finder {options.finder}: labels no tokens; give the bundle of a classifier of tokens, or "
                    "demo-finder"
                )
        place = options.bundle or Path("demo")
        bundle = opened.get(place) or compile_demo(str(place), folder, console)
        with PageServer(
            bundle.path,
            options.port,
            far=options.far,
            policy=options.policy,
            encoder=None if encoder is None else encoder.path,
            transcriber=None if transcriber is None else transcriber.path,
            finder=None if finder is None else finder.path,
        ) as server:
            if options.serve:
                serve(server, options.far, console)
                return
            prompts = [Prompt(text) for text in options.prompt or PROMPTS]
            if server.transcribes:
                prompts += hear(server, RECORDINGS)
            device = show(server, prompts, options.screenshot, console)
            if documents:
                show_documents(server, documents, options.question or QUESTION, options.screenshot, console)
        if not alone:
            show_pictures(folder, options.screenshot, console)
        show_hints(device, console)


def require_documents(options: Demo) -> None:
    """Raises RequestError for options that need others, and for a file that does not exist."""
    if options.serve and options.document:
        raise RequestError("--document is for a page in headless Chromium; with --serve, drop the files on the page")
    if options.question is not None and not options.document:
        raise RequestError("--question is for documents; add --document FILE")
    if options.encoder is not None and not options.serve and not options.document:
        raise RequestError("--encoder is for the documents page; add --serve, or --document FILE")
    if options.transcriber is not None and not options.serve:
        raise RequestError("--transcriber is for what you say to the pages; add --serve")
    if options.finder is not None and (not options.serve or options.far is None):
        raise RequestError("--finder is for what the chat page sends to a server; add --serve and --far URL")
    for file in options.document:
        if not file.is_file():
            raise RequestError(f"--document {file}: the file does not exist")


def names_demo(place: Path) -> bool:
    return str(place) in DEMOS and not place.exists()


def open_page_bundle(path: Path) -> Bundle:
    """Raises BundleError, also for a bundle that browsers cannot run."""
    bundle = open_bundle(path)
    if bundle.manifest.target != "webgpu":
        raise BundleError(
            f"{path}: is a bundle for {bundle.manifest.target}; compile one for browsers with --target webgpu"
        )
    return bundle


def compile_demo(name: str, folder: Path, console: Console) -> Bundle:
    """A demo model (DEMOS) as a bundle in ``folder``.

    The encoder has 8-bit weights, which keep the vectors (tests/demo_encoder/README.md). So has the finder, which was
    measured with them.
    """
    options = CompileOptions(quantization="q8f16") if name in ("demo-encoder", "demo-finder") else CompileOptions()
    started = time.perf_counter()
    with progress_bars() as bars:
        bundle = compile_model(str(DEMOS[name]), folder / name, options, phases(bars))
    seconds = time.perf_counter() - started
    console.print(f"compiled {name} for webgpu: {megabytes(bundle.size_bytes())} in {seconds:.1f} s", highlight=False)
    return bundle


def serve(server: PageServer, far: str | None, console: Console) -> None:
    url, browsers = escape(server.chat_url), "Chrome, Edge, Safari 26, Firefox 141 or newer"
    console.print(
        f"open [bold]{url}[/] in a browser with WebGPU ({browsers}); Ctrl-C stops the server", highlight=False
    )
    console.print(f"[bold]{server.url}bench.html[/] measures the device", highlight=False)
    if server.embeds:
        console.print(f"[bold]{escape(server.documents_url)}[/] answers from your documents", highlight=False)
    if server.transcribes:
        console.print(f"[bold]{server.transcripts_url}[/] writes down what is said", highlight=False)
        console.print(f"[bold]{escape(server.voice_url)}[/] answers it by voice", highlight=False)
    if far is not None:
        console.print(
            f"{escape(far)} must allow this page: start it with [bold]--cors-origin {server.origin}[/]", highlight=False
        )
    while True:
        time.sleep(3600)


def hear(server: PageServer, recordings: Sequence[Path]) -> Sequence[Prompt]:
    """What the transcripts page writes down of each recording."""
    from ..browser.transcripts_page import TranscriptsPage

    with TranscriptsPage(server.transcripts_url) as page:
        page.wait_until_ready()
        return [Prompt(page.transcribe(recording), recording) for recording in recordings]


def show(server: PageServer, prompts: Sequence[Prompt], screenshot: Path, console: Console) -> str:
    """Send the prompts, and return the device's description."""
    from ..browser.chromium import Page

    with Page(server.chat_url) as page:
        device = page.wait_until_ready()
        console.print(f"loaded in headless Chromium on {escape(device)}\n", highlight=False)
        for prompt in prompts:
            print_prompt(prompt, console)
            answer = page.ask(
                prompt.text, on_text=lambda text: console.print(escape(text), end="", highlight=False, soft_wrap=True)
            )
            first = f"first token after {answer.time_to_first_token_ms:.0f} ms"
            console.print(f"\n[dim]{first}, {answer.tokens_per_second:.1f} tokens/s[/]\n", highlight=False)
        page.screenshot(screenshot)
    console.print(f"screenshot: {escape(str(screenshot))}", highlight=False)
    return device


def show_documents(
    server: PageServer, documents: Sequence[Path], question: str, screenshot: Path, console: Console
) -> None:
    """Add the documents, ask, and print the passages. The model's own words are on the screenshot only: the demo model
    is too small to answer from documents.
    """
    from ..browser.documents_page import DocumentsPage

    screenshot = screenshot.with_stem(f"{screenshot.stem}-documents")
    with DocumentsPage(server.documents_url) as page:
        page.wait_until_ready()
        console.print(f"\ndocuments page: {escape(page.add(documents))}", highlight=False)
        console.print(f"[bold cyan]>[/] {escape(question)}", highlight=False)
        for number, found in enumerate(page.search(question), 1):
            console.print(f"[bold]{number}[/] {escape(found.place)}", highlight=False)
            console.print(f"  [dim]{escape(' '.join(found.text.split())[:PASSAGE_SHOWN])}[/]", highlight=False)
        page.screenshot(screenshot)
    console.print(f"screenshot: {escape(str(screenshot))}", highlight=False)


def show_pictures(folder: Path, screenshot: Path, console: Console) -> None:
    """Ask the demo model that sees about its pictures, on a page of its own. It was trained on conversations about one
    picture, so each has a chat of its own.
    """
    from ..browser.chromium import Page

    console.print()
    screenshot = screenshot.with_stem(f"{screenshot.stem}-pictures")
    bundle = compile_demo("demo-eyes", folder, console)
    with PageServer(bundle.path) as server, Page(server.chat_url) as page:
        page.wait_until_ready()
        for number, (picture, question) in enumerate(PICTURES):
            if number > 0:
                page.start_new_chat()
            answer = page.ask(question, pictures=[picture])
            print_prompt(Prompt(question, picture), console)
            console.print(escape(answer.text), highlight=False)
        page.screenshot(screenshot)
    console.print(f"screenshot: {escape(str(screenshot))}", highlight=False)


def print_prompt(prompt: Prompt, console: Console) -> None:
    file = "" if prompt.file is None else f"[dim]{escape(str(prompt.file))}[/] "
    console.print(f"[bold cyan]>[/] {file}{escape(prompt.text)}", highlight=False)


def show_models(console: Console) -> None:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("name", "files", "what it does"):
        table.add_column(name, justify="right" if name == "files" else "left")
    for model in MODELS:
        table.add_row(model.name, megabytes(model.size_bytes()), model.purpose)
    console.print(table)


def show_hints(device: str, console: Console) -> None:
    if "swiftshader" in device.lower():
        console.print(
            "SwiftShader computes on the CPU, so these speeds do not apply to a GPU.", style="dim", highlight=False
        )
    console.print(
        f"to see it yourself, run [bold]{escape(program())} demo --serve[/] and open the address that it prints",
        highlight=False,
    )
