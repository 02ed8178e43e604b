"""Tools of real MCP servers, in memory and over streamable HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvicorn
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from scripted_engine import ANSWERED, ScriptedEngine
from waiting import WAIT_SECONDS, until

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.agent import Agent, AgentResult, AskedCall, function_tool, mcp_tools

Connect = Callable[[MCPServer], AbstractAsyncContextManager[Client]]


def notes_server(stalled: asyncio.Event | None = None) -> MCPServer:
    server = MCPServer("notes")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read(note: int) -> str:
        """Read a note."""
        if note > 2:
            raise ToolError(f"there is no note {note}")
        return f"note {note}"

    @server.tool()
    async def stall() -> str:
        """Never ends."""
        if stalled is not None:
            stalled.set()
        await asyncio.Event().wait()
        return ""

    return server


@asynccontextmanager
async def in_memory(server: MCPServer) -> AsyncGenerator[Client, None]:
    async with Client(server) as client:
        yield client


@asynccontextmanager
async def over_http(server: MCPServer) -> AsyncGenerator[Client, None]:
    app = server.streamable_http_app(stateless_http=True)
    serving = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    task = asyncio.create_task(serving.serve())
    try:
        await until(lambda: serving.started)
        port = serving.servers[0].sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            yield client
    finally:
        serving.should_exit = True
        await task


def within_limit(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(WAIT_SECONDS):
            return await work

    return asyncio.run(limited())


@pytest.mark.parametrize("connect", [in_memory, over_http])
def test_tools_of_a_server_run_after_approval_and_their_errors_are_text(connect: Connect) -> None:
    asked = list[AskedCall]()

    def approve(call: AskedCall) -> bool:
        asked.append(call)
        return True

    engine = ScriptedEngine([("read", {"note": 1})], [("read", {"note": 9})], [("read", {"note": "x"})], ANSWERED)

    async def work() -> AgentResult:
        async with connect(notes_server()) as client:
            tools = [mcp_tools("notes", client, allow={"stall": "never"})]
            return await Agent(engine, tools, approve=approve).run("read the notes")

    result = within_limit(work())
    assert [(call.name, call.server, call.values) for call in asked] == [
        ("read", "notes", {"note": 1}),
        ("read", "notes", {"note": 9}),
    ]
    calls = [call for step in result.steps for call in step.calls]
    assert [call.outcome for call in calls] == ["ran", "failed", "refused"]
    assert calls[0].text == "note 1"
    assert "there is no note 9" in calls[1].text
    assert 'arguments.note is "x", it must be of type integer' in calls[2].text
    assert [tool["function"]["name"] for tool in engine.asked[0]["tools"]] == ["read", "answer"]


def test_cancelling_ends_a_call_of_a_server_at_once() -> None:
    async def work() -> None:
        stalled = asyncio.Event()
        async with in_memory(notes_server(stalled)) as client:
            agent = Agent(ScriptedEngine([("stall", {})]), [mcp_tools("notes", client, allow="always")])
            running = asyncio.create_task(agent.run("stall"))
            await stalled.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            # The connection still answers.
            assert len((await client.list_tools()).tools) == 2

    within_limit(work())


def test_names_of_two_servers_are_told_apart() -> None:
    async def work() -> ScriptedEngine:
        async with in_memory(notes_server()) as first, in_memory(notes_server()) as second:
            own = function_tool(lambda: "page", name="read", parameters={"type": "object"}, description="Read a page")
            engine = ScriptedEngine([("second_read", {"note": 2})], ANSWERED)
            tools = [own, mcp_tools("first", first, allow="always"), mcp_tools("second", second, allow="always")]
            await Agent(engine, tools).run("read")
            return engine

    engine = within_limit(work())
    names = [tool["function"]["name"] for tool in engine.asked[0]["tools"]]
    assert names == ["read", "first_read", "stall", "second_read", "second_stall", "answer"]
    assert engine.last_result(1) == "note 2"


def test_a_tool_whose_schema_nothing_can_enforce_is_refused_by_name() -> None:
    class Odd:
        async def list_tools(self) -> Any:
            from mcp.types import ListToolsResult, Tool

            schema = {"type": "object", "not": {"required": ["a"]}}
            return ListToolsResult(tools=[Tool(name="odd", input_schema=schema)])

        async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
            raise AssertionError((name, arguments))

    engine = ScriptedEngine(ANSWERED)
    with pytest.raises(RequestError, match="the tool \"odd\" of s cannot be called: its schema: the keyword 'not'"):
        within_limit(Agent(engine, [mcp_tools("s", Odd(), allow="always")]).run("x"))
    assert within_limit(Agent(engine, [mcp_tools("s", Odd(), allow="never")]).run("x")).reason == "answer"
