"""LoRA adapters by the names that requests give, from PEFT's folders to answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from answers import all_chunks
from tiny_adapters import MLP, adapted_logits, make_adapter

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.executors.executor import Call, UnknownModel
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.models import LoadAdapterRequest, LoadRequest, UnloadAdapterRequest

PROMPT = [5, 9, 2, 77, 31]


async def answer(registry: Registry, name: str) -> tuple[str, str]:
    """The text of the first token after the prompt, and the model that generated it."""
    request = CompletionRequest(model=name, prompt=PROMPT, max_tokens=1, temperature=0, logprobs=0)
    executor = await registry.executor(name)
    chunks = await all_chunks(executor, request, Call("test"))
    tokens = [
        token for chunk in chunks for choice in chunk.choices if choice.logprobs for token in choice.logprobs.tokens
    ]
    return tokens[0], chunks[0].model


def test_an_adapter_is_a_model_of_its_own_name(
    compile_base: Callable[..., Path], tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoints["qwen3"]
    deltas = make_adapter(tmp_path / "red", checkpoint, MLP, rank=4, alpha=8, seed=3)
    plain, adapted = (int(np.argmax(adapted_logits(checkpoint, each, PROMPT)[-1])) for each in ({}, deltas))
    assert plain != adapted

    async def main() -> None:
        registry = Registry(LocalOpener(LocalOptions(max_sequences=2, max_adapters=1)), None)
        model = str(compile_base("qwen3", "f32", target="cpu", lora_rank=4))
        await registry.load(LoadRequest(model=model, name="tiny"))
        before = await answer(registry, "tiny")
        card = await registry.load_adapter(LoadAdapterRequest(lora_name="red", lora_path=str(tmp_path / "red")))
        assert (card.id, card.parent) == ("red", "tiny")
        red, again = await asyncio.gather(answer(registry, "red"), answer(registry, "tiny"))
        assert red[1] == "red"
        assert red[0] != before[0]
        assert again == before
        # Grammars and chat templates have the same processes.
        executors = [await registry.executor(name) for name in ("red", "tiny")]
        assert all(isinstance(executor, LocalExecutor) for executor in executors)
        assert len({id(executor._workers) for executor in executors if isinstance(executor, LocalExecutor)}) == 1
        with pytest.raises(RequestError, match="all 1 slots for adapters are in use"):
            await registry.load_adapter(LoadAdapterRequest(lora_name="blue", lora_path=str(tmp_path / "red")))
        await registry.unload_adapter(UnloadAdapterRequest(lora_name="red"))
        with pytest.raises(UnknownModel):
            await registry.executor("red")
        await registry.close(0)

    asyncio.run(main())
