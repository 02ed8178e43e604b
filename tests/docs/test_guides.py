"""The files in the guides of web/docs/: each is run, or built and run, by a test. Those of frameworks are in
tests/web/test_package_everywhere.py, and those in Python in tests/server_fallback/cli/test_serve.py.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from fake_openai import FakeOpenAI, in_a_thread
from guides import FILE, guide_commands, guide_files, guides, write_guide
from playwright.sync_api import Page, expect
from static_site import serve

WEB = ROOT / "web"
# The machine may be busy.
# Where the files of each guide are run.
TESTS = {
    **dict.fromkeys(("page", "relay", "phone"), "tests/docs/test_guides.py"),
    **dict.fromkeys(("next", "vue", "svelte", "angular", "extension"), "tests/web/test_package_everywhere.py"),
    **dict.fromkeys(("python", "server"), "tests/server_fallback/cli/test_serve.py"),
}


def test_a_test_runs_the_files_of_every_guide() -> None:
    assert {name for name, text in guides().items() if FILE.search(text)} == set(TESTS)
    for guide, file in TESTS.items():
        assert f'"{guide}"' in (ROOT / file).read_text(), f"{file} does not run web/docs/{guide}.md"


def test_every_block_of_a_guide_is_a_file_that_its_text_names_or_commands() -> None:
    for guide, text in guides().items():
        blocks = [*FILE.findall(text), *guide_commands(guide)]
        assert len(re.findall("^```", text, re.MULTILINE)) == 2 * len(blocks), guide
        prose = FILE.sub("", text)
        assert [name for name in guide_files(guide) if f"`{name}`" not in prose] == [], guide


def test_every_guide_is_reached_from_the_first_one_and_from_the_readme() -> None:
    for text in (guides()["bundle"], (ROOT / "README.md").read_text().replace("](web/docs/", "](")):
        assert [guide for guide in guides() if guide != "bundle" and f"]({guide}.md)" not in text] == []


@pytest.fixture
def plain(light_demo: Path, tmp_path: Path) -> Path:
    """A folder with the scripts and the bundle, as the guides without a bundler ask for."""
    for script in WEB.glob("dist/*.js"):
        (tmp_path / script.name).symlink_to(script)
    (tmp_path / "bundle").symlink_to(light_demo)
    return tmp_path


def ask(page: Page, url: str) -> None:
    page.goto(url)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#answer")).to_have_text("27 + 58 = 85")


@pytest.mark.exhaustive
def test_the_plain_page_answers(page: Page, plain: Path) -> None:
    write_guide("page", plain)
    with serve(plain) as url:
        ask(page, url)


def test_the_plain_page_says_what_is_missing(page: Page, plain: Path) -> None:
    write_guide("page", plain)
    page.add_init_script("delete Navigator.prototype.gpu")
    with serve(plain) as url:
        page.goto(url)
        expect(page.get_by_role("status")).to_contain_text("WebGPU")


@pytest.mark.exhaustive
def test_the_page_for_an_apps_web_view_answers(
    page: Page, plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bundled, as an application's page is."""
    sources = tmp_path_factory.mktemp("phone")
    write_guide("phone", sources)
    modules = sources / "node_modules/@nearfar"
    modules.mkdir(parents=True)
    (modules / "web").symlink_to(WEB)
    (modules / "webview").symlink_to(ROOT / "mobile/webview")
    command = [str(WEB / "node_modules/esbuild/bin/esbuild"), "app.js", "engine_worker.js", "--bundle", "--format=esm"]
    command += ["--splitting", f"--outdir={plain / 'app'}", "--log-level=warning"]
    subprocess.run(command, cwd=sources, check=True)
    (plain / "app/bundle").symlink_to(plain / "bundle")
    (plain / "app/index.html").write_text('<!doctype html><body><script type="module" src="./app.js"></script></body>')
    with serve(plain) as url:
        page.goto(f"{url}app/")
        expect(page.locator("body")).to_contain_text("27 + 58 = 85")


RELAY = """
import relay from "./src/index.js";

const asked = [];
const env = {
  FAR: process.argv[2], FAR_KEY: "secret", PAGE: "https://page.example",
  LIMIT: { limit: async ({ key }) => ({ success: asked.push(key) < 3 }) },
};
const send = async (path, { origin = env.PAGE, ...init } = {}) => {
  const headers = { Origin: origin, "CF-Connecting-IP": "1.2.3.4" };
  const answer = await relay.fetch(new Request(`https://far.example${path}`, { ...init, headers }), env);
  const { status, headers: { "access-control-allow-origin": allowed } } =
    { status: answer.status, headers: Object.fromEntries(answer.headers) };
  return [status, allowed ?? null, await answer.text()];
};
const body = JSON.stringify({ model: "there", messages: [{ role: "user", content: "hello" }], stream: true });
const chat = () => send("/v1/chat/completions", { method: "POST", body });
console.log(JSON.stringify({
  foreign: await send("/v1/models", { origin: "https://other.example" }),
  preflight: await send("/v1/chat/completions", { method: "OPTIONS" }),
  unknown: await send("/v1/files"),
  models: await send("/v1/models"),
  chat: await chat(),
  limited: await chat(),
  asked,
}));
"""


def test_the_relay_holds_the_key_and_passes_on_what_a_hybrid_asks(node: str, tmp_path: Path) -> None:
    write_guide("relay", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "test.js").write_text(RELAY)
    far = FakeOpenAI()
    with in_a_thread(far) as address:
        done = subprocess.run(
            [node, "test.js", address], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    page = "https://page.example"
    assert found["foreign"] == [403, None, "not for this origin"]
    assert found["preflight"] == [204, page, ""]
    assert found["unknown"] == [404, page, "unknown route"]
    assert (found["models"][0], json.loads(found["models"][2])["data"][0]["id"]) == (200, "there")
    assert found["chat"][:2] == [200, page]
    assert '"content": "hi"' in found["chat"][2]
    assert found["chat"][2].rstrip().endswith("data: [DONE]")
    assert found["limited"][0] == 429
    assert found["asked"] == ["1.2.3.4"] * 3
    (chat,) = far.received
    assert chat.headers["authorization"] == "Bearer secret"


NATIVE = """
declare module "react-native" {
  interface Listening { remove(): void }
  type Listener = (state: "active" | "background" | "inactive") => void;
  export const AppState: { addEventListener(type: "change" | "memoryWarning", listener: Listener): Listening };
}
"""


def test_the_typed_files_of_guides_have_the_types_of_the_packages(node: str, tmp_path: Path) -> None:
    """Of Next.js and React Native. The frameworks' own tools check the others."""
    (tmp_path / "page.tsx").write_text(guide_files("next")["app/page.tsx"])
    (tmp_path / "ask.ts").write_text(guide_files("phone")["ask.ts"])
    # React Native itself is not installed here.
    (tmp_path / "native.d.ts").write_text(NATIVE)
    modules = tmp_path / "node_modules"
    (modules / "@nearfar").mkdir(parents=True)
    linked = {
        "@nearfar/web": WEB,
        "@nearfar/react-native": ROOT / "mobile/react-native",
        "onnxruntime-react-native": WEB / "node_modules/onnxruntime-common",
        **{name: WEB / "node_modules" / name for name in ("@types", "expo-file-system", "react")},
    }
    for name, folder in linked.items():
        (modules / name).symlink_to(folder)
    options = json.loads(re.sub(r"//.*", "", (WEB / "tsconfig.json").read_text()))["compilerOptions"]
    options["types"] = []
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts", "*.tsx"]}))
    done = subprocess.run(
        [node, WEB / "node_modules/typescript-7/bin/tsc", "-p", "."], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
