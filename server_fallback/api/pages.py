"""/v1/nearfar/pages: compute the beginning of a prompt for a decode worker, and send its pages. See
`schema/pages.py`.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..executors.executor import Call, SendsPages
from ..schema.frame import frame
from ..schema.pages import PAGES_ROUTE, ErrorFrame, PagesRequest
from .byte_stream import ByteStream, Parts
from .errors import ApiError
from .exchange import exchange_of
from .json_body import printable
from .route import WITH_BODY, Responses, keyed_router
from .service import Service

CONTENT_TYPE = "application/vnd.nearfar.pages"
PAGES: Responses = {200: {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}}


def pages_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.post(PAGES_ROUTE, responses={**WITH_BODY, **PAGES}, response_class=Response)
    async def pages(body: PagesRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        executor = await service.executor(body.model, exchange)
        if not isinstance(executor, SendsPages):
            raise ApiError(400, "this model has no pages that another server can use", "prefill_unavailable", "model")
        priority = exchange.priority(body.priority)
        call = Call(exchange.request_id, priority, exchange.deadline, exchange.passed_on, exchange.client)
        parts = executor.pages(body, call)
        await exchange.reserve(body.end - body.start)
        service.metrics.count(body.model, body.end - body.start, 0, exchange)
        exchange.log["prefilled"] = [body.start, body.end]

        async def begin() -> Parts:
            return Parts(parts, CONTENT_TYPE)

        return ByteStream(begin, exchange, service.drain, error_frame)

    return router


def error_frame(error: ApiError) -> bytes:
    return frame(ErrorFrame(error=error.body().error).model_dump(mode="json"))
