"""What `nearfar serve` prints."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.target import open_runner
from nearfar.server_fallback.cli.announcement import Announcement
from nearfar.server_fallback.executors import local_opener
from nearfar.server_fallback.executors.local_opener import LocalOpener, LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.models import LoadRequest


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_opener, "open_runner", lambda _, bundle, limits: open_runner("numpy", bundle, limits))
    monkeypatch.setenv("COLUMNS", "120")


def announced(model: Path, address: tuple[Any, ...], capsys: pytest.CaptureFixture[str], *, keyed: bool) -> list[str]:
    async def run() -> None:
        registry = Registry(LocalOpener(LocalOptions(max_sequences=1)))
        await registry.load(LoadRequest(model=str(model), name="it", aliases=["gpt", "other"]))
        Announcement().serving(registry, address, keyed=keyed)
        await registry.close(0.0)

    asyncio.run(run())
    return capsys.readouterr().out.splitlines()


def body_of(curl: str) -> dict[str, Any]:
    words = shlex.split(curl)
    body = json.loads(words[words.index("-d") + 1])
    assert isinstance(body, dict)
    return body


def test_a_model_is_shown_with_its_aliases_and_one_line_that_asks_it(
    compile_tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = announced(compile_tiny("qwen3", "q4f16"), ("127.0.0.1", 8000), capsys, keyed=False)
    row = next(line for line in lines if "it " in line and "256" in line)
    assert "gpt, other" in row
    assert "kB" in row or "MB" in row
    assert lines[-2] == "serving at http://127.0.0.1:8000/v1, Ctrl-C ends"
    assert lines[-1].startswith("curl http://127.0.0.1:8000/v1/chat/completions -H")
    assert body_of(lines[-1])["model"] == "it"
    assert "Authorization" not in lines[-1]


def test_one_that_embeds_is_asked_for_embeddings_and_open_doors_are_named(
    compile_tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = compile_tiny("embedding", "q4f16")
    lines = announced(model, ("::", 8000, 0, 0), capsys, keyed=False)
    assert lines[-1].startswith("curl http://[::]:8000/v1/embeddings")
    assert body_of(lines[-1]).keys() == {"model", "input"}
    assert any("whoever reaches this address may ask" in line for line in lines)
    keyed = announced(model, ("0.0.0.0", 8000), capsys, keyed=True)
    assert '-H "Authorization: Bearer $NEARFAR_API_KEY"' in keyed[-1]
    assert not any("whoever" in line for line in keyed)
