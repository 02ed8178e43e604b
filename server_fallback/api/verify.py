"""/v1/nearfar/verify: receive a client's drafts over a WebSocket, and return the tokens that the model accepts. See
`schema/verify.py`.
"""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from ..engine.verification import Verification
from ..executors.executor import Call, Verifies
from ..schema.verify import PROTOCOL, VERSION, VerifyAccepted, VerifyDraft, VerifyOpen, VerifyOpened
from .drain import ClientGone
from .errors import ApiError, is_panic
from .json_body import printable
from .service import Service
from .socket import Socket


def verify_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/nearfar/verify")
    async def verify(websocket: WebSocket) -> None:
        socket = Socket(websocket, service)
        try:
            await socket.accept(PROTOCOL)
            await socket.admit()
            opened = await socket.next(VerifyOpen, service.config.body_timeout_seconds, hold=True)
            executor, stream = await begin(service, opened, socket)
            try:
                await socket.send(VerifyOpened(context=executor.context, max_drafts=executor.max_drafts))
                await check_rounds(service, stream, socket)
            finally:
                service.metrics.count(opened.model, len(opened.prompt), stream.answered, socket.exchange)
                service.metrics.success.labels(opened.model, stream.finish_reason or "abort").inc()
            await socket.end()
        except ClientGone:
            return
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            await socket.fail(error)

    return router


async def begin(service: Service, opened: VerifyOpen, socket: Socket) -> tuple[Verifies, Verification]:
    """Raises ApiError for another protocol version or a model that does not check drafts, and the errors of
    `Verifies.verification`.
    """
    exchange = socket.exchange
    exchange.log["model"] = printable(opened.model)
    if opened.version != VERSION:
        message = (
            f"this server supports version {VERSION} of these messages, the client uses {opened.version}; "
            "update the older one"
        )
        raise ApiError(400, message, "verify_version", "version")
    executor = await service.executor(opened.model, exchange)
    if not isinstance(executor, Verifies) or executor.max_drafts == 0:
        raise ApiError(
            400,
            "this model does not check drafts on this server; request the complete answer instead",
            "verify_unavailable",
            "model",
        )
    call = Call(
        exchange.request_id, exchange.priority(opened.priority), exchange.deadline, exchange.passed_on, exchange.client
    )
    verification = executor.verification(opened, call)
    room = executor.context - len(opened.prompt)
    most = room if opened.max_tokens is None else min(room, opened.max_tokens)
    await exchange.reserve(len(opened.prompt) + most)
    return executor, verification


async def check_rounds(service: Service, stream: Verification, socket: Socket) -> None:
    while stream.finish_reason is None:
        draft = await socket.next(VerifyDraft, service.config.draft_timeout_seconds)
        socket.require_no_drain()
        given = await socket.while_connected(stream.check(draft.tokens))
        await socket.send(
            VerifyAccepted(tokens=given.token_ids, finish_reason=given.finish_reason, cached_tokens=given.cached_tokens)
        )
