"""The output of `nearfar serve`."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from typing import Any

import pytest
from fake_executor import FakeExecutor

from nearfar.server_fallback.cli.announcement import Announcement
from nearfar.server_fallback.executors.executor import ExecutorState, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.models import LoadRequest


class Opener:
    """The registry of two models: "chat", and "embed" for embeddings."""

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> FakeExecutor:
            return FakeExecutor(context=4096, now=ExecutorState(ready=True, detail="a device"))

        return Opening(name or model, 12_345_678, open_it, task="embed" if model == "embed" else "generate")


def announced(
    model: str, address: tuple[Any, ...], capsys: pytest.CaptureFixture[str], *, keyed: bool, computes: bool = False
) -> list[str]:
    async def run() -> None:
        registry = Registry(Opener())
        await registry.load(LoadRequest(model=model, aliases=["gpt", "other"]))
        await registry.load(LoadRequest(model="chat", name="second"))
        Announcement(sys.stderr).serving(registry, address, keyed=keyed, computes_prompts=computes)
        await registry.close(0.0)

    asyncio.run(run())
    return capsys.readouterr().out.splitlines()


def body_of(curl: str) -> dict[str, Any]:
    words = shlex.split(curl)
    body = json.loads(words[words.index("-d") + 1])
    assert isinstance(body, dict)
    return body


def test_a_prefill_worker_names_the_option_of_decode_workers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = announced("chat", ("127.0.0.1", 8001), capsys, keyed=True, computes=True)
    assert lines[-1].endswith(
        "serve chat --role decode --prefill-from http://127.0.0.1:8001 --prefill-api-key-env NAME"
    )


def test_models_are_listed_with_their_aliases_and_a_command_for_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = announced("chat", ("127.0.0.1", 8000), capsys, keyed=False)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert rows == [
        ["chat", "4,096", "12.3 MB", "a device", "gpt, other"],
        ["second", "4,096", "12.3 MB", "a device", ""],
    ]
    assert lines[-2] == "serving at http://127.0.0.1:8000/v1, Ctrl-C stops"
    assert lines[-1].startswith("curl http://127.0.0.1:8000/v1/chat/completions -H")
    assert body_of(lines[-1])["model"] == "chat"
    assert "Authorization" not in lines[-1]


def test_an_embedding_model_gets_an_embedding_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = announced("embed", ("::", 8000, 0, 0), capsys, keyed=False)
    assert lines[-1].startswith("curl http://[::]:8000/v1/embeddings")
    assert body_of(lines[-1]).keys() == {"model", "input"}
    assert any("anyone who reaches this address may send requests" in line for line in lines)
    keyed = announced("embed", ("0.0.0.0", 8000), capsys, keyed=True)
    assert '-H "Authorization: Bearer $NEARFAR_API_KEY"' in keyed[-1]
    assert not any("whoever" in line for line in keyed)
