"""nearfar serve: answer OpenAI's requests for one or several models."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar.compiler import quant
from nearfar.compiler.bundle.manifest import EXPORTS
from nearfar.compiler.cli.model import add_ignore_key
from nearfar.compiler.cli.output import add_command
from nearfar.compiler.cli.sign import add_trust
from nearfar.compiler.errors import RequestError, ToolError, Unavailable
from nearfar.compiler.ir.kv_format import KV_NAMES

from ..engine_process.heartbeat import HANG_SECONDS
from .numbers import (
    NODE_PORT,
    count,
    count_or_none,
    counts,
    milliseconds,
    network,
    node_address,
    origin,
    seconds,
    share,
    size_bytes,
)

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..api.config import ApiConfig
    from ..executors.executor import Models
    from ..kserve.grpc_server import GrpcServer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8000


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "serve",
        run,
        example="nearfar serve ./Qwen3-0.6B --alias gpt-4o-mini=Qwen3-0.6B --port 8000",
    )
    parser.add_argument(
        "models", metavar="MODEL", nargs="*",
        help="a bundle; a Hugging Face folder or name, compiled on first use; or demo, demo-far or demo-encoder, "
        "the models that come with nearfar",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help="0 selects a free port (default: %(default)s)"
    )
    parser.add_argument(
        "--pipeline",
        action="append",
        default=[],
        metavar="FILE",
        help="a JSON file that chains models and stores, served as a model; may be given several times",
    )
    parser.add_argument(
        "--grpc-port",
        type=int,
        metavar="N",
        help="also serve the Open Inference Protocol (KServe v2, Triton) over gRPC; 0 selects a free port",
    )
    parser.add_argument(
        "--alias",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="another name for a model; may be given several times",
    )
    add_access(parser)
    local = parser.add_argument_group("models on this machine")
    local.add_argument(
        "--target",
        choices=("cpu", "cuda", *EXPORTS),
        help="the target to compile for (default: cuda if there is a GPU, else cpu)",
    )
    local.add_argument(
        "--quantization",
        metavar="NAME",
        help=f"quantization of compiled models (default: {quant.DEFAULT}, and {quant.ENCODER_DEFAULT} of encoders; "
        "quantized checkpoints stay as they are)",
    )
    local.add_argument(
        "--requantize",
        action="store_true",
        help="also convert the weights that a checkpoint stores quantized, by rounding them",
    )
    local.add_argument(
        "--context", type=int, metavar="N", help="context of compiled models: the longest sequence in tokens"
    )
    local.add_argument(
        "--kv",
        choices=KV_NAMES,
        default="activation",
        help="format of the keys and values of compiled models; q8 halves their size, and q4 quarters it",
    )
    local.add_argument(
        "--lora-rank",
        type=int,
        default=0,
        metavar="RANK",
        help="compile models that accept LoRA adapters up to this rank",
    )
    add_ignore_key(local)
    local.add_argument(
        "--max-adapters",
        type=count,
        default=4,
        metavar="N",
        help="LoRA adapters that can be loaded at once (default: %(default)s)",
    )
    local.add_argument(
        "--max-sequences",
        type=count,
        metavar="N",
        help="answers that are generated at once (default: 32; on a GPU 256)",
    )
    local.add_argument(
        "--max-waiting", type=count, default=256, metavar="N", help="requests that may queue (default: %(default)s)"
    )
    local.add_argument(
        "--kv-memory", type=size_bytes, metavar="SIZE", help="memory for the keys and values of a model, such as 4GB"
    )
    local.add_argument(
        "--memory",
        type=size_bytes,
        metavar="SIZE",
        help="memory for all models together; a model that exceeds it is not loaded (default: 90%% of the device's)",
    )
    add_trust(local)
    local.add_argument(
        "--threads", type=count, metavar="N", help="threads of the cpu and onnx targets (default: one per core)"
    )
    local.add_argument(
        "--front-ends",
        type=count,
        default=1,
        metavar="N",
        help="processes that answer HTTP for all models; more than one for hundreds of streams at once "
        "(default: %(default)s)",
    )
    local.add_argument(
        "--draft",
        metavar="MODEL",
        help="speculative decoding: draft tokens with ngram, or with a smaller model that has the same tokenizer",
    )
    local.add_argument(
        "--draft-tokens", type=count, default=4, metavar="N", help="tokens drafted at once (default: %(default)s)"
    )
    local.add_argument(
        "--remote-drafts", type=count_or_none, default=16, metavar="N",
        help="client drafts that a step checks, for all clients together (default: %(default)s)",
    )  # fmt: skip
    batches = parser.add_argument_group("models of embeddings and scores on this machine")
    batches.add_argument(
        "--batch-delay-ms", type=milliseconds, default=0.0, metavar="MS",
        help="how long a text waits for others to share its batch (default: until the device is free)",
    )  # fmt: skip
    batches.add_argument(
        "--batch-sizes", type=counts, default=(), metavar="N,N",
        help="begin a batch without delay once so many texts wait",
    )  # fmt: skip
    batches.add_argument("--batch-texts", type=count, metavar="N", help="the most texts in a batch (default: 64)")
    batches.add_argument("--batch-tokens", type=count, metavar="N", help="the most tokens in a batch (default: 4096)")
    others = parser.add_argument_group("models that other programs run")
    others.add_argument(
        "--executor",
        choices=("local", "vllm", "upstream"),
        default="local",
        help="the program that runs the models (default: this process)",
    )
    others.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="URL",
        help="an OpenAI-compatible server; repeat the option for replicas",
    )
    others.add_argument(
        "--dialect",
        default="openai",
        help="parameters that the upstream accepts beside OpenAI's: openai (none), vllm, nearfar",
    )
    others.add_argument(
        "--upstream-api-key-env", metavar="NAME", help="the environment variable that holds the upstream's API key"
    )
    others.add_argument(
        "--tensor-parallel-size", type=count, default=1, metavar="N", help="vllm: GPUs that share each layer"
    )
    others.add_argument(
        "--pipeline-parallel-size",
        type=count,
        default=1,
        metavar="N",
        help="vllm: groups of GPUs that share the layers",
    )
    others.add_argument(
        "--nodes",
        type=count,
        default=1,
        metavar="N",
        help="vllm: machines that share the model, with this one; the others run 'nearfar node'",
    )
    others.add_argument(
        "--node-address",
        type=node_address,
        metavar="HOST[:PORT]",
        help=f"vllm: this machine's address for the other nodes (port: {NODE_PORT}); the key is in NEARFAR_NODE_KEY",
    )
    others.add_argument(
        "--master-port", type=count, default=29501, metavar="PORT", help="vllm: its own port for the other nodes"
    )
    others.add_argument(
        "--vllm-arguments",
        default="",
        metavar="TEXT",
        help="further arguments of vllm serve, as one string: '--max-model-len 8192'",
    )


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the options that `api_config` reads."""
    access = parser.add_argument_group("access")
    access.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="TOML file with the API keys (also: the variable NEARFAR_API_KEYS, name=key)",
    )
    access.add_argument(
        "--cors-origin",
        type=origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of pages that may send requests, such as https://example.org",
    )
    access.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that requests may use for this server",
    )
    access.add_argument(
        "--lenient",
        action="store_true",
        help="ignore unknown keys of requests and list them in X-Nearfar-Ignored (default: an error)",
    )
    access.add_argument(
        "--trusted-proxy", type=network, action="append", default=[], metavar="ADDRESS",
        help="a proxy, or a network such as 10.0.0.0/8, whose X-Forwarded-For is trusted; may be given several times",
    )  # fmt: skip
    access.add_argument(
        "--client-share", type=share, default=0.5, metavar="SHARE",
        help="the largest share of requests, answers, connections and request memory for one client (a key or, "
        "without keys, an "
        "address); 1 reserves nothing for others (default: %(default)s)",
    )  # fmt: skip
    access.add_argument(
        "--max-connections",
        type=count,
        default=4096,
        metavar="N",
        help="connections open at once; idle ones are closed to make room (default: %(default)s)",
    )
    access.add_argument(
        "--body-memory",
        type=size_bytes,
        default=256 << 20,
        metavar="SIZE",
        help="memory for the bodies of all running requests (default: 256MiB)",
    )
    access.add_argument(
        "--drain-seconds", type=seconds, default=30.0, metavar="S",
        help="time for requests to finish after SIGTERM or SIGHUP (default: %(default)s)",
    )  # fmt: skip
    access.add_argument(
        "--hang-seconds", type=seconds, default=HANG_SECONDS, metavar="S",
        help="an engine, front end or vLLM that does not respond for this time is started again (default: %(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> None:
    """Raises ToolError if the server's libraries are missing, and RequestError for invalid options."""
    require_libraries("serve")
    from ..api.app import create_app
    from ..api.log import configure_logs
    from ..api.model_changes import ModelChanges
    from ..api.server import bind, run_server
    from ..api.traces import open_traces
    from ..executors.devices import default_target, models_memory_bytes
    from ..executors.local_opener import LocalOpener
    from ..executors.registry import Registry
    from ..pipelines.opener import PipelineOpener
    from .announcement import Announcement
    from .served_models import load_requests, make_opener

    if options.threads is not None:
        # Runners on the CPU read this variable, including runners of models that are loaded later.
        os.environ["NEARFAR_THREADS"] = str(options.threads)
    if options.front_ends > 1:
        require_front_ends(options.executor)
        if options.grpc_port is not None:
            raise RequestError("--grpc-port: gRPC is served by one process; leave --front-ends at 1")
        if options.pipeline:
            raise RequestError("--pipeline: pipelines are served by one process; leave --front-ends at 1")
    announcement = Announcement()
    inner = make_opener(options, os.environ, announcement.progress)
    config = api_config(options, os.environ)
    traces = open_traces(os.environ)
    requests = load_requests(options, os.environ)
    # Bind before any slow work.
    several = options.front_ends > 1
    listeners = [bind(options.host, options.port, shared=several)]
    address = listeners[0].getsockname()
    listeners += [bind(options.host, address[1], shared=True) for _ in range(options.front_ends - 1)]
    opener = PipelineOpener(inner)
    registry = Registry(opener, options.memory or models_memory_bytes(options.target or default_target()))
    opener.models = registry
    configure_logs(sys.stderr)

    grpc_server: GrpcServer | None = None

    async def close_grpc() -> None:
        if grpc_server is not None:
            await grpc_server.close()

    async def started(models: Models) -> None:
        if grpc_server is not None:
            await grpc_server.start()
        try:
            with announcement.loading():
                for request in requests:
                    await ModelChanges(models).load(request)
                if isinstance(inner, LocalOpener):
                    inner.require_ignored_keys()
        except Unavailable:
            if registry.closed:
                # The server was stopped while a model loaded, which is not an error.
                return
            raise
        announcement.serving(
            registry,
            address,
            keyed=bool(config.keys.keys),
            grpc_port=None if grpc_server is None else grpc_server.port,
        )

    if several:
        from ..front_ends.front_ends import run_front_ends

        run_front_ends(registry, config, listeners, started)
    else:
        app = create_app(registry, config, traces, on_close=close_grpc)
        if options.grpc_port is not None:
            grpc_server = open_grpc(app, options)
        run_server(app, listeners[0], lambda: started(registry))


def open_grpc(app: FastAPI, options: argparse.Namespace) -> GrpcServer:
    """The gRPC server of the app. Raises ToolError if its library is missing."""
    from ..kserve.grpc_server import GrpcServer, require_grpc

    require_grpc()
    host = f"[{options.host}]" if ":" in options.host else options.host
    return GrpcServer(app.state.service, f"{host}:{options.grpc_port}")


def require_front_ends(executor: str) -> None:
    """Raises RequestError if there cannot be several front ends."""
    if executor != "local":
        raise RequestError(
            f"--front-ends is for models on this machine; with --executor {executor} start several servers instead"
        )
    if not hasattr(socket, "SO_REUSEPORT") or os.name != "posix":
        raise RequestError("--front-ends: this system cannot divide connections among processes; leave it at 1")


def require_libraries(command: str) -> None:
    """Raises ToolError."""
    try:
        import fastapi  # noqa: F401
        import httpx  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ToolError(f"nearfar {command} needs {error.name}: pip install 'nearfar[serve]'") from error


def api_config(options: argparse.Namespace, environment: Mapping[str, str]) -> ApiConfig:
    """The server's configuration. A server without keys that only this machine can reach accepts only this machine's
    host names: otherwise a web page could reach it through a host name of its own that resolves here.
    """
    from ..api.config import ApiConfig
    from ..api.keys import read_keys

    keys = read_keys(options.api_keys, environment)
    hosts = tuple(options.allowed_host)
    if not keys.keys and options.host in LOOPBACK:
        hosts = (*LOOPBACK, *hosts)
    return ApiConfig(
        keys=keys,
        allowed_hosts=hosts,
        cors_origins=tuple(options.cors_origin),
        max_connections=options.max_connections,
        body_memory_bytes=options.body_memory,
        client_share=options.client_share,
        trusted_proxies=tuple(options.trusted_proxy),
        lenient=options.lenient,
        drain_seconds=options.drain_seconds,
        hang_seconds=options.hang_seconds,
    )
