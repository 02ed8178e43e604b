"""The protocol over gRPC: the methods of `inference.proto`, with the keys, limits, log and metrics of the server."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nearfar.compiler.runtime.errors import RequestError, ToolError, Unavailable

from ..api.addresses import Addresses
from ..api.drain import SHUTTING_DOWN, ClientGone
from ..api.errors import api_error
from ..api.exchange import Exchange
from ..api.log import log_failure
from ..api.route import authorize
from ..api.service import Service
from ..api.tls import read_pem
from ..api.traces import context_headers
from ..log_event import log_event
from ..text.json_structure import MAX_VALUES
from . import repository
from .grpc_messages import SERVICE, as_message, message, parse_message
from .http_routes import (
    EXTENSIONS,
    begin_inference,
    check_outputs,
    check_version,
    data_type,
    inference_call,
    server_is_ready,
)
from .model_tensors import PLATFORM, VERSION, TensorForm, encoder_of, form_of, infer
from .statistics import statistics
from .tensors import MAX_DIMS, Tensor, from_bytes, from_values

if TYPE_CHECKING:
    import grpc

# The status of gRPC for each of HTTP; all others are INTERNAL.
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
CONTENTS = {
    "BYTES": "bytes_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
}
# Answers a request of its kind of message.
Method = Callable[[Any, Exchange], Awaitable[Any]]
# Methods that need no key, as in HTTP.
OPEN = ("ServerLive", "ServerReady")
# Methods that need an admin's key.
ADMIN = ("RepositoryModelLoad", "RepositoryModelUnload")


def require_grpc() -> None:
    """Raises ToolError if the library is missing."""
    # Engines are started by a fork that is followed by another program, for which gRPC prepares nothing.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        import grpc  # noqa: F401
    except ImportError as error:
        raise ToolError("--grpc-port needs grpcio: pip install 'nearfar[grpc]'") from error


class GrpcServer:
    """Serves on ``address``, "host:port"; port 0 selects a free one. ``service`` is that of the HTTP server."""

    def __init__(self, service: Service, address: str) -> None:
        self._service, self._address = service, address
        self._addresses = Addresses(())
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Raises RequestError if the port is in use."""
        import grpc

        methods: dict[str, Method] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._handler(name, method),
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, method in methods.items()
        }
        config = self._service.config
        server = self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=config.max_concurrent_requests,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if config.tls_cert is None:
                self.port = server.add_insecure_port(self._address)
            else:
                self.port = server.add_secure_port(self._address, self._credentials())
        except RuntimeError as error:
            raise RequestError(f"--grpc-port: {self._address} cannot be used; choose another port") from error
        await server.start()

    def _credentials(self) -> grpc.ServerCredentials:
        """The certificate of the service's configuration, read again when that has changed."""
        import grpc

        used = self._service.config

        def certificate() -> grpc.ServerCertificateConfiguration:
            assert used.tls_cert is not None
            pair = read_pem(used.tls_key or used.tls_cert), read_pem(used.tls_cert)
            return grpc.ssl_server_certificate_configuration([pair])

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """Called by gRPC for each connection. The one before stays if the files are gone since the reload."""
            nonlocal used
            if self._service.config is used:
                return None
            used = self._service.config
            with suppress(RequestError):
                return certificate()
            return None

        return grpc.dynamic_ssl_server_credentials(certificate(), newer)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def _handler(
        self, name: str, method: Method
    ) -> Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]:
        """A method with the checks, the log line and the errors that all methods share."""

        async def answer(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            import grpc

            metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
            exchange = Exchange(
                str(uuid4()),
                context_headers(metadata),
                self._addresses.sender(_host(context.peer()), ()),
                deadline=time.monotonic() + self._service.config.request_timeout_seconds,
            )
            started, status, failure = time.monotonic(), 200, None
            span, traces = None, self._service.traces
            if traces is not None:
                span, exchange.passed_on = traces.begin("GRPC", metadata)
            try:
                async with exchange.held:
                    if name not in OPEN:
                        await self._admit(name, len(data), exchange, metadata, context.time_remaining())
                    parse = partial(parse_message, f"{name}Request")
                    return await method(await self._service.parsed(parse, data, exchange.client), exchange)
            except (asyncio.CancelledError, ClientGone):
                status = 499
                raise
            except Exception as error:
                failure = api_error(error)
                status = failure.status
                log_failure(exchange, error, failure)
            finally:
                route = f"/{SERVICE}/{name}"
                self._service.metrics.http.labels(route, "GRPC", str(status)).inc()
                seconds = time.monotonic() - started
                self._service.ended(exchange, status, seconds)
                if self._service.config.access_log:
                    log_event(
                        "request",
                        logging.DEBUG if name in OPEN else logging.INFO,
                        request_id=exchange.request_id,
                        method="GRPC",
                        route=route,
                        status=status,
                        seconds=round(seconds, 4),
                        key=exchange.key.name if exchange.key is not None else None,
                        address=exchange.address,
                        **exchange.log,
                    )
                if traces is not None and span is not None:
                    traces.end(span, "GRPC", route, status, {"request_id": exchange.request_id, **exchange.log})
            code = getattr(grpc.StatusCode, CODES.get(failure.status, "INTERNAL"))
            if failure.kind == "timeout_error":
                code = grpc.StatusCode.DEADLINE_EXCEEDED
            await context.abort(code, failure.body().error.message)
            raise AssertionError("abort raises")

        return answer

    async def _admit(
        self, name: str, size: int, exchange: Exchange, metadata: dict[str, str], remaining: float | None
    ) -> None:
        service = self._service
        if service.drain.started:
            raise Unavailable(SHUTTING_DOWN)
        if remaining is not None:
            exchange.deadline = min(exchange.deadline, time.monotonic() + remaining)
        admin = name in ADMIN
        exchange.key = authorize(service.config.keys, metadata.get("authorization", ""), admin=admin)
        exchange.admission = await exchange.held.enter_async_context(
            service.limits.admit(exchange.client, exchange.key)
        )
        await exchange.admission.body(size)

    # --- the methods ---

    async def _live(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        return message("ServerReadyResponse")(ready=server_is_ready(self._service))

    async def _model_ready(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        check_version(request.name, request.version)
        return message("ModelReadyResponse")(ready=self._service.is_ready(request.name))

    async def _metadata(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        return message("ServerMetadataResponse")(name="nearfar", version=version("nearfar"), extensions=EXTENSIONS)

    async def _model_metadata(self, request: Any, exchange: Exchange) -> Any:
        check_version(request.name, request.version)
        form = form_of(await self._service.executor(request.name, exchange))
        answer = message("ModelMetadataResponse")(name=request.name, versions=[VERSION], platform=PLATFORM)
        for each in () if form is None else form.inputs:
            answer.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        if form is not None:
            output = form.output
            answer.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        return answer

    async def _config(self, request: Any, exchange: Exchange) -> Any:
        check_version(request.name, request.version)
        form = form_of(await self._service.executor(request.name, exchange))
        config = message("ModelConfig")(name=request.name, platform=PLATFORM, backend=PLATFORM)

        def add(entries: Any, forms: Sequence[TensorForm]) -> None:
            for each in forms:
                entries.add(name=each.name, data_type=data_type(each.datatype), dims=each.shape)

        if form is not None:
            add(config.input, form.inputs)
            add(config.output, (form.output,))
        return message("ModelConfigResponse")(config=config)

    async def _statistics(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        check_version(request.name, request.version)
        found = statistics(self._service, request.name or None)
        return as_message("ModelStatisticsResponse", {"model_stats": found})

    async def _index(self, request: Any, exchange: Exchange) -> Any:  # noqa: ARG002
        found = repository.index(self._service, only_ready=request.ready)
        return as_message("RepositoryIndexResponse", {"models": found})

    async def _load(self, request: Any, exchange: Exchange) -> Any:
        await repository.load(self._service, exchange, request.model_name, request.parameters.keys())
        return message("RepositoryModelLoadResponse")()

    async def _unload(self, request: Any, exchange: Exchange) -> Any:
        await repository.unload(self._service, exchange, request.model_name, request.parameters.keys())
        return message("RepositoryModelUnloadResponse")()

    async def _infer(self, request: Any, exchange: Exchange) -> Any:
        service = self._service
        check_version(request.model_name, request.model_version)
        executor = encoder_of(await service.executor(request.model_name, exchange), request.model_name)
        form = form_of(executor)
        assert form is not None
        await begin_inference(service, exchange, request.model_name)
        call, truncate = inference_call(service, exchange, request.model_name, _parameters(request.parameters))
        check_outputs([each.name for each in request.outputs], form)
        inputs = _inputs(request)
        exchange.log["texts"] = inputs[0].shape[0]

        work = infer(executor, inputs, call, truncate=truncate, max_texts=service.config.max_inputs)
        output = await service.drain.run(work, exchange.receive, exchange.deadline)
        answer = message("ModelInferResponse")(
            model_name=request.model_name,
            model_version=VERSION,
            id=request.id,
            raw_output_contents=[output.to_bytes()],
        )
        answer.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        return answer


def _inputs(request: Any) -> list[Tensor]:
    """Raises RequestError."""
    raw = list(request.raw_input_contents)
    if not request.inputs:
        raise RequestError("inputs must have at least one tensor", param="inputs")
    if raw and len(raw) != len(request.inputs):
        raise RequestError(f"{len(request.inputs)} inputs, but {len(raw)} raw_input_contents", param="inputs")
    found = []
    for index, each in enumerate(request.inputs):
        # A wrong shape may be long.
        shape = list(each.shape[: MAX_DIMS + 1])
        if raw:
            found.append(from_bytes(each.name, each.datatype, shape, raw[index]))
        else:
            values = getattr(each.contents, CONTENTS.get(each.datatype, "bytes_contents"))
            if len(values) > MAX_VALUES:
                raise RequestError(
                    f"input {each.name!r}: more than {MAX_VALUES:,} values; send them in raw_input_contents",
                    param=each.name,
                )
            found.append(from_values(each.name, each.datatype, shape, list(values)))
    return found


def _parameters(parameters: Any) -> dict[str, Any]:
    """A parameter without a value is false."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param") for name, value in parameters.items()
    }


def _host(peer: str) -> str:
    """The address in gRPC's form "ipv4:127.0.0.1:5000" or "ipv6:%5B::1%5D:5000"."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0]
    return host.removeprefix("%5B").removesuffix("%5D").strip("[]") if kind in ("ipv4", "ipv6") else ""
