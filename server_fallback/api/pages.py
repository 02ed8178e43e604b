"""/v1/nearfar/pages: compute the beginning of a prompt for a decode worker, and send its pages. See
`schema/pages.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..executors.executor import Call, SendsPages
from ..executors.page_transfer import frame
from ..schema.pages import PAGES_ROUTE, ErrorFrame, PagesRequest
from .drain import ClientGone, Drain
from .errors import ApiError, api_error, is_panic
from .exchange import Exchange, exchange_of
from .json_body import printable
from .log import log_failure
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
        service.metrics.count(body.model, body.end - body.start, 0, exchange)
        exchange.log["prefilled"] = [body.start, body.end]
        return PageStream(parts, exchange, service.drain)

    return router


class PageStream(Response):
    """The status is sent with the first frame, so that a failure before it is an ordinary error. A later one is a
    frame. Parts are created only as fast as the client reads them.
    """

    def __init__(self, parts: AsyncGenerator[bytes, None], exchange: Exchange, drain: Drain) -> None:
        super().__init__(media_type=CONTENT_TYPE)
        del self.headers["content-length"]
        self._parts, self._exchange, self._drain = parts, exchange, drain
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        last = b""
        try:
            await self._drain.run(self._send_parts(send), receive, self._exchange.deadline)
        except ClientGone:
            raise
        except BaseException as error:
            if not self._started or not (isinstance(error, Exception) or is_panic(error)):
                raise
            reported = api_error(error)
            log_failure(self._exchange, error, reported)
            last = frame(ErrorFrame(error=reported.body().error))
        await send({"type": "http.response.body", "body": last})

    async def _send_parts(self, send: Send) -> None:
        async with aclosing(self._parts) as parts:
            async for part in parts:
                if not self._started:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    self._started = True
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
