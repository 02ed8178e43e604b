"""The local executor with the token engine and the reference runner. Everything is real, except that the model is not
trained.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jsonschema_rs
import pytest
from answers import chunks_of, whole
from waiting import until

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.schema.chat import ChatCompletion, ChatCompletionRequest
from nearfar.server_fallback.schema.completions import CompletionRequest

END = 257
CALL = Call("1")
Result = TypeVar("Result")
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["near", "far"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
    },
    "required": ["kind", "count", "sure"],
}


SCHEMAS = json.loads((Path(__file__).parents[2] / "conformance/json_schemas.json").read_text())["schemas"]


def on_engine(path: Path, work: Callable[[LocalExecutor], Awaitable[Result]], pages: int = 64) -> Result:
    """The result of ``work`` with an executor for the bundle. "</s>" becomes the end token, which the tiny model
    lacks.
    """
    bundle = open_bundle(path)

    @asynccontextmanager
    async def serving() -> AsyncIterator[LocalExecutor]:
        runner = ReferenceRunner(
            bundle, activation="float32", limits=Limits(tokens=32, sequences=4, rows=4, pages=pages)
        )
        engine = TokenEngine(runner, replace(TokenModel.of(bundle.manifest), end_token_ids=frozenset([END])))
        model = replace(TextModel.of(bundle, "tiny"), eos_token_ids=(END,), tools=FORMATS["hermes"])
        local = LocalExecutor(engine, model)
        try:
            yield local
        finally:
            await local.close()

    async def run() -> Result:
        async with serving() as local:
            return await asyncio.wait_for(work(local), 120)

    return asyncio.run(run())


async def chat(local: LocalExecutor, **given: Any) -> ChatCompletion:
    messages = [{"role": "user", "content": "hello"}]
    request = ChatCompletionRequest.model_validate({"model": "tiny", "messages": messages, **given})
    answer: ChatCompletion = await whole(local, request, CALL)
    return answer


def test_greedy_text_is_that_of_one_sequence_alone(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    tokenizer = TextModel.of(bundle, "tiny").tokenizer
    prompt = tokenizer.encode("near and far")
    alone = list(generate(ReferenceRunner(bundle, activation="float32"), prompt, 12, Sampler()))

    async def ask(local: LocalExecutor) -> list[str]:
        request = CompletionRequest.model_validate(
            {"model": "tiny", "prompt": "near and far", "n": 3, "max_tokens": 12, "temperature": 0}
        )
        answer = await whole(local, request, CALL)
        assert answer.usage.completion_tokens == 3 * len(alone)
        return [choice.text for choice in answer.choices]

    assert on_engine(tiny_bundle, ask) == [tokenizer.decode(alone)] * 3


def test_an_untrained_model_keeps_to_its_grammar(tiny_bundle: Path) -> None:
    async def ask(local: LocalExecutor) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
        answer, called, greedy = await asyncio.gather(
            chat(local, n=3, seed=1, response_format=form, max_tokens=120),
            chat(local, tools=[tool], parallel_tool_calls=False, tool_choice="required", max_tokens=150),
            chat(local, temperature=0, response_format={"type": "regex", "pattern": "[a-z]{12}"}),
        )
        assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
        for choice in answer.choices:
            value = json.loads(choice.message.content or "")
            assert value["kind"] in ("near", "far")
            assert 0 <= value["count"] <= 99
        [call] = called.choices[0].message.tool_calls or []
        assert set(json.loads(call.function.arguments)) == {"kind", "count", "sure"}
        assert called.choices[0].finish_reason == "tool_calls"

        # With a stop string, the same answer ends before it.
        letters = greedy.choices[0].message.content or ""
        assert len(letters) == 12
        stop = letters[5:7]
        stopped = await chat(
            local, temperature=0, response_format={"type": "regex", "pattern": "[a-z]{12}"}, stop=[stop, "123"]
        )
        assert stopped.choices[0].message.content == letters[: letters.index(stop)]

    on_engine(tiny_bundle, ask)


def test_vllms_formats_are_followed_and_a_complete_answer_at_max_tokens_has_stopped(tiny_bundle: Path) -> None:
    bodies = json.loads((Path(__file__).parents[1] / "api/client_bodies.json").read_text())

    async def text(local: LocalExecutor, **given: Any) -> tuple[str, str | None]:
        request = CompletionRequest.model_validate({"model": "tiny", "prompt": "near", **given})
        [choice] = (await whole(local, request, CALL)).choices
        return choice.text, choice.finish_reason

    async def ask(local: LocalExecutor) -> None:
        choices = ["yes", "no (1+1)", "[a|b]\\d/*\n$^"]
        answers = await asyncio.gather(
            text(local, guided_regex="[a-z]+", max_tokens=3),
            text(local, structured_outputs={"choice": choices}, max_tokens=60),
            text(local, guided_json=json.dumps(SCHEMA), max_tokens=120, min_tokens=10),
            text(local, guided_grammar='root ::= "near" | "far"', max_tokens=20, min_tokens=15),
        )
        assert [reason for _, reason in answers] == ["stop"] * 4
        assert re.fullmatch("[a-z]+", answers[0][0])
        assert answers[1][0] in choices
        assert json.loads(answers[2][0])["kind"] in ("near", "far")
        # A response format may end before min_tokens if it allows nothing else.
        assert answers[3][0] in ("near", "far")
        called = await chat(
            local, tools=[{"type": "function", "function": {"name": "f", "strict": True}}], max_tokens=3, temperature=0
        )
        assert called.choices[0].finish_reason == "length"
        with pytest.raises(RequestError, match="ignore_eos"):
            await text(local, guided_regex="a", ignore_eos=True)
        for wrong in (
            {"guided_json": "{"},
            {"guided_json": {}, "guided_regex": "a"},
            {"structured_outputs": {"regex": "a", "json": {}}},
        ):
            with pytest.raises(RequestError, match=r"json|forms"):
                await text(local, **wrong)
        # Schemas in the forms of instructor, LangChain and Vercel's AI SDK.
        for sent in bodies:
            if "response_format" in sent["body"]:
                request = ChatCompletionRequest.model_validate(
                    {**sent["body"], "stream": None, "max_completion_tokens": 60}
                )
                [choice] = (await whole(local, request, CALL)).choices
                assert (json.loads(choice.message.content or "").keys(), choice.finish_reason) == (
                    {"name", "age"},
                    "stop",
                )

    on_engine(tiny_bundle, ask)


def test_an_answer_that_is_left_frees_its_pages(tiny_bundle: Path) -> None:
    async def leave(local: LocalExecutor) -> None:
        request = ChatCompletionRequest.model_validate(
            {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 3}
        )
        stream = chunks_of(local, request, CALL)
        await anext(stream)
        assert local.state().running > 0
        await stream.aclose()
        await until(lambda: local.state().running == 0)

    on_engine(tiny_bundle, leave)


@pytest.mark.parametrize("count", [25, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_answers_meet_schemas_within_max_tokens(count: int, tiny_bundle: Path) -> None:
    schemas = [schema for schema in SCHEMAS.values() if isinstance(schema, dict)][:: 50 // count][:count]

    async def ask(local: LocalExecutor) -> list[ChatCompletion | RequestError]:
        async def one(index: int, schema: dict[str, Any]) -> ChatCompletion | RequestError:
            form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
            try:
                return await chat(local, response_format=form, temperature=1, seed=index, max_tokens=48)
            except RequestError as error:
                return error

        return await asyncio.gather(*(one(index, schema) for index, schema in enumerate(schemas)))

    answers = on_engine(tiny_bundle, ask)
    refused = [answer for answer in answers if isinstance(answer, RequestError)]
    others = [error.message for error in refused if "and there is room for 48" not in error.message]
    assert others == []
    assert {error.details["param"] for error in refused} <= {"max_tokens"}
    assert len(refused) < 10
    for schema, answer in zip(schemas, answers, strict=True):
        if isinstance(answer, ChatCompletion):
            [choice] = answer.choices
            value = json.loads(choice.message.content or "")
            assert answer.usage.completion_tokens <= 48
            if "$defs" not in str(schema):
                assert jsonschema_rs.Draft7Validator(schema, validate_formats=True).is_valid(value), (
                    choice.message.content
                )


def test_an_answer_that_gives_up_its_pages_is_complete_within_max_tokens(tiny_bundle: Path) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 30}

    async def ask(local: LocalExecutor) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
        messages = [{"role": "user", "content": "hello " * 12}]
        answer = await chat(local, messages=messages, n=4, seed=1, response_format=form, max_tokens=64)
        assert local.state().engine.preemptions > 0
        assert all(len(json.loads(choice.message.content or "")) >= 30 for choice in answer.choices)

    on_engine(tiny_bundle, ask, pages=16)


def test_calls_patterns_and_grammars_are_complete_within_max_tokens_and_the_context(tiny_bundle: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    texts = [
        ({"type": "regex", "pattern": "(yes|no), because [a-z ]{5,}\\."}, r"(yes|no), because [a-z ]{5,}\."),
        ({"type": "grammar", "grammar": 'root ::= item+ "."\nitem ::= "(" item* ")"'}, r"[()]+\."),
    ]

    async def ask(local: LocalExecutor) -> None:
        with pytest.raises(RequestError, match=r"has \d+ tokens, and there is room for 20") as error:
            await chat(local, tools=[tool], tool_choice="required", max_tokens=20)
        needed = error.value.details["needed"]
        assert isinstance(needed, int)
        for more in (0, 1, 30):
            called = await chat(local, tools=[tool], tool_choice="required", seed=more, max_tokens=needed + more)
            calls = called.choices[0].message.tool_calls or []
            assert calls
            assert all(set(json.loads(call.function.arguments)) == {"kind", "count", "sure"} for call in calls)
        answer_form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        strict = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
        for seed in range(3):
            either = await chat(
                local, tools=[strict], response_format=answer_form, seed=seed, max_tokens=needed + 15 * seed
            )
            [choice] = either.choices
            calls = choice.message.tool_calls or []
            texts_of_json = [call.function.arguments for call in calls] or [choice.message.content or ""]
            assert choice.finish_reason == ("tool_calls" if calls else "stop")
            assert all(set(json.loads(text)) == {"kind", "count", "sure"} for text in texts_of_json)
        for seed, (form, expected) in enumerate(texts):
            answer = await chat(local, response_format=form, seed=seed, max_tokens=26)
            assert re.fullmatch(expected, answer.choices[0].message.content or ""), answer.choices[0].message.content
        long = await chat(local, response_format={"type": "regex", "pattern": "[0-9]{200,}END"})
        assert re.fullmatch("[0-9]{200,}END", long.choices[0].message.content or "")
        with pytest.raises(
            RequestError, match=f"there is room for {local.context - long.usage.prompt_tokens + 1}; raise max_tokens"
        ):
            await chat(local, response_format={"type": "regex", "pattern": "[0-9]{300}"})

    on_engine(tiny_bundle, ask)
