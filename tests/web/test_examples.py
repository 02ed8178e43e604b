"""web/examples/, bundled as an application bundles them, each used once in Chromium with the demo model."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from case_selection import is_exhaustive
from conftest import ROOT, TIMEOUT_MS
from page_whisper import page_whisper
from playwright.sync_api import Browser, BrowserContext, Page, expect
from sounds import chirp, wav
from static_site import serve
from voice_stand_ins import STAND_INS, let_sound

from nearfar.compiler.browser.chromium import FLAGS
from nearfar.compiler.bundle.folder import chat_tree_entry
from nearfar.compiler.runtime.text.chat_template import ChatTemplate
from nearfar.compiler.runtime.text.tool_formats import tool_format

# The machine may be busy.


# Whether the question of the extension is stored, which is before its answer begins.
IS_KEPT = """async () => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("nearfar-journals");
    try {
        const kept = await folder.getDirectoryHandle("answer-popup");
        return (await (await kept.getFileHandle("request")).getFile()).size > 0;
    } catch {
        return false;
    }
}"""


@pytest.fixture(scope="module")
def site(
    node: str,
    chromium: str,  # noqa: ARG001
    light_demo: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """The examples, each in a folder with its bundle: all, or the one that `make test` opens."""
    site = tmp_path_factory.mktemp("examples")
    names = () if is_exhaustive(request) else ("react",)
    subprocess.run([node, str(Path(__file__).with_name("build_examples.mjs")), str(site), *names], check=True)
    examples = list(site.iterdir())
    bundle = site / "bundle"
    shutil.copytree(light_demo, bundle)
    give_tools(bundle)
    for example in examples:
        # Chromium follows no links out of an extension.
        if example.name == "extension":
            shutil.copytree(bundle, example / "bundle")
        else:
            (example / "bundle").symlink_to(bundle)
        if example.name in ("transcripts", "voice"):
            (example / "whisper").symlink_to(page_whisper())
    return site


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with serve(site) as url:
        yield url


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One context for all examples, so that their shared bundle is downloaded once."""
    context = browser.new_context()
    yield context
    context.close()


def give_tools(bundle: Path) -> None:
    """The demo model has no tools: this gives it the template that the examples' README gives it."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    template = (ROOT / "web/examples/tools.jinja").read_text()
    manifest["tokenizer"]["chat_template"] = template
    tree = chat_tree_entry(ChatTemplate(template, {}))
    assert tree is not None
    manifest["tokenizer"]["chat_tree"] = tree.model_dump()
    tools = tool_format(template)
    assert tools is not None
    manifest["tokenizer"]["tools"] = tools.model_dump()
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.exhaustive
def test_the_chat_streams_and_keeps_the_conversation(page: Page, url: str) -> None:
    page.goto(f"{url}chat/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#messages li")).to_have_text(["what is 27 + 58?", "27 + 58 = 85"])
    page.get_by_label("Your question").fill("tell me a story about a fox")
    # In one script, because the answer may be complete before a second click.
    page.evaluate("document.getElementById('send').click(); document.getElementById('stop').click()")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(page.locator("#messages li")).to_have_count(4)
    assert page.locator("#status").text_content() == "ready"


@pytest.mark.exhaustive
def test_the_form_fills_itself_in(page: Page, url: str) -> None:
    page.goto(f"{url}form/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Fill in").click()
    expect(page.get_by_label("Room")).to_have_value("kitchen")
    expect(page.get_by_label("Level")).to_have_value("30")


# The TypeScript tests have calls of tools, and the documents the same template.
@pytest.mark.exhaustive
def test_the_model_calls_a_tool_of_the_page(page: Page, url: str) -> None:
    page.goto(f"{url}tools/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#status")).to_have_text("1 call")
    levels = {room: page.locator(f"#{room}").text_content() for room in ("kitchen", "bedroom")}
    # The demo model may choose either room, because it was not trained for tools.
    assert sorted(level == "100" for level in levels.values()) == [False, True], levels
    assert page.locator("#answer").text_content()


@pytest.mark.exhaustive
def test_an_agent_fills_in_a_form_once_the_user_allows_it(page: Page, url: str) -> None:
    page.goto(f"{url}agent-form/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Do it").click()
    expect(page.locator("#question")).to_contain_text("Allow set_light of page with {")
    assert page.get_by_label("Level").input_value() == ""
    page.get_by_role("button", name="Allow").click()
    expect(page.locator("#status")).to_have_text("filled in")
    assert page.locator("#steps li").all_text_contents() == ["set_light: The form says: kitchen, 30 percent."]
    assert (page.get_by_label("Room").input_value(), page.get_by_label("Level").input_value()) == ("kitchen", "30")
    assert json.loads(page.locator("#written").text_content() or "") == {"room": "kitchen", "level": 30}


@pytest.mark.exhaustive
def test_an_agent_reads_documents_through_an_mcp_server(page: Page, url: str) -> None:
    page.goto(f"{url}agent-documents/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#status")).to_have_text(re.compile("^(answer|steps|tokens|repeated)$"))
    # The model was not trained for tools: it reads, but its answer is not one.
    lines = page.locator("#steps li").all_text_contents()
    assert lines[0] == "read ran: The red fox has the key of the shed."


# web/test/react has the hook, and the chat page a chat in Chromium.
@pytest.mark.exhaustive
def test_the_react_chat_loads_streams_and_regenerates(page: Page, url: str) -> None:
    page.goto(f"{url}react/")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("li.assistant")).to_have_text("27 + 58 = 85")
    page.get_by_role("button", name="Again").click()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(page.locator("li")).to_have_text(["what is 27 + 58?", "27 + 58 = 85"])


@pytest.mark.exhaustive
def test_the_ai_sdk_streams_text_and_makes_an_object(page: Page, url: str) -> None:
    page.goto(f"{url}ai-sdk/")
    expect(page.locator("#status")).to_contain_text("tokens")
    assert page.locator("#text").text_content() == "27 + 58 = 85"
    assert json.loads(page.locator("#object").text_content() or "") == {
        "tool": "set_light",
        "room": "kitchen",
        "level": 30,
    }


@pytest.mark.exhaustive
def test_a_recording_becomes_lines_with_times(page: Page, url: str) -> None:
    page.goto(f"{url}transcripts/")
    expect(page.locator("#status")).to_have_text("ready")
    data = wav((chirp(42_000) * 32767).astype("<i2").tobytes(), 1, 16).replace(b"LIST\x03\0\0\0abc\0", b"")
    page.set_input_files("#file", {"name": "talk.wav", "mimeType": "audio/wav", "buffer": data})
    expect(page.locator("#status")).to_have_text(re.compile("[0-9]+ segments"))
    assert page.locator("#segments li").count() == int((page.text_content("#status") or "").split()[0]) > 1
    page.locator("#segments button").first.click()
    page.wait_for_function("() => document.querySelector('#player').ended")
    start = float((page.locator("#segments button").first.text_content() or "").split()[0])
    page.evaluate("(seconds) => { document.querySelector('#player').currentTime = seconds; }", start + 0.1)
    page.wait_for_function("() => document.querySelector('li').style.fontWeight === 'bold'")


@pytest.mark.exhaustive
def test_what_is_said_is_answered_by_voice(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    page.add_init_script(STAND_INS)
    page.goto(f"{url}voice/")
    expect(page.locator("#status")).to_have_text("ready")
    page.get_by_role("button", name="Talk").click()
    expect(page.locator("#status")).to_have_text("listening")
    let_sound(page, 0.5)
    page.evaluate("() => talk(true)")
    expect(page.locator("#status")).to_have_text("hearing")
    let_sound(page, 0.5)
    page.evaluate("() => talk(false)")
    expect(page.locator("#status")).to_have_text("speaking")
    assert page.text_content("#said")
    assert page.evaluate("() => spoken.length") == 1
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_have_text("off")
    assert "first sound after" in (page.text_content("#time") or "")
    page.close()


@pytest.mark.exhaustive
def test_the_extension_answers_in_its_popup(browser: Browser, chromium: str, site: Path, tmp_path: Path) -> None:
    extension = site / "extension"
    # The id of an unpacked extension is made from its path.
    digest = hashlib.sha256(str(extension).encode()).hexdigest()[:32]
    identity = digest.translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))
    arguments = [*FLAGS, f"--disable-extensions-except={extension}", f"--load-extension={extension}"]
    context = browser.browser_type.launch_persistent_context(str(tmp_path), executable_path=chromium, args=arguments)
    try:
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.goto(f"chrome-extension://{identity}/index.html")
        expect(page.locator("#status")).to_have_text("ready")
        page.get_by_label("Your question").fill("what is 27 + 58?")
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("#answer")).to_have_text("27 + 58 = 85")
        # A popup that closes in mid-answer.
        expect(page.locator("#status")).to_have_text("answered")
        page.get_by_label("Your question").fill("what is 31 + 12?")
        page.get_by_role("button", name="Ask").click()
        page.wait_for_function(IS_KEPT)
        page.close()
        page = context.new_page()
        page.goto(f"chrome-extension://{identity}/index.html")
        expect(page.locator("#answer")).to_have_text("31 + 12 = 43")
        expect(page.locator("#status")).to_have_text("ready")
    finally:
        context.close()


def test_the_adapters_load_as_they_are_built(node: str) -> None:
    script = """
    import { createFetch } from "@nearfar/web/fetch";
    import { ChatNearfar } from "@nearfar/web/langchain";
    import { createNearfar } from "@nearfar/web/ai-sdk";
    import * as react from "@nearfar/web/react";
    const engine = { info: { model: "demo" }, chat: { completions: {} } };
    const models = await (await createFetch(engine)("https://host/v1/models")).json();
    console.log(models.data[0].id, new ChatNearfar({ engine }).model, createNearfar(engine)().modelId,
        typeof react.useChat);
    """
    done = subprocess.run(
        [node, "--input-type=module", "-e", script], cwd=ROOT / "web", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "demo demo demo function\n"), done.stderr
    # Next.js looks for it in the file's first statement.
    assert (ROOT / "web/dist/react.js").read_text().startswith('"use client";')
