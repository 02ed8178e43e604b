"""nearfar serve: answer requests of OpenAI's and Ollama's APIs for given models, or for those of the store."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace

from fastapi import FastAPI

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.compiler.store.store import Store

from ..api.app import create_app
from ..api.config import ApiConfig
from ..api.keys import read_keys
from ..api.log import configure_logs, errors_in_log, set_level
from ..api.model_changes import ModelChanges
from ..api.server import bind, bind_unix, run_server
from ..api.tls import tls_context
from ..api.traces import open_traces
from ..executors.devices import default_target, models_memory_bytes
from ..executors.executor import Models
from ..executors.http_transport import trusting
from ..executors.local_opener import LocalOpener
from ..executors.registry import Registry, default_name
from ..executors.stored_models import StoredModels
from ..executors.transcriber import TranscriberByName
from ..front_ends.front_ends import run_front_ends
from ..kserve.grpc_server import GrpcServer, require_grpc
from ..pipelines.opener import PipelineOpener
from ..schema.models import LoadRequest
from ..speech.speaker import open_speaker
from .announcement import Announcement
from .options import Listening, Serve
from .reload import Reload, ServedModels
from .served_models import load_requests, make_opener, serves_store

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(options: Serve) -> None:
    """Raises RequestError for invalid options."""
    if options.threads is not None:
        # Runners on the CPU read this variable, including runners of models that are loaded later.
        os.environ["NEARFAR_THREADS"] = str(options.threads)
    if options.front_ends > 1:
        require_front_ends(options.executor)
        if options.socket is not None:
            raise RequestError("--socket: one process listens at it; leave --front-ends at 1")
        if options.grpc_port is not None:
            raise RequestError("--grpc-port: gRPC is served by one process; leave --front-ends at 1")
        if options.pipeline:
            raise RequestError("--pipeline: pipelines are served by one process; leave --front-ends at 1")
        if serves_store(options):
            raise RequestError("--front-ends: the store is served by one process; name the models, or leave it at 1")
    if options.socket is not None and options.access.tls_cert is not None:
        raise RequestError("--socket: a Unix socket has no TLS; leave --tls-cert out, or start another server for it")
    announcement = Announcement(sys.stderr)
    inner = make_opener(options, os.environ, announcement.progress)
    config = serve_config(options)
    if config.speaker is not None and options.front_ends > 1:
        # Each front end opens its own.
        open_speaker(config.speaker, config.speaker_api_key_env, os.environ, config.tls_ca)
    traces = open_traces(os.environ)
    requests = load_requests(options, os.environ)
    # Bind before any slow work.
    several = options.front_ends > 1
    listeners = [bind(options.host, options.port, shared=several)]
    address = listeners[0].getsockname()
    listeners += [bind(options.host, address[1], shared=True) for _ in range(options.front_ends - 1)]
    also = [] if options.socket is None else [bind_unix(options.socket)]
    opener = PipelineOpener(inner)
    registry = Registry(opener, options.memory or models_memory_bytes(options.local.target or default_target()))
    opener.models = registry
    served: Registry | StoredModels = registry
    if serves_store(options):
        served = StoredModels(registry, Store.of_user(), options.keep_alive)
    configure_logs(sys.stderr)
    set_level(config.log_level)
    reload: Reload | None = None
    if Reload.has_files(options):
        models = ServedModels(registry, requests, lambda changed: requests_again(options, changed))
        # gRPC has the limit with which it was started.
        fixed = ("max_body",) if options.grpc_port is not None else ()
        reload = Reload(options, config, serve_config, models, fixed)
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
                if config.transcriber is not None:
                    await TranscriberByName(config.transcriber, models).check()
                if isinstance(inner, LocalOpener):
                    inner.require_ignored_keys()
        except Unavailable:
            if registry.closed:
                # The server was stopped while a model loaded, which is not an error.
                return
            raise
        announcement.serving(
            served,
            address,
            keyed=bool(config.keys.keys),
            secure=config.tls_cert is not None,
            grpc_port=None if grpc_server is None else grpc_server.port,
            computes_prompts=options.local.prefill.role == "prefill",
        )
        if reload is not None:
            reload.has_begun.set()

    with errors_in_log(sys.stderr):
        if several:
            run_front_ends(registry, config, listeners, started, reload)
            return
        app = create_app(served, config, traces, on_close=close_grpc)
        if options.grpc_port is not None:
            grpc_server = open_grpc(app, options)
        try:
            run_server(app, listeners[0], lambda: started(served), None if reload is None else reload.of_server, also)
        finally:
            if options.socket is not None:
                options.socket.unlink(missing_ok=True)


def requests_again(options: Serve, changed: Serve) -> list[LoadRequest]:
    """The models of changed options. Raises RequestError, also if the server would begin or end to serve the store."""
    if serves_store(changed) != serves_store(options):
        raise RequestError("models: a server has the models that are named, or those of the store; restart it for that")
    return load_requests(changed, os.environ)


def open_grpc(app: FastAPI, options: Serve) -> GrpcServer:
    """The gRPC server of the app. Raises ToolError if its library is missing."""
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


def serve_config(options: Serve) -> ApiConfig:
    """Raises RequestError."""
    config = api_config(options, os.environ)
    if options.transcriber is not None:
        config = replace(config, transcriber=default_name(options.transcriber))
    return config


def api_config(options: Listening, environment: Mapping[str, str]) -> ApiConfig:
    """The server's configuration. A server without keys that only this machine can reach accepts only this machine's
    host names: otherwise a web page could reach it through a host name of its own that resolves here. Raises
    RequestError for wrong keys and certificates.
    """
    keys, hosts = read_keys(options.api_keys, environment, options.keys), options.access.allowed_hosts
    tls_context(options.access)
    if options.access.tls_ca is not None:
        trusting(options.access.tls_ca)
    if not keys.keys and options.host in LOOPBACK:
        hosts = (*LOOPBACK, *hosts)
    return replace(options.access, keys=keys, allowed_hosts=hosts, is_local=options.host in LOOPBACK)
