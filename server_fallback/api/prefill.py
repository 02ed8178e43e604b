"""/v1/nearfar/prefill: compute the start of a prompt for a client that has the same model. See `schema/prefill.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..executors.executor import Call, Prefills
from ..far_prefill.blocks import Counts
from ..far_prefill.layout import unavailable
from ..schema.prefill import BLOCKS, PrefillRequest
from .byte_stream import ByteStream, Parts
from .exchange import Exchange, exchange_of
from .json_body import printable
from .route import WITH_BODY, keyed_router
from .service import Service


def prefill_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post("/v1/nearfar/prefill", responses=WITH_BODY | BLOCKS, response_class=Response)
    async def prefill(body: PrefillRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.executor(body.model, exchange)
        if not isinstance(executor, Prefills):
            raise unavailable("it is not computed by this server's own engine")
        assert exchange.admission is not None
        capacity = service.models.answers_at_once(body.model) or service.config.max_concurrent_requests
        await exchange.admission.answers(1, capacity, "prompt")
        await exchange.reserve(len(body.prompt))
        service.report_queue({body.model: executor.state()}, exchange)

        async def begin() -> Parts:
            return Parts(counted(service, executor, body, exchange), "application/octet-stream")

        return ByteStream(begin, exchange, service.drain)

    return router


async def counted(
    service: Service, executor: Prefills, body: PrefillRequest, exchange: Exchange
) -> AsyncGenerator[bytes, None]:
    """The blocks, which are counted as a prompt without an answer, however they end."""
    call = Call(
        exchange.request_id, exchange.priority(body.priority), exchange.deadline, exchange.passed_on, exchange.client
    )
    counts, is_whole = Counts(), False
    try:
        async with aclosing(executor.prefill(body, call, counts)) as blocks:
            async for block in blocks:
                yield block
        is_whole = True
    finally:
        if counts.queue_seconds is not None:
            service.metrics.count(body.model, len(body.prompt), 0, exchange)
            service.metrics.success.labels(body.model, "stop" if is_whole else "abort").inc()
            exchange.log["computed_tokens"] = counts.computed_tokens
