"""nearfar demo: run a bundle in a real browser, from the terminal.

The command compiles the demo model (or uses a bundle), serves the page on this machine, types the prompts in headless
Chromium, prints the streamed answers with their speed and saves a screenshot. With --document it also visits the
documents page, adds the files and prints the passages that it finds. With --serve it only serves the pages, for the
user's own browser.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..browser.page_server import PageServer, require_page
from ..bundle.folder import Bundle, open_bundle
from ..demo import CHECKPOINT, ENCODER_CHECKPOINT
from ..errors import BundleError, RequestError
from ..pipeline.compile import CompileOptions, compile_model
from .output import add_command, megabytes
from .phases import phases, progress_bars

QUESTION = "can the cloud see my confidential messages?"
PASSAGE_SHOWN = 160
PROMPTS = ("dim the kitchen lights to 30 percent", "what is 27 + 58?", "sort pear apple fig")


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        run,
        example="nearfar demo --prompt 'what is 27 + 58?'",
    )
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=Path, nargs="?", help="a webgpu bundle (default: the demo model, compiled now)"
    )
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="the prompt to send; may be repeated")
    parser.add_argument(
        "--screenshot", type=Path, default=Path("nearfar-demo.png"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--serve", action="store_true", help="serve the page for your own browser until Ctrl-C")
    parser.add_argument(
        "--encoder",
        type=Path,
        metavar="BUNDLE",
        help="a webgpu bundle of an embedding model, with which the documents page searches (default: the demo "
        "encoder, compiled now)",
    )
    parser.add_argument(
        "--document",
        type=Path,
        action="append",
        metavar="FILE",
        help="a text, Markdown or HTML file for the documents page; may be repeated",
    )
    parser.add_argument(
        "--question", metavar="TEXT", help=f"with --document: what to ask the documents page (default: {QUESTION})"
    )
    parser.add_argument(
        "--far",
        metavar="URL",
        help="a server that may answer too, if the policy chooses it: nearfar serve, or a gateway",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="with --far: the policy that chooses the side (default: the page's own)",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="the port of the page's server on 127.0.0.1 (default: a free one)"
    )


def run(options: argparse.Namespace) -> None:
    if options.policy is not None and options.far is None:
        raise RequestError("--policy chooses between this device and a server; name the server with --far URL")
    if options.policy is not None and not options.policy.is_file():
        raise RequestError(f"--policy {options.policy}: the file does not exist")
    if options.far is not None and not options.far.startswith(("http://", "https://")):
        raise RequestError(f"--far {options.far}: is not the URL of a server; write http://host:port")
    documents: list[Path] = options.document or []
    require_documents(options, documents)
    encoder = None if options.encoder is None else open_page_bundle(options.encoder)
    if encoder is not None and encoder.manifest.embedding is None:
        raise RequestError(f"--encoder {options.encoder}: makes no embeddings; give the bundle of an embedding model")
    # Before the demo models are compiled, which takes 20 seconds.
    require_page()
    # Addresses and paths are not wrapped.
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        bundle = open_page_bundle(options.bundle) if options.bundle else compile_demo(Path(folder) / "demo", console)
        if encoder is None and (options.serve or documents):
            encoder = compile_encoder(Path(folder) / "encoder", console)
        with PageServer(
            bundle.path,
            options.port,
            far=options.far,
            policy=options.policy,
            encoder=None if encoder is None else encoder.path,
        ) as server:
            if options.serve:
                serve(server, options.far, console)
                return
            device = show(server, tuple(options.prompt or PROMPTS), options.screenshot, console)
            if documents:
                show_documents(server, documents, options.question or QUESTION, options.screenshot, console)
            show_hints(device, console)


def require_documents(options: argparse.Namespace, documents: list[Path]) -> None:
    """Raises RequestError for options that need others, and for a file that does not exist."""
    if options.serve and documents:
        raise RequestError("--document is for a page in headless Chromium; with --serve, drop the files on the page")
    if options.question is not None and not documents:
        raise RequestError("--question is for documents; add --document FILE")
    if options.encoder is not None and not options.serve and not documents:
        raise RequestError("--encoder is for the documents page; add --serve, or --document FILE")
    for file in documents:
        if not file.is_file():
            raise RequestError(f"--document {file}: the file does not exist")


def open_page_bundle(path: Path) -> Bundle:
    """Raises BundleError, also for a bundle that browsers cannot run."""
    bundle = open_bundle(path)
    if bundle.manifest.target != "webgpu":
        raise BundleError(
            f"{path}: is a bundle for {bundle.manifest.target}; compile one for browsers with --target webgpu"
        )
    return bundle


def compile_demo(output: Path, console: Console) -> Bundle:
    return compile_checkpoint(CHECKPOINT, "model", output, CompileOptions(), console)


def compile_encoder(output: Path, console: Console) -> Bundle:
    """With 8-bit weights, which keep the vectors (tests/demo_encoder/README.md)."""
    return compile_checkpoint(ENCODER_CHECKPOINT, "encoder", output, CompileOptions(quantization="q8f16"), console)


def compile_checkpoint(checkpoint: Path, kind: str, output: Path, options: CompileOptions, console: Console) -> Bundle:
    started = time.perf_counter()
    with progress_bars() as bars:
        bundle = compile_model(str(checkpoint), output, options, phases(bars))
    seconds = time.perf_counter() - started
    console.print(
        f"compiled the demo {kind} for webgpu: {megabytes(bundle.size_bytes())} in {seconds:.1f} s", highlight=False
    )
    return bundle


def serve(server: PageServer, far: str | None, console: Console) -> None:
    url, browsers = escape(server.chat_url), "Chrome, Edge, Safari 26, Firefox 141 or newer"
    console.print(
        f"open [bold]{url}[/] in a browser with WebGPU ({browsers}); Ctrl-C stops the server", highlight=False
    )
    console.print(f"[bold]{server.url}bench.html[/] measures the device", highlight=False)
    if server.embeds:
        console.print(f"[bold]{escape(server.documents_url)}[/] answers from your documents", highlight=False)
    if far is not None:
        console.print(
            f"{escape(far)} must allow this page: start it with [bold]--cors-origin {server.origin}[/]", highlight=False
        )
    while True:
        time.sleep(3600)


def show(server: PageServer, prompts: tuple[str, ...], screenshot: Path, console: Console) -> str:
    """Send the prompts, and return the device's description."""
    from ..browser.chromium import Page

    with Page(server.chat_url) as page:
        device = page.wait_until_ready()
        console.print(f"loaded in headless Chromium on {escape(device)}\n", highlight=False)
        for prompt in prompts:
            console.print(f"[bold cyan]>[/] {escape(prompt)}", highlight=False)
            answer = page.ask(
                prompt, on_text=lambda text: console.print(escape(text), end="", highlight=False, soft_wrap=True)
            )
            first = f"first token after {answer.time_to_first_token_ms:.0f} ms"
            console.print(f"\n[dim]{first}, {answer.tokens_per_second:.1f} tokens/s[/]\n", highlight=False)
        page.screenshot(screenshot)
    console.print(f"screenshot: {escape(str(screenshot))}", highlight=False)
    return device


def show_documents(
    server: PageServer, documents: list[Path], question: str, screenshot: Path, console: Console
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


def show_hints(device: str, console: Console) -> None:
    if "swiftshader" in device.lower():
        console.print(
            "SwiftShader computes on the CPU, so these speeds do not apply to a GPU.", style="dim", highlight=False
        )
    program = escape(sys.argv[0]) if sys.argv[0].endswith("nearfar") else "nearfar"
    console.print(
        f"to see it yourself, run [bold]{program} demo --serve[/] and open the address that it prints", highlight=False
    )
