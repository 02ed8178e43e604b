"""Gemma 4's reasoning beside response formats and tools, from OpenAI's client down to a model that was trained to give
such answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import httpx
import jsonschema_rs
import openai
import pytest
from fake_models import FakeModels
from gemma_chats import ADD, make_gemma
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel

Result = TypeVar("Result")
Ask = Callable[..., Awaitable[Any]]

ADA = {"name": "Ada", "age": 36}
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}


def schema(oldest: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": oldest}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }


def form(oldest: int = 99) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema(oldest)}}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("gemma")
    make_gemma(folder / "checkpoint")
    return compile_plain(folder / "checkpoint", folder / "bundle", "f32", 1024)


def served(bundle: Bundle, work: Callable[[Ask], Awaitable[Result]]) -> Result:
    """The result of ``work``, which requests the app's greedy answers to messages."""

    async def run() -> Result:
        limits = Limits(tokens=256, sequences=4, rows=4, pages=128)
        engine = TokenEngine(ReferenceRunner(bundle, limits=limits), TokenModel.of(bundle.manifest))
        local = LocalExecutor(engine, TextModel.of(bundle, "gemma"))
        app = create_app(FakeModels(loaded={"gemma": cast("Any", local)}), ApiConfig())
        http: Any = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        client = openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="none", max_retries=0, http_client=cast("Any", http)
        )

        async def ask(message: str, *, thinks: bool = True, **given: Any) -> Any:
            extra = {**(THINKS if thinks else {}), **given.pop("extra_body", {})}
            messages = given.pop("messages", [{"role": "user", "content": message}])
            return await client.chat.completions.create(
                model="gemma", messages=messages, temperature=0, extra_body=extra, **{"max_tokens": 400, **given}
            )

        try:
            async with client:
                return await asyncio.wait_for(work(ask), 120)
        finally:
            await local.close()

    return asyncio.run(run())


def parts_of(answer: Any) -> tuple[str | None, str | None, list[tuple[str, str]], str]:
    """Reasoning, content, calls, and the reason for the end."""
    [choice] = answer.choices
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    reasoning = getattr(choice.message, "reasoning_content", None)
    return reasoning, choice.message.content, calls, choice.finish_reason


def test_the_answer_after_the_reasoning_follows_the_response_format(bundle: Bundle) -> None:
    async def work(ask: Ask) -> None:
        free, kept, other, bare = await asyncio.gather(
            ask("who"),
            ask("who", response_format=form()),
            ask("who", response_format=form(oldest=9)),
            ask("who", thinks=False, response_format=form()),
        )
        assert parts_of(free) == parts_of(kept) == ("It is Ada.", json.dumps(ADA), [], "stop")
        # Without the schema, the model would write 36.
        reasoning, content, _, reason = parts_of(other)
        assert (reasoning, reason) == ("It is Ada.", "stop")
        assert json.loads(content or "")["name"] == "Ada"
        assert jsonschema_rs.is_valid(schema(9), json.loads(content or ""))
        assert parts_of(bare) == (None, json.dumps(ADA), [], "stop")
        assert kept.usage.completion_tokens_details.reasoning_tokens > len("It is Ada.")

    served(bundle, work)


def test_a_budget_ends_the_reasoning_and_the_response_format_holds(bundle: Bundle) -> None:
    async def work(ask: Ask) -> None:
        # Tokens are bytes, and the label counts towards the budget.
        budget = {"thinking_token_budget": len("thought\nIt is")}
        reasoning, content, _, reason = parts_of(await ask("who", response_format=form(), extra_body=budget))
        assert (reasoning, reason) == ("It is", "stop")
        assert jsonschema_rs.is_valid(schema(99), json.loads(content or ""))

    served(bundle, work)


def test_beside_tools_and_a_response_format_the_model_reasons_then_calls_or_answers(bundle: Bundle) -> None:
    async def work(ask: Ask) -> None:
        for given in ({}, {"response_format": form()}):
            called = await ask("1+2", tools=[ADD], **given)
            assert parts_of(called) == ("I add.", None, [("add", '{"a":1,"b":2}')], "tool_calls")
            answered = await ask("who", tools=[ADD], **given)
            assert parts_of(answered) == ("It is Ada.", json.dumps(ADA), [], "stop")
        # Without tool_choice, the model would answer in JSON.
        reasoning, content, [(name, arguments)], reason = parts_of(
            await ask("who", tools=[ADD], tool_choice="required", parallel_tool_calls=False)
        )
        assert (reasoning, content, name, reason) == ("It is Ada.", None, "add", "tool_calls")
        assert jsonschema_rs.is_valid(ADD["function"]["parameters"], json.loads(arguments))  # type: ignore[index]

    served(bundle, work)


def test_reasoning_and_calls_are_streamed(bundle: Bundle) -> None:
    async def work(ask: Ask) -> None:
        reasoning, name, arguments, reasons = "", "", "", []
        stream = await ask("1+2", tools=[ADD], response_format=form(), stream=True)
        async for chunk in stream:
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                assert not choice.delta.content
                for call in choice.delta.tool_calls or []:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
        assert (reasoning, name, json.loads(arguments)) == ("I add.", "add", {"a": 1, "b": 2})
        assert reasons == ["tool_calls"]

    served(bundle, work)
