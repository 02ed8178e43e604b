"""The vllm executor: starts `vllm serve` and sends it the requests, so that vLLM provides tensor and pipeline
parallelism on one or more machines.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from nearfar.compiler.errors import ToolError

from .executor import ExecutorState, Opening
from .registry import default_name
from .replicas import Replicas
from .supervised import ServerProgram, SupervisedServer
from .upstream import make_upstream
from .upstream_executor import UpstreamExecutor, UpstreamOptions, discover


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """``model`` is a folder or a name on the Hugging Face Hub, as for `vllm serve`. ``arguments`` are passed to it
    unchanged.
    """

    model: str
    name: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    arguments: tuple[str, ...] = ()
    start_seconds: float = 1800.0
    first_restart_seconds: float = 1.0


class VllmOpener:
    """Implements `Opener`: a server of its own for each model. The model and name in ``options`` are not used."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options

    async def prepare(self, model: str, name: str | None) -> Opening:
        """Raises ToolError if vLLM is not installed."""
        options = replace(self._options, model=model, name=name or default_name(model))
        find_vllm()
        # vLLM's process holds the memory.
        return Opening(options.name, None, lambda: open_vllm(options))


async def open_vllm(options: VllmOptions) -> VllmExecutor:
    """Return when the server answers, which takes minutes for a large model. Raises ToolError if vLLM is not installed,
    DeviceError if it does not start.
    """
    port, api_key = free_port(), secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    program = ServerProgram(
        name="vllm",
        command=command(options, port),
        health_url=f"{url}/health",
        # A key of its own, so that no program on this machine can bypass the keys of our server.
        environment={"VLLM_API_KEY": api_key},
        start_seconds=options.start_seconds,
        first_restart_seconds=options.first_restart_seconds,
    )
    server = SupervisedServer(program)
    await server.start()
    upstream_options = UpstreamOptions(
        urls=(url,), name=options.name, model=options.name, dialect="vllm", api_key=api_key, priorities=True
    )
    upstream = make_upstream(url, api_key, any_request_id=True)
    try:
        model, context = await discover([upstream], upstream_options)
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


def command(options: VllmOptions, port: int) -> list[str]:
    return [
        find_vllm(), "serve", options.model, "--host", "127.0.0.1", "--port", str(port), "--served-model-name",
        options.name,
        "--tensor-parallel-size", str(options.tensor_parallel_size), "--pipeline-parallel-size",
        str(options.pipeline_parallel_size),
        "--scheduling-policy", "priority", *options.arguments,
    ]  # fmt: skip


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
