"""Answers of the API with drafts of the model's own heads, or of its assistant, are those without: with stop strings,
tools, schemas, log-probabilities, several choices, seeds, and an end of the context within accepted drafts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from answers import whole
from draft_assistant import DraftAssistant as make_with_assistant
from draft_heads import DraftHeads as make_with_heads
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.bundle.manifest import Manifest
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.engine.config import EngineConfig
from nearfar.server_fallback.engine.draft_heads import DraftAssistant, DraftHeads
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.speculation import Speculation
from nearfar.server_fallback.engine.stats import EngineStats
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.completions import AnswerRequest, CompletionRequest

CONTEXT = 96
# The tiny models' tokenizer lacks an end.
END = 257
PROMPT = [(7 * index) % 250 + 3 for index in range(21)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}


@pytest.fixture(scope="module", params=["assistant", pytest.param("heads", marks=pytest.mark.exhaustive)])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "heads":
        make_with_heads(folder / "checkpoint", agree=0.01)
    else:
        make_with_assistant(folder, agree=0.01)
    assistant = folder / "assistant" if request.param == "assistant" else None
    return compile_plain(folder / "checkpoint", folder / "bundle", "f32", CONTEXT, assistant=assistant)


def answers(
    bundle: Bundle, requests: Sequence[AnswerRequest], *, drafts: bool, pages: int = 40
) -> tuple[list[Any], EngineStats]:
    """The answers to all requests at once; without drafts, one after the other."""

    async def work() -> tuple[list[Any], EngineStats]:
        limits = Limits(tokens=32, sequences=4, rows=20, pages=pages, states=12, draft_pages=pages if drafts else 0)
        runner = ReferenceRunner(bundle, limits=limits, activation="float32")
        model = replace(TokenModel.of(bundle.manifest), end_token_ids=frozenset([END]))
        assert isinstance(runner.manifest, Manifest)
        heads = DraftAssistant if runner.manifest.has_assistant else DraftHeads
        config = EngineConfig(speculation=Speculation("heads", tokens=3) if drafts else None)
        engine = TokenEngine(runner, model, config, draft=heads(runner, model) if drafts else None)
        text = replace(TextModel.of(bundle, "tiny"), eos_token_ids=(END,), tools=FORMATS["hermes"])
        local = LocalExecutor(engine, text)
        try:
            if drafts:
                tasks = (whole(local, request, Call(str(index))) for index, request in enumerate(requests))
                found = list(await asyncio.wait_for(asyncio.gather(*tasks), 240))
            else:
                found = [await whole(local, request, Call(str(index))) for index, request in enumerate(requests)]
            return found, engine.stats()
        finally:
            await local.close()

    return asyncio.run(work())


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an answer without those that differ between runs, by their paths."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key not in ("id", "created", "prompt_tokens_details", "completion_tokens_details", "queue_ms"):
                yield from leaves(each, f"{name}.{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, f"{name}[{index}]")
    else:
        yield name, value


def require_same(found: Any, expected: Any) -> None:
    own, others = (dict(leaves(each.model_dump())) for each in (found, expected))
    assert own.keys() == others.keys()
    for name, value in own.items():
        if isinstance(value, float):
            assert value == pytest.approx(others[name], abs=1e-4), name
        else:
            assert value == others[name], name


def completion(**given: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": PROMPT, "max_tokens": 14, "seed": 3, **given})


def chat(**given: Any) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "hello"}]
    return ChatCompletionRequest.model_validate({"model": "m", "messages": messages, "seed": 5, **given})


def test_answers_of_every_form_are_those_without_drafts(bundle: Bundle) -> None:
    (plain,), _ = answers(bundle, [completion(temperature=0)], drafts=False)
    text = plain.choices[0].text
    middle = text[len(text) // 2 : len(text) // 2 + 3]
    requests: list[AnswerRequest] = [
        completion(temperature=0, logprobs=3),
        completion(temperature=0, stop=[middle], logprobs=1),
        completion(temperature=0, stop=[middle], include_stop_str_in_output=True),
        completion(temperature=0, stop_token_ids=[text.encode()[-1]], min_tokens=4),
        completion(n=3, temperature=1, logprobs=2),
        completion(n=2, temperature=0.7, top_p=0.9, seed=11, stop=[middle[-1]]),
        # The context ends it.
        completion(prompt=PROMPT * 4, temperature=0, max_tokens=None),
        completion(temperature=0, echo=True, logprobs=1, max_tokens=5),
        completion(temperature=0.5, frequency_penalty=0.4, logit_bias={"7": 2.0}),
        chat(tools=[TOOL], tool_choice="required", temperature=1, max_tokens=60),
        chat(
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            temperature=1,
            logprobs=True,
            max_tokens=40,
        ),
        chat(temperature=1, n=2, max_tokens=20, logprobs=True, top_logprobs=2),
    ]
    expected, _ = answers(bundle, requests, drafts=False)
    assert any(choice.finish_reason == "stop" for choice in expected[1].choices)
    assert expected[9].choices[0].message.tool_calls
    for pages in (40, 7):
        found, stats = answers(bundle, requests, drafts=True, pages=pages)
        for own, other in zip(found, expected, strict=True):
            require_same(own, other)
        assert stats.drafted_tokens > stats.accepted_tokens > 0
        assert (stats.preemptions > 0) == (pages < 40)
