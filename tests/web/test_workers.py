"""The unchanged examples of web/README.md, and engines in workers: headless Chromium on the page server, under the
page's own content security policy.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from playwright.sync_api import Browser, Page, Route

from nearfar.compiler.browser import page_server
from nearfar.compiler.browser.chromium import SWIFTSHADER_FLAGS
from nearfar.compiler.browser.page_server import PageServer
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.generate import score
from nearfar.compiler.runtime.reference import ReferenceRunner

SCRIPTS = (
    "nearfar.js",
    "client.js",
    "worker.js",
    "webllm.js",
    "language-model.js",
    "hybrid.js",
    "grammar.js",
    "decide.js",
)
# The machine may be busy.
CONNECT = """
import * as client from "./client.js";
window.client = client;
window.startWorker = () => new Worker("./engine_worker.js", { type: "module" });
document.body.dataset.state = "ready";
"""
MESSAGES = [{"role": "user", "content": "what is 27 + 58?"}]


@pytest.fixture(scope="module")
def address(chromium: str, light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001
    """The package's files, each example of the README as a script and a page with it, and the demo's bundle."""
    site = tmp_path_factory.mktemp("site")
    for name in SCRIPTS:
        shutil.copy(page_server.PAGE.parent / name, site)
    shutil.copy(page_server.PAGE / "icon.svg", site)
    policy = re.search(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', (page_server.PAGE / "index.html").read_text()
    )
    assert policy is not None
    examples = dict(re.findall(r"```js (\w+)\.js\n(.*?)```", (ROOT / "web/README.md").read_text(), flags=re.DOTALL))
    for name, script in {**examples, "index": CONNECT}.items():
        (site / f"{name}.js").write_text(script)
        head = f'<!doctype html>{policy[0]}<link rel="icon" href="icon.svg"><title>{name}</title>'
        (site / f"{name}.html").write_text(f'{head}<body><p>{name}</p><script type="module" src="{name}.js"></script>')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_server, "PAGE", site)
        with PageServer(light_demo) as server:
            yield server.url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    ("example", "says"),
    [
        # The example of near or far has whole and streamed answers, too.
        pytest.param("openai", "streamed: 27 + 58 = 85", marks=pytest.mark.exhaustive),
        # test_pictures.py has sessions of that interface.
        pytest.param("language_model", "used:", marks=pytest.mark.exhaustive),
        # A test below has decisions in a worker, the TypeScript tests have those of every kind and calibrations.
        pytest.param("decisions", "calibrated:", marks=pytest.mark.exhaustive),
        # web/test/webllm runs WebLLM's programs on Dawn in Node.
        pytest.param("as_webllm", "message: 27 + 58 = 85", marks=pytest.mark.exhaustive),
        # A test below has an engine in a worker as well.
        pytest.param("in_worker", "from the worker: 27 + 58 = 85", marks=pytest.mark.exhaustive),
    ],
)
def test_an_example_of_the_readme_runs_as_it_stands(page: Page, address: str, example: str, says: str) -> None:
    printed = run_example(page, f"{address}{example}.html", says)
    if example == "language_model":
        assert "prompted: 27 + 58 = 85" in "\n".join(printed)
        assert printed[0] == "downloadable"
        assert "100 %" in printed


# web/test/worker/connect_engine.test.ts and web/test/webllm/worker.test.ts have pages that share an engine.
@pytest.mark.exhaustive
def test_the_example_of_a_service_worker_runs_as_it_stands_and_two_pages_share_its_engine(
    page: Page, address: str
) -> None:
    printed = run_example(page, f"{address}in_service_worker.html", "structured: ")
    assert printed[0] == "from the service worker: 27 + 58 = 85"
    assert list(json.loads(printed[1].removeprefix("structured: "))) == ["sum"]
    other = page.context.new_page()
    other.goto(f"{address}index.html")
    other.wait_for_selector("body[data-state=ready]")
    phases, answer = other.evaluate(
        """async (messages) => {
            const { active } = await navigator.serviceWorker.ready;
            const phases = [];
            const onProgress = ({ phase }) => phases.push(phase);
            const engine = await window.client.connectEngine(active, "./bundle/", { onProgress });
            const answer = await engine.chat.completions.create({ messages, temperature: 0 });
            return [phases, answer.choices[0].message.content];
        }""",
        MESSAGES,
    )
    # It is given what is loaded already.
    assert phases == []
    assert answer.startswith("27 + 58 = 85")


@pytest.fixture(scope="module")
def connected(browser: Browser, address: str) -> Iterator[Page]:
    """A page whose ``window.engine`` is in ``window.worker``. The last test that uses it ends the worker."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}index.html")
    page.wait_for_selector("body[data-state=ready]")
    page.evaluate(
        """async () => {
            window.worker = window.startWorker();
            window.engine = await window.client.connectEngine(window.worker, "./bundle/");
        }"""
    )
    yield page
    context.close()


def test_decisions_of_an_engine_in_a_worker_are_those_of_complete_answers(connected: Page, light_demo: Path) -> None:
    from transformers import AutoTokenizer

    context, choices = "dim the kitchen lights", ["kitchen", "kitchen lights", "30"]
    logprobs = connected.evaluate(
        """async ([context, choices]) => {
            const questions = { room: { type: "choice", question: "which room?", choices } };
            return (await window.engine.decide(context, questions)).decisions.room.logprobs[0];
        }""",
        [context, choices],
    )
    lines = ["which room?", "Answer with one of these only:", *(f"- {choice}" for choice in choices)]
    asked = [{"role": "user", "content": f"{context}\n\n" + "\n".join(lines)}]
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    start = len(tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False))
    runner = ReferenceRunner(open_bundle(light_demo), activation="float32")
    for choice, found in zip(choices, logprobs, strict=True):
        chat = [*asked, {"role": "assistant", "content": choice}]
        ids = tokenizer.apply_chat_template(chat, return_dict=False)
        rows = np.concatenate(list(score(runner, ids, 32))).astype(np.float64)
        likely = (
            rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
        )
        expected = sum(likely[index - 1, ids[index]] for index in range(start, len(ids)))
        assert found == pytest.approx(expected, abs=1e-3)


# test_near_and_far.py has both sides.
@pytest.mark.exhaustive
def test_the_example_of_near_or_far_runs_as_it_stands(page: Page, address: str) -> None:
    sent: list[str] = []

    def far(route: Route) -> None:
        sent.append(f"{route.request.method} {route.request.url} {route.request.post_data}")
        headers = {"Access-Control-Allow-Origin": "*"}
        if route.request.url.endswith("/v1/nearfar/about"):
            model = {
                "id": "big",
                "context": None,
                "tokenizer_sha256": None,
                "vocab_size": None,
                "tools": True,
                "verify": False,
            }
            route.fulfill(json={"api_version": 1, "models": [model]}, headers=headers)
            return
        choices: list[dict[str, Any]] = [
            {"delta": {"content": "85"}, "finish_reason": None},
            {"delta": {}, "finish_reason": "stop"},
        ]
        events = [json.dumps({"choices": [{"index": 0, **choice}]}) for choice in choices] + ["[DONE]"]
        body = "".join(f"data: {event}\n\n" for event in events)
        route.fulfill(body=body, content_type="text/event-stream", headers=headers)

    page.route("https://llm.example/**", far)
    printed = run_example(page, f"{address}near_or_far.html", "streamed: 27 + 58 = 85")
    assert printed[0] == "85 by far because near_unavailable"
    assert printed[1] == "private: 27 + 58 = 85 by near"
    # The private one and the last one stayed.
    assert [line.split(" ", 2)[:2] for line in sent] == [
        ["GET", "https://llm.example/v1/nearfar/about"],
        ["POST", "https://llm.example/v1/chat/completions"],
    ]


@pytest.mark.exhaustive
def test_the_example_for_node_runs(node: str, swiftshader: Mapping[str, str], light_demo: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").symlink_to(light_demo)
    modules = tmp_path / "node_modules"
    (modules / "@nearfar").mkdir(parents=True)
    (modules / "@nearfar/web").symlink_to(ROOT / "web")
    (modules / "webgpu").symlink_to(ROOT / "web/node_modules/webgpu")
    example = re.search(r"```js in_node\.mjs\n(.*?)```", (ROOT / "web/README.md").read_text(), flags=re.DOTALL)
    assert example is not None
    # Without this option, the example takes three times as long on SwiftShader (see compiler/browser/chromium.py).
    options = json.dumps([flag.removeprefix("--") for flag in SWIFTSHADER_FLAGS if "dawn-features" in flag])
    assert "create([])" in example[1]
    (tmp_path / "in_node.mjs").write_text(example[1].replace("create([])", f"create({options})"))
    done = subprocess.run(
        [node, "in_node.mjs"], cwd=tmp_path, env=swiftshader, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "27 + 58 = 85"), done.stderr


def test_an_engine_in_a_worker_is_left_aborted_and_outlived(connected: Page) -> None:
    found = connected.evaluate(
        """async (messages) => {
            const { worker, engine } = window;
            const ask = () => engine.chat.completions.create({ messages, temperature: 0, stream: true });
            const found = { model: engine.info.model, tokens: await engine.countTokens("27") };
            for await (const chunk of await ask()) if (chunk.choices[0].delta.content) break;
            const controller = new AbortController();
            const aborted = engine.chat.completions.create({ messages, temperature: 0 }, { signal: controller.signal });
            // The call is on its way, and a fast worker would soon have answered.
            await Promise.resolve();
            controller.abort();
            found.aborted = await aborted.catch((error) => error.name);
            const refused = engine.chat.completions.create({ messages, audio: {} });
            found.refused = await refused.catch((error) => [error.name, error.status, error.param]);
            const answer = await engine.chat.completions.create({ messages, temperature: 0 });
            found.answer = answer.choices[0].message.content;
            const start = performance.now();
            try {
                for await (const chunk of await ask()) worker.terminate();
            } catch (error) {
                found.died = [error.name, error.code, error instanceof window.client.WorkerError];
            }
            found.late = await engine.countTokens("a").catch((error) => error.code);
            found.seconds = (performance.now() - start) / 1000;
            return found;
        }""",
        MESSAGES,
    )
    assert found["model"]
    assert found["tokens"] > 0
    assert found["aborted"] == "AbortError"
    assert found["refused"] == ["RequestError", 400, "audio"]
    assert found["answer"].startswith("27 + 58 = 85")
    assert found["died"] == ["WorkerError", "worker_error", True]
    assert found["late"] == "worker_error"
    # The lock that the worker held tells at once; the ping would take 35 seconds.
    assert found["seconds"] < 20


def test_an_error_of_loading_in_a_worker_is_thrown_on_the_page(page: Page, address: str) -> None:
    page.goto(f"{address}index.html")
    page.wait_for_selector("body[data-state=ready]")
    found = page.evaluate(
        """async () => {
            const { connectEngine, BundleError, WorkerError } = window.client;
            const missing = await connectEngine(window.startWorker(), "./nowhere/").catch((error) => error);
            const broken = await connectEngine(new Worker("./nowhere.js", { type: "module" }),
                "./bundle/").catch((error) => error);
            return [missing instanceof BundleError, missing.message, missing.details.status,
                broken instanceof WorkerError];
        }"""
    )
    assert found == [True, found[1], 404, True]
    assert f"{address}nowhere/manifest.json answers 404" in found[1]


def run_example(page: Page, url: str, says: str) -> list[str]:
    """The lines that the page prints up to one with this start; fails with its output otherwise."""
    printed: list[str] = []
    # A script that does not run ends the wait as well.
    page.add_init_script(
        "for (const type of ['error', 'unhandledrejection']) addEventListener(type, (e) => console.error(e.message ?? "
        "e.reason))"
    )
    page.on("console", lambda message: printed.append(message.text))
    with page.expect_console_message(lambda message: message.text.startswith(says) or message.type == "error"):
        page.goto(url)
    assert printed[-1].startswith(says), printed
    return printed
