"""From options to loaded models."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from command_line import parsed
from fake_openai import MODEL, FakeOpenAI, running

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.cli.options import Serve
from nearfar.server_fallback.cli.served_models import (
    TranscriberOpener,
    load_requests,
    make_opener,
    node_options,
    upstream_options,
)
from nearfar.server_fallback.engine.batching import Batching
from nearfar.server_fallback.executors.executor import Opening
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.upstream_executor import UpstreamOpener, only_model
from nearfar.server_fallback.executors.vllm import NodeOptions, VllmOpener


def options(*arguments: str) -> Serve:
    made = parsed("serve", *arguments)
    assert isinstance(made, Serve)
    return made


def test_aliases_may_mean_a_model_by_its_argument_or_its_name() -> None:
    given = options("org/a", "demo", "--alias", "x=org/a", "--alias", "y=demo", "--alias", "z=org/a")
    assert [(each.model, each.name, list(each.aliases)) for each in load_requests(given, {})] == [
        ("org/a", None, ["x", "z"]),
        ("demo", None, ["y"]),
    ]


def test_a_pipeline_comes_after_the_models_that_its_file_names(tmp_path: Path) -> None:
    file = {
        "name": "rag",
        "models": {"writer": "demo", "near": "./near", "given": "elsewhere"},
        "steps": [{"kind": "chat", "output": "answer", "model": "writer", "prompt": "{question}"}],
        "output": "answer",
    }
    path = tmp_path / "rag.json"
    path.write_text(json.dumps(file))
    (tmp_path / "near").mkdir()
    given = options("given", "--pipeline", str(path))
    assert [(each.model, each.name) for each in load_requests(given, {})] == [
        ("given", None),
        ("demo", "writer"),
        (str(tmp_path / "near"), "near"),
        (str(path), "rag"),
    ]
    path.write_text(json.dumps({**file, "output": "none"}))
    with pytest.raises(RequestError, match="the output 'none' must be"):
        load_requests(given, {})


def test_the_options_of_batches_reach_the_opener() -> None:
    given = options(
        "m", "--batch-delay-ms", "5", "--batch-sizes", "8,16", "--batch-texts", "32", "--batch-tokens", "999"
    )
    opener = make_opener(given, {}, lambda *_: None)
    assert isinstance(opener, LocalOpener)
    assert opener._options.batching == Batching(
        max_delay_seconds=0.005, preferred_sizes=(8, 16), max_texts=32, max_tokens=999
    )


def test_the_executor_decides_who_opens() -> None:
    def opener(*arguments: str) -> object:
        return type(make_opener(options("m", *arguments), {"KEY": "k"}, lambda *_: None))

    assert opener() is LocalOpener
    assert opener("--executor", "vllm", "--vllm-arguments", "--max-model-len 8192") is VllmOpener
    upstream = ("--executor", "upstream", "--upstream", "http://a")
    assert opener(*upstream) is UpstreamOpener
    assert opener(*upstream, "--transcriber", "whisper") is TranscriberOpener


def test_a_transcriber_runs_on_this_machine_whoever_runs_the_other_models() -> None:
    prepared = []

    class Named:
        def __init__(self, name: str) -> None:
            self._name = name

        async def prepare(self, model: str, name: str | None) -> Opening:
            prepared.append((self._name, model, name))
            raise RequestError("enough")

    opener = TranscriberOpener("./whisper", Named("local"), Named("other"))
    for model, name in (("big", None), ("./whisper", "w")):
        with pytest.raises(RequestError, match="enough"):
            asyncio.run(opener.prepare(model, name))
    assert prepared == [("other", "big", None), ("local", "./whisper", "w")]


def test_several_machines_need_an_address_and_a_key() -> None:
    def nodes(*arguments: str, **environment: str) -> object:
        return node_options(options("m", "--executor", "vllm", *arguments).others, environment)

    key = {"NEARFAR_NODE_KEY": "secret"}
    assert nodes() is None
    assert nodes("--nodes", "2", "--node-address", "10.0.0.1", **key) == NodeOptions(
        2, "10.0.0.1", 29600, 29501, "secret"
    )
    made = nodes("--nodes", "3", "--node-address", "[::1]:7000", "--master-port", "7001", **key)
    assert made == NodeOptions(3, "::1", 7000, 7001, "secret")
    with pytest.raises(RequestError, match="--node-address HOST"):
        nodes("--nodes", "2", **key)
    with pytest.raises(RequestError, match="set NEARFAR_NODE_KEY"):
        nodes("--nodes", "2", "--node-address", "a")


def test_an_upstreams_key_comes_from_the_environment() -> None:
    given = options(
        "--executor",
        "upstream",
        "--upstream",
        "http://a",
        "--upstream",
        "http://b",
        "--upstream-api-key-env",
        "KEY",
        "--dialect",
        "vllm",
    )
    made = upstream_options(given, {"KEY": "k"})
    assert (made.urls, made.api_key, made.dialect) == (("http://a", "http://b"), "k", "vllm")


def test_the_only_model_of_an_upstream_needs_no_name() -> None:
    async def check() -> None:
        server = FakeOpenAI()
        async with running(server):
            made = upstream_options(options("--executor", "upstream", "--upstream", server.url), {})
            assert await only_model(made) == MODEL
            executor = await (await UpstreamOpener(made).prepare(MODEL, "ours")).open()
            assert executor.context == 128
            await executor.close()

    asyncio.run(check())


def test_a_transcriber_is_one_of_the_models() -> None:
    given = options("demo", "--transcriber", "whisper-cpu")
    assert [each.model for each in load_requests(given, {})] == ["demo", "whisper-cpu"]
    again = options("demo", "whisper-cpu", "--transcriber", "whisper-cpu")
    assert [each.model for each in load_requests(again, {})] == ["demo", "whisper-cpu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-folder", "pages"], "--kv-folder is about --kv-disk, which is not given; add --kv-disk SIZE"),
        (["--kv-host-memory", "1GB", "--kv-key-file", "key"], "--kv-key-file is about --kv-disk"),
        (["--kv-host-memory", "1GB", "--executor", "vllm"], "the program of --executor vllm keeps its pages to itself"),
        (
            ["--kv-disk", "1GB", "--executor", "upstream", "--upstream", "http://far"],
            "the program of --executor upstream keeps its pages to itself",
        ),
    ],
)
def test_tiers_for_pages_are_refused_where_they_would_do_nothing(arguments: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_opener(options("demo", *arguments), {}, lambda *_: None)
