"""ONNX bundles behind OpenAI's API, called by OpenAI's client: compiled on first use, batched continuously."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from answers import chunks_of
from served_demo import serving

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import BundleError, NearfarError, RequestError
from nearfar.server_fallback.executors.executor import Call, Executor
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.memory import context_bytes, plan_memory, weight_bytes
from nearfar.server_fallback.schema.completions import CompletionRequest

QUESTION = "what is 27 + 58?"
ANSWER = "27 + 58 = 85"
PROMPTS = [[(31 * j + 7 * i * i + i) % 1000 + 5 for i in range(3 + 11 * j)] for j in range(7)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> ExportBundle:
    path = tmp_path_factory.mktemp("demo") / "demo"
    compile_any(str(CHECKPOINT), path, CompileOptions(target="onnx"))
    bundle = open_any(path)
    assert isinstance(bundle, ExportBundle)
    return bundle


def answered(model: Path, options: LocalOptions, together: bool) -> list[list[str]]:
    """The continuations of PROMPTS, two for each, alternately greedy and sampled."""

    async def run() -> list[list[str]]:
        executor: Executor = await (await LocalOpener(options).prepare(str(model), None)).open()

        async def ask(index: int) -> list[str]:
            sampled: dict[str, Any] = (
                {"temperature": 0.8, "top_p": 0.9, "seed": 5} if index % 2 else {"temperature": 0.0}
            )
            request = CompletionRequest(model="m", prompt=PROMPTS[index], max_tokens=24, n=2, **sampled)
            texts = ["", ""]
            async for chunk in chunks_of(executor, request, Call(str(index))):
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
            return texts

        asked = [ask(index) for index in range(len(PROMPTS))]
        texts = await asyncio.gather(*asked) if together else [await each for each in asked]
        await executor.close()
        return list(texts)

    return asyncio.run(run())


def test_answers_are_the_same_in_any_company_on_few_pages_and_with_guesses(demo: ExportBundle) -> None:
    one = context_bytes(demo.manifest, 64)
    alone = answered(demo.path, LocalOptions(max_sequences=2), together=False)
    assert len({text for texts in alone for text in texts}) > len(PROMPTS)
    assert answered(demo.path, LocalOptions(max_sequences=8), together=True) == alone
    # Some of the three sequences wait, and a fork needs its own page.
    assert answered(demo.path, LocalOptions(max_sequences=8, kv_memory_bytes=3 * one + 5), together=True) == alone
    assert answered(demo.path, LocalOptions(max_sequences=8, draft="ngram"), together=True) == alone


def test_memory_is_counted_by_sequences_of_the_complete_context(demo: ExportBundle) -> None:
    manifest, one = demo.manifest, context_bytes(demo.manifest, 64)
    assert one == manifest.context * 2 * 4 * 2 * 32 * 4
    plan = plan_memory(manifest, sequences=4, tokens=64, kv_bytes=1 << 30, extra_rows=3)
    assert (plan.limits.pages, plan.limits.rows, plan.kv_bytes) == (4, 7, 4 * one)
    assert plan.total_bytes > weight_bytes(manifest) + 4 * one
    assert plan_memory(manifest, sequences=4, tokens=64, kv_bytes=2 * one + 1).limits.pages == 2
    with pytest.raises(RequestError, match="allow more with --kv-memory"):
        plan_memory(manifest, sequences=4, tokens=64, kv_bytes=one - 1)


def prepared_fails(model: Path, options: LocalOptions, kind: type[NearfarError], message: str) -> None:
    with pytest.raises(kind, match=message):
        asyncio.run(LocalOpener(options).prepare(str(model), None))


def test_unsupported_options_of_an_export_are_refused_before_it_is_opened(
    demo: ExportBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    prepared_fails(
        CHECKPOINT,
        LocalOptions(target="onnx", lora_rank=8),
        RequestError,
        "--lora-rank: target onnx does not support this option",
    )
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((demo.path / "manifest.json").read_bytes())
    prepared_fails(folder, LocalOptions(), BundleError, "is missing")


# The tests below answer with the same engine; server_fallback/cli/test_serve.py compiles on first use.
@pytest.mark.exhaustive
def test_a_checkpoint_is_compiled_on_first_use_and_openais_client_is_answered(tmp_path: Path) -> None:
    options = (str(CHECKPOINT), "--target", "onnx", "--max-sequences", "4")
    with (
        serving(*options, folder=tmp_path) as (_, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, logprobs=True
        )
        assert answer.choices[0].message.content == ANSWER
        assert answer.choices[0].logprobs is not None
        asked = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANSWER},
            {"role": "user", "content": "and 3 + 4?"},
        ]
        usage = client.chat.completions.create(model=model, messages=asked, max_tokens=2).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert (usage.prompt_tokens_details.cached_tokens or 0) > usage.prompt_tokens // 2
        chunks = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
        schema = {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        shaped = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], response_format=form
        )
        assert re.fullmatch(r'\{\s*"a"\s*:\s*(true|false)\s*\}', shaped.choices[0].message.content or "")
        with pytest.raises(openai.BadRequestError, match="generates text and makes no embeddings"):
            client.embeddings.create(model=model, input="x")
