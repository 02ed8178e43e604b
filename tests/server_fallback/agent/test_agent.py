"""An agent's loop over an engine whose answers are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from scripted_engine import ANSWERED, DIM, ScriptedEngine, light
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.agent import Agent, AskedCall, CallEnded, Ended, Text, function_tool


def run(engine: ScriptedEngine, *tools: Any, task: str = "dim the kitchen", **options: Any) -> Any:
    async def work() -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            return await Agent(engine, tools, **options).run(task)

    return asyncio.run(work())


def test_a_tool_runs_with_the_models_arguments_and_its_result_is_what_the_model_reads_next() -> None:
    engine, done = ScriptedEngine([("set_light", DIM)], ANSWERED), list[Mapping[str, Any]]()
    result = run(engine, light(done))
    assert done == [DIM]
    assert (result.reason, result.text, result.answer, result.tokens) == ("answer", "done", {"text": "done"}, 10)
    assert [tool["function"]["name"] for tool in engine.asked[0]["tools"]] == ["set_light", "answer"]
    assert [asked["tool_choice"] for asked in engine.asked] == ["required", "required"]
    assert engine.last_result(1) == "kitchen is at 30"
    assert "stake" not in engine.asked[0]
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant", "tool"]


def test_arguments_that_do_not_fit_are_refused_and_a_tools_error_is_text() -> None:
    def fail(room: str, level: int) -> str:
        raise LookupError(f"no bulb in the {room} for {level}")

    done = list[Mapping[str, Any]]()
    engine = ScriptedEngine([("set_light", {**DIM, "level": 130})], [("set_light", '{"room')], ANSWERED)
    result = run(engine, light(done))
    assert done == []
    assert engine.last_result(1).startswith("Error: arguments.level is 130, it must be at most 100")
    assert engine.last_result(2).startswith("Error: the arguments are not JSON")
    assert result.steps[2].stake["reasons"] == ["the last 2 calls failed", "step 3 of at most 8"]
    engine = ScriptedEngine([("set_light", DIM)], ANSWERED)
    (call,) = run(engine, function_tool(fail, name="set_light")).steps[0].calls
    assert (call.outcome, call.text) == ("failed", "Error: no bulb in the kitchen for 30")
    assert isinstance(call.error, LookupError)


def test_the_same_call_again_ends_the_run() -> None:
    done = list[Mapping[str, Any]]()
    engine = ScriptedEngine([("set_light", DIM)], [("set_light", '{"level":30,"room":"kitchen"}')])
    assert run(engine, light(done)).reason == "repeated"
    assert done == [DIM]


def test_each_bound_ends_with_its_reason() -> None:
    levels: list[Any] = [[("set_light", {"room": "bath", "level": level})] for level in range(3)]
    result = run(ScriptedEngine(*levels[:2], ANSWERED), light(), bounds={"steps": 3})
    assert (result.reason, result.text) == ("steps", "done")
    assert run(ScriptedEngine(*levels), light(), bounds={"tokens": 7}).reason == "tokens"
    engine = ScriptedEngine(*levels, ANSWERED)
    assert run(engine, light(), bounds={"calls_per_tool": 2}).reason == "answer"
    assert "was called 2 times, which is the limit" in engine.last_result(3)


def test_tokens_that_do_not_hold_the_shortest_answer_of_a_grammar_end_the_run() -> None:
    class Short(ScriptedEngine):
        async def create(self, **parameters: Any) -> Any:
            answer = await super().create(**parameters)
            if parameters["max_tokens"] == 2:
                raise RequestError("raise it", param="max_tokens")
            return answer

    assert run(Short([("set_light", DIM)]), light(), bounds={"tokens": 7}).reason == "tokens"
    with pytest.raises(RequestError, match="raise it"):
        run(Short([("set_light", DIM)]), light(), bounds={"step_tokens": 2})


def test_after_its_seconds_a_run_ends_within_a_tool_the_model_and_an_approval() -> None:
    cancelled = []

    async def stall(room: str, level: int) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append((room, level))
            raise
        return ""

    async def wait(_: AskedCall) -> bool:
        return await asyncio.Event().wait()

    bounds, scripts = {"seconds": 0.1}, [("set_light", DIM)]
    for result in (
        run(ScriptedEngine(scripts), function_tool(stall, name="set_light"), bounds=bounds),
        run(ScriptedEngine(scripts, hangs=True), light(), bounds=bounds),
        run(ScriptedEngine(scripts), light(allow="ask"), approve=wait, bounds=bounds),
    ):
        assert (result.reason, result.text) == ("seconds", None)
        assert result.seconds >= 0.1
    assert cancelled == [("kitchen", 30)]


def test_cancelling_a_run_stops_at_once_within_a_tool() -> None:
    ended = []

    async def work() -> None:
        entered = asyncio.Event()

        async def stall(room: str, level: int) -> str:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append((room, level))
            return ""

        engine = ScriptedEngine([("set_light", DIM)])
        running = asyncio.create_task(Agent(engine, [function_tool(stall, name="set_light")]).run("dim"))
        async with asyncio.timeout(WAIT_SECONDS):
            await entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert len(engine.asked) == 1

    asyncio.run(work())
    assert ended == [("kitchen", 30)]


def test_a_tool_that_asks_runs_only_if_somebody_approves_what_the_model_wrote() -> None:
    asked, done = list[AskedCall](), list[Mapping[str, Any]]()

    def approve(call: AskedCall) -> bool:
        asked.append(call)
        return len(asked) == 1

    written = '{"room": "kitchen", "level": 30}'
    engine = ScriptedEngine([("set_light", written)], [("set_light", {**DIM, "level": 40})], ANSWERED)
    run(engine, light(done, allow="ask"), approve=approve)
    assert asked[0] == AskedCall("set_light", None, "Set a light", written, DIM)
    assert done == [DIM]
    assert engine.last_result(2) == "Error: the user did not allow this call"
    with pytest.raises(RequestError, match="nobody approves calls of set_light"):
        run(engine, light(allow="ask"))
    never = ScriptedEngine(ANSWERED)
    run(never, light(allow="never"))
    assert [tool["function"]["name"] for tool in never.asked[0]["tools"]] == ["answer"]
    with pytest.raises(RequestError, match="approve must return True or False"):
        run(ScriptedEngine([("set_light", DIM)]), light(allow="ask"), approve=lambda _: "yes")


def test_a_functions_annotations_are_its_schema_and_convert_its_arguments() -> None:
    def book(day: Literal["monday", "friday"], *, seats: int = 2) -> dict[str, Any]:
        """Book a table."""
        return {"day": day, "seats": seats}

    engine = ScriptedEngine([("book", {"day": "sunday"})], [("book", {"day": "friday"})], ANSWERED)
    run(engine, function_tool(book))
    described = engine.asked[0]["tools"][0]["function"]
    assert (described["name"], described["description"]) == ("book", "Book a table.")
    assert described["parameters"]["required"] == ["day"]
    assert 'arguments.day is "sunday", it must be one of "monday", "friday"' in engine.last_result(1)
    assert engine.last_result(2) == '{"day": "friday", "seats": 2}'
    for wrong, problem in (
        (lambda day: day, "has no annotation"),
        (lambda *days: days, "cannot be given by name"),
    ):
        with pytest.raises(RequestError, match=problem):
            function_tool(wrong, name="wrong")


def test_integers_keep_all_of_their_digits() -> None:
    def read(number: int) -> str:
        return str(number)

    engine = ScriptedEngine([("read", '{"number": 12345678901234567890}')], ANSWERED)
    run(engine, function_tool(read))
    assert engine.last_result(1) == "12345678901234567890"


def test_events_come_while_it_happens_and_a_result_is_bounded() -> None:
    async def work() -> list[Any]:
        engine = ScriptedEngine([("read", {})], ANSWERED)
        tool = function_tool(lambda: "ä" * 100, name="read", parameters={"type": "object"})
        return [event async for event in Agent(engine, [tool], bounds={"result_bytes": 64}).events("read")]

    events = asyncio.run(work())
    names = ["StepBegan", "Text", "Routed", "Calling", "CallEnded", "StepBegan", "Text", "Routed", "Ended"]
    assert [type(event).__name__ for event in events] == names
    assert events[1] == Text(0, "read", "{}")
    # The answer's text, not its JSON.
    assert events[6] == Text(1, None, "done")
    ended = events[4]
    assert isinstance(ended, CallEnded)
    assert ended.call.text.endswith("\n[cut: the first 30 of 200 bytes]")
    assert len(ended.call.text.encode()) <= 64
    assert isinstance(events[-1], Ended)


def test_options_that_can_never_work_are_errors_at_creation() -> None:
    for options, problem in (
        ({"bounds": {"steps": 0}}, "bounds.steps is 0, it must be an integer from 1 to 1000"),
        ({"routing": {"lat": 1}}, "routing.lat is not supported"),
        ({"parameters": {"messages": []}}, "messages is set by the agent"),
        ({"answer": {"type": "object", "if": {}}}, "the keyword 'if' is not supported"),
    ):
        with pytest.raises(RequestError, match=problem):
            Agent(ScriptedEngine(), [], **options)
    with pytest.raises(RequestError, match="results of set_light have labels"):
        run(ScriptedEngine(ANSWERED), light(labels=["secret"]))
