"""Where an agent's tools come from: functions of the application, and MCP servers."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

# "always": a call runs. "ask": it runs if the application approves. "never": the model does not see the tool.
Allow = Literal["always", "ask", "never"]
# A server may list without an end.
MOST_PAGES = 64


@dataclass(frozen=True, slots=True)
class ResultText:
    """The text of a result, and whether the tool reported an error."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its source describes it. ``call`` gets the arguments, which fit ``schema``, and raises what the tool
    raises.

    ``server`` is None for a function of the application. ``reads``: it changes nothing, so the same call may be made
    again after another one. ``labels``, of a Hybrid's policy, are those of its results. ``remote``: its arguments leave
    this machine, so a Hybrid's policy decides about them.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Awaitable[ResultText]]
    server: str | None = None
    allow: Allow = "always"
    reads: bool = False
    labels: tuple[str, ...] = ()
    remote: bool = False

    def entry(self) -> dict[str, Any]:
        """As JSON for `listTools`."""
        return {
            "name": self.name, "description": self.description, "schema": self.schema, "server": self.server,
            "allow": self.allow, "reads": self.reads,
        }  # fmt: skip


class ToolSource(Protocol):
    async def list(self) -> Sequence[Tool]: ...


@dataclass(frozen=True, slots=True)
class Functions:
    """A source of tools that do not change."""

    tools: tuple[Tool, ...]

    async def list(self) -> Sequence[Tool]:
        return self.tools


class McpClient(Protocol):
    """What of `mcp.Client` and `mcp.ClientSession` an agent uses."""

    async def list_tools(self) -> Any: ...

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class McpServer:
    server: str
    client: McpClient
    allow: Allow | Mapping[str, Allow] | None
    labels: tuple[str, ...]
    local: bool

    async def list(self) -> Sequence[Tool]:
        tools: list[Tool] = []
        list_page: Callable[..., Awaitable[BaseModel]] = self.client.list_tools
        at: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            page = _json_of(await list_page(**at))
            tools.extend(self._tool(each) for each in page["tools"])
            if page.get("nextCursor") is None:
                return tools
            at = {"cursor": page["nextCursor"]}
        raise RequestError(
            f"the MCP server {self.server} lists its tools on more than {MOST_PAGES} pages", param="tools"
        )

    def _tool(self, described: Mapping[str, Any]) -> Tool:
        name, hints = described["name"], described.get("annotations") or {}
        ask = SharedScript.of_thread().ask

        async def call(values: Mapping[str, Any]) -> ResultText:
            result = _json_of(await self.client.call_tool(name, dict(values)))
            return ResultText(**SharedScript.of_thread().ask("agentContentText", result))

        return Tool(
            name=name,
            description=described.get("description") or "",
            schema=described["inputSchema"],
            call=call,
            server=self.server,
            allow=ask("agentAllow", self.allow, name, ask("agentDefaultAllow", "mcp", hints)),
            reads=hints.get("readOnlyHint") is True,
            labels=self.labels,
            remote=not self.local,
        )


def mcp_tools(
    server: str,
    client: McpClient,
    *,
    allow: Allow | Mapping[str, Allow] | None = None,
    labels: Sequence[str] = (),
    local: bool = False,
) -> ToolSource:
    """The tools of an MCP server by its connected client, an `mcp.Client` or `mcp.ClientSession`.

    Each call is asked for, unless ``allow``, for all tools or by name, says otherwise: a server's hints about its tools
    are only its own claims. ``server`` names it for people, and in names that are taken. ``local``: it is on this
    machine, and what it receives does not leave.
    """
    return McpServer(server, client, allow, tuple(labels), local)


def function_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    allow: Allow = "always",
    reads: bool = False,
    labels: Sequence[str] = (),
) -> ToolSource:
    """A function that a model may call with keyword arguments. One that is not async runs in a thread.

    ``name`` and ``description`` are by default its own name and docstring, and the schema ``parameters`` that of its
    annotations, by which the arguments are then converted. A result that is not a text is sent to the model as JSON.
    Raises RequestError for a parameter without a name or an annotation.
    """
    called = name or function.__name__
    model = None if parameters is not None else _model_of(function, called)
    schema = parameters if model is None else model.model_json_schema()
    is_async = inspect.iscoroutinefunction(function)

    async def call(values: Mapping[str, Any]) -> ResultText:
        given = dict(values)
        if model is not None:
            read = model.model_validate(given)
            given = {field: getattr(read, field) for field in read.model_fields_set}
        result = await function(**given) if is_async else await asyncio.to_thread(function, **given)
        return ResultText(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=_plain))

    about = inspect.getdoc(function) or "" if description is None else description
    return Functions((Tool(called, about, schema or {}, call, None, allow, reads, tuple(labels)),))


def _model_of(function: Callable[..., Any], name: str) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise RequestError(
                f"the tool {name!r}: the parameter {parameter.name} cannot be given by name; give the tool "
                "`parameters`, the schema of its arguments",
                param="tools",
            )
        if parameter.name not in hints:
            raise RequestError(
                f"the tool {name!r}: the parameter {parameter.name} has no annotation; add one, or give the tool "
                "`parameters`, the schema of its arguments",
                param="tools",
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], Field(default))
    model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"a tool returned {type(value).__name__}, which is not JSON; return a text, or values of JSON")


def _json_of(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True)
