"""`nearfar serve` as users run it: processes that compile, serve OpenAI's client, and are killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from answers import whole
from guides import guide_commands, write_guide
from served_demo import Served, start
from waiting import WAIT_SECONDS, wait_until

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.errors import Unavailable
from nearfar.server_fallback.executors import circuit
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.upstream_executor import UpstreamOptions, open_upstream
from nearfar.server_fallback.router.hybrid import Hybrid
from nearfar.server_fallback.router.sides.far import Far
from nearfar.server_fallback.schema.chat import ChatCompletionRequest

QUESTION = "what is 27 + 58?"
ANSWER = "27 + 58 = 85"
WITH_IMAGE: Any = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": QUESTION},
            {"type": "image_url", "image_url": {"url": "https://here/a.png"}},
        ],
    }
]


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def replicas(cache: Path) -> Iterator[list[Served]]:
    """Two servers that start at the same time, before the model is compiled."""
    (cache / "nearfar.toml").write_text('models = ["demo"]\nmax_sequences = 4\n[aliases]\ngpt = "demo"\n')
    options = ("demo", "--alias", "gpt=demo", "--max-sequences", "4"), ("--config", str(cache / "nearfar.toml"))
    waits = [start(*each, folder=cache, log=f"{index}.log") for index, each in enumerate(options)]
    servers = [wait() for wait in waits]
    yield servers
    for server in servers:
        server.end()


def test_the_model_is_compiled_once_and_what_is_served_is_printed(replicas: list[Served], cache: Path) -> None:
    # Every line of the log is JSON, also while a model is compiled.
    lines = [json.loads(line) for path in cache.glob("*.log") for line in path.read_text().splitlines()]
    phases = [(line["model"], line["phase"]) for line in lines if line["event"] == "model_compiling"]
    assert len(set(phases)) == len(phases) > 3
    assert ("demo", "kernels") in phases
    assert len([path for path in (cache / "bundles").iterdir() if path.is_dir()]) == 1
    printed = replicas[0].printed
    assert re.search(r"demo +│ 512 +│ [\d.]+ MB +│ .*thread.*│ gpt", printed)
    assert f"serving at {replicas[0].url}/v1" in printed


def test_the_curl_line_that_it_prints_works(replicas: list[Served]) -> None:
    line = replicas[0].printed.splitlines()[-1]
    # The request has no temperature, so its tokens are sampled.
    answer = json.loads(subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout)
    assert answer["choices"][0]["message"]["content"]


def test_openais_client_is_answered(replicas: list[Served]) -> None:
    with client_of(replicas[0]) as client:
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0
        )
        assert answer.choices[0].message.content == ANSWER
        chunks = client.chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
        assert [model.id for model in client.models.list()] == ["demo", "gpt"]
        with pytest.raises(openai.NotFoundError, match="not loaded; loaded: demo, gpt"):
            client.chat.completions.create(model="other", messages=[{"role": "user", "content": QUESTION}])
        with pytest.raises(openai.BadRequestError, match="this model reads texts only") as refused:
            client.chat.completions.create(model="demo", messages=WITH_IMAGE)
        assert refused.value.param == "messages[0].content[1]"


def test_the_curl_line_and_the_client_of_the_guide_are_answered(
    replicas: list[Served], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = [line for block in guide_commands("server") for line in block.splitlines() if "curl" in line]
    assert "http://127.0.0.1:8000" in line
    line = line.replace("http://127.0.0.1:8000", replicas[0].url)
    answer = json.loads(subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    (script,) = write_guide("server", tmp_path, {"http://127.0.0.1:8000": replicas[0].url})
    runpy.run_path(str(script))["client"].close()
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_the_scripts_of_the_guide_for_python_answer_on_both_sides(
    replicas: list[Served],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(cache))
    scripts = write_guide("python", tmp_path, {"http://127.0.0.1:8000": replicas[0].url})
    assert [script.name for script in scripts] == ["ask.py", "both.py"]
    for script in scripts:
        runpy.run_path(str(script))
    first, streamed, far, near = capsys.readouterr().out.splitlines()
    assert (first, streamed) == (ANSWER, ANSWER)
    assert far.startswith("far ")
    assert near.startswith("near ")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_model_takes_little_memory(replicas: list[Served]) -> None:
    for server in (served.process.pid for served in replicas):
        assert sum(map(resident_bytes, (server, *children_of(server)))) < 250 * 10**6


def test_a_structured_answer_does_not_load_torch_and_uses_little_memory(replicas: list[Served]) -> None:
    server = replicas[0].process.pid
    before = sum(map(resident_bytes, (server, *children_of(server))))
    with client_of(replicas[0]) as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "integer"}}},
        )
    json.loads(answer.choices[0].message.content or "")
    # The engine's process, one that renders chat templates, and one that compiles grammars.
    children = children_of(server)
    assert len(children) == 3
    loaded = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in (server, *children))
    assert "libxgrammar_bindings" in loaded
    assert not re.search(r"libtorch|site-packages/(torch|transformers)/", loaded)
    # With the demo's small vocabulary; one of 152,000 tokens adds 120 MB.
    assert sum(map(resident_bytes, (server, *children))) - before < 120 * 2**20


def children_of(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def resident_bytes(pid: int) -> int:
    """Pages that processes share count once in their sum: each has its proportional part ("Pss")."""
    maps = Path(f"/proc/{pid}/smaps").read_text()
    return 1024 * sum(map(int, re.findall(r"^Pss: +(\d+) kB$", maps, re.MULTILINE)))


def test_an_answer_switches_from_near_to_a_server_and_is_the_same(
    replicas: list[Served], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(cache))
    # No model reaches this confidence, so far continues after three tokens.
    policy = {
        "version": 1,
        "mode": "prefer-near",
        "escalation": {"then": "continue", "window_tokens": 3, "min_mean_logprob": 0.0},
    }

    async def work() -> None:
        async with await Hybrid.create(near="demo", far=Far(replicas[0].url, model="demo"), policy=policy) as hybrid:
            assert await hybrid.executor.sides.same_tokens(Call("r"))
            received: Any = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0.0}
            answer = await hybrid.chat.completions.create(**received)
            assert answer.choices[0].message.content == ANSWER
            assert answer.route is not None
            assert (answer.route.side, answer.route.reason) == ("far", "escalated_logprob")
            assert ANSWER[: answer.route.switched_at] == "27 +"
            alone = await hybrid.chat.completions.create(**received, labels=["private"])
            assert alone.choices[0].message.content == ANSWER
            assert alone.route is not None
            assert (alone.route.side, alone.usage.total_tokens) == ("near", answer.usage.total_tokens)

    asyncio.run(work())


def test_a_gateway_prints_an_example_request_and_answers_and_masks(
    replicas: list[Served], cache: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.json"
    masks = {"entities": [{"label": "PERSON", "kind": "PERSON"}]}
    private = {"masks": masks, "media": "far"}
    policy.write_text(json.dumps({"version": 1, "mode": "prefer-far", "private": private}))
    config = tmp_path / "gateway.toml"
    config.write_text(f'near = "demo"\nfar = "{replicas[0].url}"\nfar_model = "demo"\npolicy = "policy.json"\n')
    arguments = ("--config", str(config), "--far-vision", "--finder", "demo-finder")
    gateway = start(*arguments, folder=cache, command="gateway", log="gateway.log")()
    try:
        assert f"routing by prefer-far: near is demo, far is demo at {replicas[0].url}" in gateway.printed
        line = gateway.printed.splitlines()[-1]
        answer = json.loads(subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout)
        # The request has no temperature, so its tokens are sampled.
        assert answer["choices"][0]["message"]["content"]
        assert (answer["route"]["side"], answer["route"]["reason"]) == ("far", "prefer")
        with client_of(gateway) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="demo",
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                extra_body={"labels": ["private"]},
            )
            assert raw.headers["x-nearfar-route"] == "near"
            assert raw.parse().choices[0].message.content == ANSWER
            named = [{"role": "user", "content": "My name is Rosalind Fairweather. Please dim the lights."}]
            masked: Any = client.chat.completions.create(model="demo", messages=named, max_tokens=2)
            sent = "My name is [PERSON_1]. Please dim the lights."
            assert masked.route["masked"] == [{"path": "messages[0].content", "text": sent}]
            assert masked.route["side"] == "far"
            # The far model has no vision, whatever the gateway was configured for.
            with pytest.raises(openai.BadRequestError, match="this model reads texts only") as refused:
                client.chat.completions.create(model="demo", messages=WITH_IMAGE)
            assert refused.value.param == "messages[0].content[1]"
            reload(gateway, config, config.read_text() + '[[keys]]\nname = "web"\nkey = "sk-web-12345678"\n')
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
            assert client.with_options(api_key="sk-web-12345678").models.list()
            reload(gateway, config, config.read_text().replace("policy.json", "other.json"), "reload_refused")
        log = (cache / "gateway.log").read_text()
        assert "policy: cannot change while the server runs" in log
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(WAIT_SECONDS) == 0
    finally:
        gateway.process.kill()


def reload(served: Served, config: Path, text: str, event: str = "reloaded") -> None:
    """Change the file, and wait for the event that says what became of it."""
    config.write_text(text)
    log = served.log
    seen = log.read_text().count(f'"event": "{event}"')
    served.process.send_signal(signal.SIGHUP)
    wait_until(lambda: log.read_text().count(f'"event": "{event}"') > seen)


def test_a_server_before_others_answers_as_they_do_and_survives_the_end_of_one(
    replicas: list[Served], cache: Path
) -> None:
    upstreams = [argument for server in replicas for argument in ("--upstream", server.url)]
    front = start("demo", "--executor", "upstream", "--dialect", "nearfar", *upstreams, folder=cache)()

    async def outcome(client: openai.AsyncOpenAI) -> str | None:
        try:
            answer = await client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": QUESTION}], seed=1
            )
        except openai.InternalServerError as error:
            return (
                f"{error.status_code} {error.body['message'].partition(': ')[2] or error.body['message']}"
                if isinstance(error.body, dict)
                else None
            )
        content: str | None = answer.choices[0].message.content
        return content

    async def load() -> list[str | None]:
        async with openai.AsyncOpenAI(
            base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS
        ) as client:
            tasks = []
            for index in range(30):
                tasks.append(asyncio.create_task(outcome(client)))
                await asyncio.sleep(0.01)
                if index == 10:
                    replicas[0].process.kill()
            answers = await asyncio.gather(*tasks)
            return [*answers, await outcome(client)]

    try:
        answers = asyncio.run(load())
        # Answers of the dead executor end with an error; the others continue on the second one.
        assert set(answers) <= {ANSWER, "503 the connection broke; check that it is running"}
        assert answers[-1] == ANSWER
        front.process.send_signal(signal.SIGTERM)
        assert front.process.wait(WAIT_SECONDS) == 0
    finally:
        front.process.kill()


def test_with_every_replica_gone_it_is_an_error_with_a_hint(
    replicas: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This test follows the tests above, which need the processes."""
    # None of the attempts is a trial of a replica that has failed.
    monkeypatch.setattr(circuit, "FIRST_WAIT_SECONDS", 600.0)

    async def ask() -> None:
        options = UpstreamOptions(tuple(server.url for server in replicas), "demo", "demo", dialect="nearfar")
        executor = await open_upstream(options)
        for server in replicas:
            server.process.kill()
            server.process.wait()
        # An idle connection that has ended is not used again once the loop has seen its end.
        for _ in range(5):
            await asyncio.sleep(0)
        request = ChatCompletionRequest.model_validate(
            {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}
        )
        with pytest.raises(Unavailable, match="no server of this model answers") as raised:
            await whole(executor, request, Call("r"))
        assert raised.value.details["retry_after_seconds"] == pytest.approx(300, abs=300)
        await executor.close()

    asyncio.run(ask())


def test_a_model_that_cannot_be_loaded_ends_the_server_with_an_error(cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nearfar.compiler.cli", "serve", "./nothing", "--port", "0"],
        capture_output=True, text=True, env={**os.environ, "NEARFAR_CACHE": str(cache)}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["model_change_failed", "failed"]
    assert "./nothing: there is no such folder" in lines[-1]["message"]


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    # The log has an error that ends a server which has begun to listen.
    with suppress(SystemExit):
        assert main(["serve", *arguments]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--front-ends", "2"), "the store is served by one process; name the models"),
        (("demo", "--alias", "x"), "--alias x: write NAME=MODEL; the models are demo"),
        (("demo", "--alias", "x=y"), "'y' is not a model of this server; the models are demo"),
        (("demo", "--executor", "upstream"), "needs the server's address"),
        (("demo", "--upstream", "http://127.0.0.1:1"), "add --executor upstream"),
        (
            ("demo", "--executor", "upstream", "--upstream", "http://a", "--upstream-api-key-env", "NOT_SET"),
            "NOT_SET: this environment variable",
        ),
        (("demo", "--api-keys", "none.toml"), "none.toml: cannot be read: No such file"),
        (("--executor", "upstream", "--upstream", "http://127.0.0.1:9"), "no connection could be made"),
    ],
)
def test_invalid_options_are_errors_that_state_why(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in fails(capsys, *arguments)


def test_keys_to_ignore_are_refused_if_all_models_are_bundles(
    compile_base: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    # The bundle of test_adapters.py.
    bundle = str(compile_base("qwen3", "f32", target="cpu", lora_rank=4))
    message = fails(capsys, bundle, "--port", "0", "--ignore-key", "odd")
    assert "--ignore-key odd: is for models, and all of these are bundles" in message


def test_a_port_that_is_taken_is_found_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Address already in use" in fails(capsys, "demo", "--port", str(taken.getsockname()[1]))
