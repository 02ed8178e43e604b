"""The vllm executor: starts `vllm serve` and sends it the requests, so that vLLM provides tensor and pipeline
parallelism on one or more machines.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nearfar.compiler.runtime.errors import DeadlineExceeded, QueueFull, RequestError, ToolError, Unavailable

from ..log_event import log_output
from ..option_types import HANG_SECONDS
from ..processes.supervisor import Restarts
from ..schema.completions import AnswerRequest
from ..text.output import Output
from .executor import Call, ExecutorState, Opening
from .nodes import Nodes
from .registry import default_name
from .replicas import Replicas
from .supervised import RESTARTS, ServerProgram, SupervisedServer
from .upstream import Upstream
from .upstream_executor import OtherRequest, UpstreamExecutor, UpstreamOptions, discover, upstream_of
from .vllm_arguments import CheckpointFacts, checkpoint_facts, model_arguments

WITHOUT_FILES = (
    "its config.json and chat template could not be read, so the parser of its tool calls is not known; pass it with "
    "--vllm-arguments '--tool-call-parser NAME', and '--runner pooling' for a model that makes embeddings"
)
# The time until a crash is noticed.
REASON_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """``count`` machines with this one, which the others reach at ``address``: our port is for `nearfar node`,
    ``master_port`` for vLLM itself. ``key`` is the same on all.
    """

    count: int
    address: str
    port: int
    master_port: int
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """``model`` is a folder or a name on the Hugging Face Hub, as for `vllm serve`. ``arguments`` are passed to it
    unchanged, and replace what we would pass. ``facts`` are about the model, None if they are not known.
    """

    model: str
    name: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    arguments: tuple[str, ...] = ()
    facts: CheckpointFacts | None = None
    nodes: NodeOptions | None = None
    start_seconds: float = 1800.0
    restarts: Restarts = RESTARTS
    hang_seconds: float = HANG_SECONDS


class VllmOpener:
    """Implements `Opener`: a server of its own for each model. The model and name in ``options`` are not used."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options

    async def prepare(self, model: str, name: str | None) -> Opening:
        """Raises ToolError if vLLM is not installed."""
        find_vllm()
        facts = await asyncio.to_thread(checkpoint_facts, model)
        if facts is None:
            log_output("vllm", f"{model}: {WITHOUT_FILES}")
        name = name or default_name(model)
        options = replace(self._options, model=model, name=name, facts=facts)
        embeds = facts is not None and facts.embeds
        # vLLM's process holds the memory.
        return Opening(options.name, None, lambda: open_vllm(options), task="embed" if embeds else "generate")


async def open_vllm(options: VllmOptions) -> VllmExecutor:
    """Return when the server answers, which takes minutes for a large model. Raises ToolError if vLLM is not installed,
    DeviceError if it does not start.
    """
    port, api_key = free_port(), secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    nodes = None
    if (several := options.nodes) is not None:
        nodes = Nodes(
            several.count, several.address, several.port, several.key, lambda rank: node_command(options, rank)
        )
        await nodes.open()
    program = ServerProgram(
        name="vllm",
        command=[find_vllm(), *serve_arguments(options, port)],
        health_url=f"{url}/health",
        # A key of its own, so that no program on this machine can bypass the keys of our server.
        environment={"VLLM_API_KEY": api_key},
        start_seconds=options.start_seconds,
        restarts=options.restarts,
        hang_seconds=options.hang_seconds,
        companions=nodes,
    )
    server = SupervisedServer(program)
    await server.open()
    upstream_options = UpstreamOptions(
        urls=(url,), name=options.name, model=options.name, dialect="vllm", api_key=api_key, priorities=-1
    )
    upstream = upstream_of(url, upstream_options)
    try:
        model, context = await discover([upstream], upstream_options)
        upstream_options = replace(upstream_options, routes=await routes_of(upstream))
    except BaseException:
        await upstream.close()
        await server.stop()
        raise
    return VllmExecutor(server, Replicas([upstream]), upstream_options, model, context)


class VllmExecutor(UpstreamExecutor):
    def __init__(
        self, server: SupervisedServer, replicas: Replicas, options: UpstreamOptions, model: str, context: int
    ) -> None:
        super().__init__(replicas, options, model, context)
        self.server = server

    def state(self) -> ExecutorState:
        upstream_state = super().state()
        return ExecutorState(
            ready=self.server.ready and upstream_state.ready,
            detail=f"vllm: {self.server.detail}",
            running=upstream_state.running,
        )

    async def close(self) -> None:
        await super().close()
        await self.server.stop()

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:
        self._require_ready()
        try:
            await super().answer(request, call, output)
        except Unavailable as error:
            await self._explain(error)
            raise

    async def _before_retry(self, error: Unavailable, tried: Sequence[Upstream]) -> None:
        await self._explain(error)
        await super()._before_retry(error, tried)

    async def _value(self, path: str, request: OtherRequest, call: Call) -> Any:
        self._require_ready()
        return await super()._value(path, request, call)

    async def _explain(self, error: Unavailable) -> None:
        """Raise the reason of a failure if vLLM has crashed, which breaks connections before its reason is known."""
        if not isinstance(error, DeadlineExceeded | QueueFull):
            await asyncio.sleep(REASON_SECONDS)
            self._require_ready()

    def _require_ready(self) -> None:
        """Raises Unavailable with the reason if vLLM is being restarted or is given up."""
        if not self.server.ready:
            raise Unavailable(f"{self._options.name}: vllm {self.server.detail}; send the request again later")


def serve_arguments(options: VllmOptions, port: int) -> list[str]:
    """The arguments of `vllm` on this machine."""
    return [
        "serve", options.model, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", options.name,
        *engine_arguments(options, rank=0),
    ]  # fmt: skip


def node_command(options: VllmOptions, rank: int) -> list[str]:
    """The arguments of `vllm` on another node."""
    return ["serve", options.model, "--headless", *engine_arguments(options, rank)]


def engine_arguments(options: VllmOptions, rank: int) -> list[str]:
    sizes = [
        "--tensor-parallel-size", str(options.tensor_parallel_size),
        "--pipeline-parallel-size", str(options.pipeline_parallel_size),
        "--data-parallel-size", str(options.data_parallel_size),
    ]  # fmt: skip
    nodes = options.nodes
    if nodes is not None:
        # From these, vLLM derives which copies of the model, or which part of one, run on this node.
        sizes += [
            "--nnodes", str(nodes.count), "--node-rank", str(rank), "--master-addr", nodes.address, "--master-port",
            str(nodes.master_port), "--distributed-executor-backend", "mp",
        ]  # fmt: skip
    model = model_arguments(options.facts or CheckpointFacts(), options.arguments)
    return [*sizes, "--scheduling-policy", "priority", *model, *options.arguments]


async def routes_of(upstream: Upstream) -> frozenset[str] | None:
    """The paths of the routes that vLLM has for its model; None if it does not list them (--disable-fastapi-docs)."""
    try:
        paths = (await upstream.request("GET", "/openapi.json", None, Call("routes"))).get("paths")
    except RequestError:
        return None
    return frozenset(paths) if isinstance(paths, dict) else None


def find_vllm() -> str:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("vllm") or shutil.which("vllm", path=beside)
    if program is None:
        raise ToolError(
            "vllm is not installed; 'pip install vllm' into an environment on the PATH (it needs Linux and a GPU "
            "that it supports), "
            "or serve the model without --executor vllm"
        )
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
