"""MLX bundles behind OpenAI's API: the app in this process answers a chat as the reference does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from plain_target import compile_plain

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.models import LoadRequest

MESSAGES = [{"role": "user", "content": "what is 27 + 58?"}]


@pytest.mark.usefixtures("mlx")
def test_a_chat_is_answered_as_by_the_reference(tmp_path: Path) -> None:
    compile_any(str(CHECKPOINT), tmp_path / "demo", CompileOptions(target="mlx"))
    plan = compile_plain(CHECKPOINT, tmp_path / "plan", "q4f16", 512)
    tokenizer = Tokenizer(plan.tokenizer_files())
    prompt = tokenizer.encode_chat(MESSAGES)
    token_ids = list(generate(ReferenceRunner(plan, limits=Limits()), prompt, 64, Sampler()))

    async def ask() -> Any:
        registry = Registry(LocalOpener(LocalOptions(max_sequences=2, kv_memory_bytes=1 << 24)))
        await registry.load(LoadRequest(model=str(tmp_path / "demo")))
        transport = httpx.ASGITransport(create_app(registry, ApiConfig()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.post(
                "/v1/chat/completions", json={"model": "demo", "messages": MESSAGES, "temperature": 0}
            )
        await registry.close(0)
        return response.json()

    answer = asyncio.run(ask())
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(token_ids) == "27 + 58 = 85"
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == len(token_ids)
