"""Models that read images, served: a question about an image as a data: URL has the answer of transformers."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asgi import ask_app, run
from image_families import pattern
from light_bundle import few_kernels, one_compilation
from PIL import Image
from vision_families import greedy_answer, make_vision

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.images.patches import cut_image
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.models import LoadRequest

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)
NUM_TOKENS = 8
# With states, and with pictures that are seen both ways.
OTHERS = ("lfm2_vl", "gemma3", "gemma4_unified")
Picture = tuple[int, int]


def data_url(size: Picture) -> str:
    file = io.BytesIO()
    Image.fromarray(pattern(*size)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def message(*parts: str | Picture) -> dict[str, Any]:
    """A message of texts and pictures of these sizes."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return {"role": "user", "content": content}


def sizes_of(chat: Sequence[dict[str, Any]], sizes: Sequence[Picture]) -> list[Picture]:
    """The pictures of a chat, in their order."""
    urls = {data_url(size): size for size in sizes}
    parts = [part for each in chat if isinstance(each["content"], list) for part in each["content"]]
    return [urls[part["image_url"]["url"]] for part in parts if part["type"] == "image_url"]


def count(metrics: str, name: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(f"{name}_total{{"))


def first_logprob(answer: dict[str, Any]) -> float:
    return float(answer["choices"][0]["logprobs"]["content"][0]["logprob"])


@pytest.mark.parametrize(
    "name",
    [
        # Its text rotates by row and column, and its layers get features of their own.
        "qwen3_vl",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("smolvlm", "gemma3", "gemma4", "gemma4_bounded", "gemma4_unified", "lfm2_vl", "qwen3_5")
        ),
    ],
)
def test_questions_about_images_are_answered_as_transformers_answers_them(name: str, tmp_path: Path) -> None:
    """By an engine in a process of its own, alone and beside each other."""
    checkpoint = tmp_path / "checkpoint"
    make_vision(name, checkpoint)
    loaded = load(str(checkpoint)).images
    assert loaded is not None
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE.replace("<image>", loaded.prompt.mark))
    options = CompileOptions(target="cpu", quantization="f32", context=256, activations=("float32",))
    with one_compilation(), few_kernels():
        bundle = compile_model(str(checkpoint), tmp_path / "bundle", options).path
    large, small = (90, 61), (20, 20)
    chats: list[list[dict[str, Any]]] = [
        [message(large, "what is this?")],
        [message("hello")],
        [message(small, "and"), {"role": "assistant", "content": "a"}, message(large, "which is larger?")],
        [message(large, "what is its colour?")],
        [message(small, "what is this?")],
    ]

    spec = open_bundle(bundle).manifest.images
    assert spec is not None
    placeholder = spec.prompt.placeholder_id
    num_tiles = sum(len(cut_image(spec, pattern(*size)).tiles) for size in (large, small))

    async def work() -> tuple[list[Any], list[Any]]:
        given = LocalOptions(max_sequences=4, kv_memory_bytes=1 << 24, own_process=True)
        registry = Registry(LocalOpener(given))
        try:
            await registry.load(LoadRequest(model=str(bundle), name="m"))
            app = create_app(registry, ApiConfig())

            async def ask(messages: Sequence[dict[str, Any]]) -> Any:
                body = {
                    "model": "m",
                    "messages": messages,
                    "temperature": 0,
                    "max_tokens": NUM_TOKENS,
                    "ignore_eos": True,
                    "logprobs": True,
                    "return_token_ids": True,
                }
                answer = await ask_app(app, "POST", "/v1/chat/completions", body)
                assert answer.status_code == 200, answer.text
                return answer.json()

            alone = [await ask(chat) for chat in chats]
            together = await asyncio.gather(*map(ask, chats * 2))
            [card] = (await ask_app(app, "GET", "/v1/models")).json()["data"]
            assert card["input_modalities"] == ["text", "image"]
            encoded = 0.0
            # The process of the engine reports its counters every 0.1 s.
            while encoded < num_tiles:
                counters = (await ask_app(app, "GET", "/metrics")).text
                encoded = count(counters, "vllm:mm_cache_queries") - count(counters, "vllm:mm_cache_hits")
                await asyncio.sleep(0.01)
            assert encoded == num_tiles
            return alone, together
        finally:
            await registry.close(0.0)

    alone, together = run(work())
    for index, chat in enumerate(chats):
        answer = alone[index]
        pictures = [pattern(*size) for size in sizes_of(chat, (large, small))]
        prompt = answer["prompt_token_ids"]
        assert prompt.count(placeholder) == answer["usage"]["prompt_tokens"] - sum(
            token != placeholder for token in prompt
        )
        expected = greedy_answer(checkpoint, prompt, pictures, NUM_TOKENS)
        for same in (answer, together[index], together[index + len(chats)]):
            assert same["choices"][0]["token_ids"] == expected
            assert same["prompt_token_ids"] == prompt
    # Its probabilities depend on the picture, even if random weights choose the same tokens.
    assert abs(first_logprob(alone[0]) - first_logprob(alone[4])) > 1e-3
    # The fourth question begins with the picture of the first one. Snapshots of states are further apart in qwen3_5.
    cached = alone[3]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert name == "qwen3_5" or cached >= alone[0]["prompt_token_ids"].count(placeholder)
