"""The packed package in applications of every common bundler, in an extension, and against the checkers of packages.

The tools are those of tests/web/bundlers/package.json, installed into build/bundlers from npm's registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, lacks
from fake_openai import MODEL, FakeOpenAI, in_a_thread
from guides import write_guide
from packed_web import ANSWER_MS, SOURCES, answers, copy_app, pack, run, unpack, write_page
from playwright.sync_api import Browser, BrowserContext, Page, expect
from static_site import serve

from nearfar.compiler.browser.chromium import FLAGS, find_chromium

INSTALLED = ROOT / "build/bundlers"
INSTALL_SECONDS = 600
# npm's output without a network.
OFFLINE = ("EAI_AGAIN", "ECONNREFUSED", "ENETUNREACH", "ENOTFOUND", "ETIMEDOUT")
APP = (
    "miniflare.mjs",
    "ask.js",
    "main.js",
    "worker_main.js",
    "engine_worker.js",
    "service_worker.js",
    "service_worker_main.js",
)

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def tarball(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    return pack(tmp_path_factory.mktemp("tarball"))


@pytest.fixture(scope="module")
def tools(tarball: Path) -> Path:
    """A folder whose node_modules has the bundlers and the package. Applications are folders in it."""
    INSTALLED.mkdir(parents=True, exist_ok=True)
    lock = SOURCES / "package-lock.json"
    marker = INSTALLED / "node_modules/.installed"
    if not marker.is_file() or marker.read_text() != lock.read_text():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCES / name, INSTALLED)
        # Not `npm ci`: the lockfile has no packages for other platforms than Linux.
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            command, cwd=INSTALLED, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
        if any(code in done.stderr for code in OFFLINE):
            lacks(
                f"npm's registry cannot be reached, from which the bundlers of tests/web/bundlers come: "
                f"{done.stderr.strip()[:200]}"
            )
        assert done.returncode == 0, done.stderr
        marker.write_text(lock.read_text())
    unpack(tarball, INSTALLED / "node_modules")
    return INSTALLED


@dataclass(frozen=True, slots=True)
class App:
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def tool(self, name: str, *arguments: str) -> str:
        """Run a bundler in the application's folder. Its standard output."""
        return run(
            [str(INSTALLED / "node_modules/.bin" / name), *arguments], self.folder, {"NEXT_TELEMETRY_DISABLED": "1"}
        )


@pytest.fixture
def app(tools: Path, light_demo: Path, request: pytest.FixtureRequest) -> App:
    """An application without configuration, in a new folder."""
    folder = tools / request.node.originalname
    shutil.rmtree(folder, ignore_errors=True)
    copy_app(folder, APP, light_demo)
    return App(folder)


@pytest.mark.parametrize(("entry", "later"), [("main", ["grammar"]), ("worker_main", [])])
def test_vite_builds_a_page(page: Page, app: App, entry: str, later: list[str]) -> None:
    write_page(app.folder, entry)
    app.tool("vite", "build", "--base=./", "--outDir=out", "--emptyOutDir=false")
    with serve(app.out) as url:
        found = answers(page, url)
    found.check()
    assert [name.partition("-")[0] for name in found.scripts_for_json] == later


def test_vite_serves_a_page_for_development(page: Page, app: App) -> None:
    write_page(app.folder, "main")
    (app.folder / "bundle").symlink_to(app.out / "bundle")
    command = [str(INSTALLED / "node_modules/.bin/vite")]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=app.folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = next(found[0] for line in server.stdout if (found := re.search(r"http://localhost:\d+/", line)))
            answers(page, url).check()
        finally:
            server.terminate()


def test_rollup_builds_a_page(page: Page, app: App) -> None:
    app.tool(
        "rollup", "main.js", "--dir=out", "--format=es", "--plugin=@rollup/plugin-node-resolve", "--failAfterWarnings"
    )
    write_page(app.out, "main")
    with serve(app.out) as url:
        found = answers(page, url)
    found.check()
    assert [name.partition("-")[0] for name in found.scripts_for_json] == ["grammar"]


@pytest.mark.parametrize(
    "config", [{}, {"@parcel/resolver-default": {"packageExports": True}}], ids=["main", "exports"]
)
def test_parcel_builds_a_page(page: Page, app: App, config: dict[str, object]) -> None:
    write_page(app.folder, "main")
    (app.folder / "package.json").write_text(json.dumps(config))
    app.tool("parcel", "build", "index.html", "--dist-dir=out", "--no-cache", "--no-autoinstall", "--public-url=./")
    with serve(app.out) as url:
        found = answers(page, url)
    found.check()
    assert [name.partition(".")[0] for name in found.scripts_for_json] == ["grammar"]


@pytest.mark.parametrize("bundler", ["--turbopack", "--webpack"])
def test_next_builds_a_page_of_its_app_router(page: Page, app: App, light_demo: Path, bundler: str) -> None:
    shutil.copytree(SOURCES / "next", app.folder, dirs_exist_ok=True)
    shutil.rmtree(app.out)
    printed = app.tool("next", "build", bundler)
    assert "warning" not in printed.lower(), printed
    (app.out / "bundle").symlink_to(light_demo)
    with serve(app.out) as url:
        found = answers(page, url)
    found.check()
    assert len(found.scripts_for_json) == 1


# Frameworks, how each checks the types of its guide, and how it builds.
GUIDES: Mapping[str, Sequence[Sequence[str]]] = {
    "next": [("next", "build")],
    "vue": [("vue-tsc", "--noEmit"), ("vite", "build", "--outDir=out", "--emptyOutDir=false")],
    "svelte": [
        ("svelte-check", "--fail-on-warnings"),
        ("vite", "build", "--outDir=out", "--emptyOutDir=false"),
    ],
    "angular": [("ng", "build")],
}


@pytest.mark.parametrize("framework", list(GUIDES))
def test_the_guide_of_a_framework_is_an_application_that_answers(
    page: Page, tools: Path, light_demo: Path, framework: str
) -> None:
    app = App(tools / f"guide_{framework}")
    shutil.rmtree(app.folder, ignore_errors=True)
    shutil.copytree(SOURCES / framework, app.folder)
    (app.folder / "app/page.js").unlink(missing_ok=True)
    (app.folder / "package.json").write_text('{ "type": "module" }')
    write_guide(framework, app.folder)
    for command in GUIDES[framework]:
        app.tool(*command)
    (app.out / "bundle").symlink_to(light_demo)
    with serve(app.out) as url:
        page.goto(url)
        page.get_by_role("button", name="Ask").click(timeout=ANSWER_MS)
        expect(page.get_by_text("27 + 58 = 85")).to_be_visible(timeout=ANSWER_MS)


def test_the_guide_of_the_relay_is_a_worker_behind_which_a_page_is_answered(page: Page, app: App, node: str) -> None:
    write_guide("relay", app.folder)
    far = FakeOpenAI()
    with serve(app.out) as url, in_a_thread(far) as address, miniflare(app, node, address, url.rstrip("/")) as relay:
        replaced = {
            "https://far.your-name.workers.dev": relay.rstrip("/"),
            "the server's name of a model": MODEL,
            # It never loads, so that far answers however slow this machine is.
            '"/bundle/"': "new Promise(() => {})",
        }
        write_guide("relay", app.folder, replaced)
        write_page(app.folder, "main")
        app.tool("vite", "build", "--base=./", "--outDir=out", "--emptyOutDir=false")
        page.goto(url)
        expect(page.get_by_text("hi (far: ")).to_be_visible(timeout=ANSWER_MS)
    assert {request.headers["authorization"] for request in far.received} == {"Bearer secret"}


@contextmanager
def miniflare(app: App, node: str, far: str, origin: str) -> Iterator[str]:
    """The address of the application's relay, on Cloudflare's own runtime."""
    with subprocess.Popen(
        [node, "miniflare.mjs", far, origin], cwd=app.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as relay:
        assert relay.stdout is not None
        address = relay.stdout.readline().strip()
        assert address.startswith("http"), address
        yield address
        # Its end ends the relay.
        relay.communicate()


def test_an_extension_answers_in_its_page_and_in_its_service_worker(browser: Browser, app: App) -> None:
    inputs = ["main.js", "service_worker.js", "service_worker_main.js"]
    app.tool(
        "rollup", *inputs, "--dir=out", "--format=es", "--plugin=@rollup/plugin-node-resolve", "--failAfterWarnings"
    )
    shutil.copy(SOURCES / "extension/manifest.json", app.out)
    with extension(browser, app.out) as (context, address):
        for entry in ("main", "service_worker_main"):
            write_page(app.out, entry, name=entry)
            answers(context.new_page(), f"{address}{entry}.html").check()


@contextmanager
def extension(browser: Browser, folder: Path) -> Iterator[tuple[BrowserContext, str]]:
    """A browser with the folder as an unpacked extension, and the address of its pages."""
    # Chromium makes the id of an extension without a key from its folder.
    id = (
        hashlib.sha256(str(folder).encode())
        .hexdigest()[:32]
        .translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))
    )
    context = browser.browser_type.launch_persistent_context(
        "",
        executable_path=find_chromium(),
        args=[*FLAGS, f"--disable-extensions-except={folder}", f"--load-extension={folder}"],
        ignore_default_args=["--disable-extensions"],
    )
    try:
        # The machine may be busy.
        context.set_default_timeout(180_000)
        yield context, f"chrome-extension://{id}/"
    finally:
        context.close()


def test_the_guide_of_the_extension_is_one_that_answers(browser: Browser, light_demo: Path, tmp_path: Path) -> None:
    # Chromium follows no links out of an extension.
    for script in ROOT.glob("web/dist/*.js"):
        shutil.copy(script, tmp_path)
    shutil.copytree(light_demo, tmp_path / "bundle")
    write_guide("extension", tmp_path)
    with extension(browser, tmp_path) as (context, address):
        page = context.new_page()
        page.goto(f"{address}popup.html")
        page.get_by_role("button", name="Ask").click(timeout=ANSWER_MS)
        expect(page.locator("#answer")).to_have_text("27 + 58 = 85", timeout=ANSWER_MS)


def test_publint_finds_nothing(app: App) -> None:
    assert (
        app.tool("publint", "run", "--strict", str(INSTALLED / "node_modules/@nearfar/web"))
        .strip()
        .endswith("All good!")
    )


def test_every_entry_has_types_in_every_kind_of_resolution(app: App, tarball: Path) -> None:
    # The package has ES modules only. Its exports are unknown to the resolution that TypeScript had before them.
    app.tool("attw", str(tarball), "--profile", "esm-only")
