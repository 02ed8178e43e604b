"""/v1/responses: answers as lists of items, which the server stores, so that a client continues one by its id, and
reads one later that the server computes in the background.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from ..schema.common import ErrorResponse
from ..schema.responses import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    InputTokensRequest,
    ResponseObject,
    ResponseRequest,
    RoutedResponseRequest,
)
from ..text.output import Output
from ..text.translated_chat import tokenize_request
from .document import in_json
from .errors import ApiError
from .exchange import Exchange, exchange_of
from .generation import JSON, answered, open_answer
from .json_body import printable
from .kept_answers import Name
from .response_turn import PATH, Turn, items_of_stored, open_turn, read_prompt, response_json
from .route import EVERYWHERE, WITH_BODY, Responses, keyed_router, post, with_events
from .service import Service
from .stored_responses import StoredResponse, not_stored

ONE = f"{PATH}/{{response_id}}"
FOUND: Responses = {
    **EVERYWHERE,
    400: {**in_json(ErrorResponse), "description": "A parameter is invalid; param names it."},
    404: {**in_json(ErrorResponse), "description": "No such response of this client is stored."},
}
STREAMED = with_events("As JSON: OpenAI's typed events, the last of which has the whole response")
FOLLOWED: Responses = {
    **FOUND,
    **STREAMED,
    409: {**in_json(ErrorResponse), "description": "The events of the response are not kept any more."},
}
CANCELLED: dict[str, Any] = {"status": "cancelled", "output": []}


def responses_router(service: Service, *, routed: bool = False) -> APIRouter:
    """``routed``: a model is a pair of sides, and requests may restrict which side answers."""
    router = keyed_router()

    @post(router, PATH, RoutedResponseRequest if routed else ResponseRequest, ResponseObject, WITH_BODY | STREAMED)
    async def responses(body: ResponseRequest, request: Request) -> Response:
        turn = await open_turn(service, body, exchange_of(request))
        return await (_in_background if body.background else _answered)(turn, service, request)

    @post(router, f"{PATH}/input_tokens", InputTokensRequest, InputTokens)
    async def input_tokens(body: InputTokensRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        exchange.log["model"] = printable(body.model)
        chat, _ = await read_prompt(service, body, exchange)
        executor = await service.executor(body.model, exchange)
        work = executor.tokenize(tokenize_request(chat.chat))
        counted = await service.drain.run(work, request.receive, exchange.deadline)
        return Response(InputTokens(input_tokens=counted.count).model_dump_json(), media_type=JSON)

    @router.get(ONE, response_model=ResponseObject, responses=FOLLOWED)
    async def response(
        response_id: str,
        request: Request,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        exchange = exchange_of(request)
        stored = await _found(service, exchange, response_id)
        if stream:
            return await _followed(service, exchange, stored, starting_after)
        if starting_after is not None:
            raise ApiError(400, "starting_after needs stream=true", "invalid_value", "starting_after")
        return Response(stored.response, media_type=JSON)

    @router.delete(ONE, response_model=DeletedResponse, responses=FOUND)
    async def delete(response_id: str, request: Request) -> Response:
        """A response that is running ends."""
        exchange = exchange_of(request)
        stored = await _found(service, exchange, response_id)
        await service.responses.drop(exchange.client, response_id)
        if stored.running:
            await service.kept.end_anywhere(Name(exchange.client, response_id))
        return Response(DeletedResponse(id=response_id).model_dump_json(), media_type=JSON)

    @router.post(f"{ONE}/cancel", response_model=ResponseObject, responses=FOUND)
    async def cancel(response_id: str, request: Request) -> Response:
        """End a response in the background. One that has ended is returned as it is."""
        exchange = exchange_of(request)
        stored = await _found(service, exchange, response_id)
        if not json.loads(stored.response)["background"]:
            message = "only a response with background=true can be cancelled; close the connection to end another one"
            raise ApiError(400, message, "invalid_value", "response_id")
        cancelled = stored.changed(**CANCELLED)
        if stored.running and await service.responses.settle(cancelled):
            await service.kept.end_anywhere(Name(exchange.client, response_id))
            return Response(cancelled.response, media_type=JSON)
        # It may have ended meanwhile.
        return Response((await _found(service, exchange, response_id)).response, media_type=JSON)

    @router.get(f"{ONE}/input_items", response_model=InputItemList, responses=FOUND)
    async def input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """All items of the prompt, with those of the responses that this one continues."""
        stored = await _found(service, exchange_of(request), response_id)
        return Response((await _listed(service, stored, limit, order, after)).model_dump_json(), media_type=JSON)

    return router


async def _answered(turn: Turn, service: Service, request: Request) -> Response:
    return await answered(turn.kind(), service, turn.body, request)


async def _in_background(turn: Turn, service: Service, request: Request) -> Response:
    exchange, kind = exchange_of(request), turn.kind()
    opened = await open_answer(kind, service, turn.body, turn.chat.chat, request)
    assert turn.stored is not None

    async def answering(output: Output[Any]) -> None:
        output.block(turn.writer.begin(), ())
        try:
            await output.room()
            await opened.answering(output)
        except BaseException as error:
            await turn.fail(error)
            raise

    await service.responses.put(turn.stored)
    stream = opened.stream(answering, at_once=True)
    name = Name(exchange.client, turn.stored.id)
    following = await service.kept.begin(name, exchange, stream, kind.events, request.scope)
    return following if turn.body.stream else Response(response_json(turn.writer.begun), media_type=JSON)


async def _found(service: Service, exchange: Exchange, response_id: str) -> StoredResponse:
    stored = await service.responses.find(exchange.client, response_id)
    if stored is None:
        raise not_stored(response_id)
    return stored


async def _followed(service: Service, exchange: Exchange, stored: StoredResponse, after: int | None) -> Response:
    """The events of a response in the background after number ``after``, which begin with 0; None for all."""
    if not json.loads(stored.response)["background"]:
        message = "only the events of a response with background=true can be read again; leave out stream"
        raise ApiError(400, message, "invalid_value", "stream")
    # Kept events are numbered from 1.
    last = 0 if after is None else after + 1
    try:
        rest = await service.kept.reader(Name(exchange.client, stored.id), last, exchange.held)
    except ApiError as error:
        if error.code != "invalid_header":
            raise
        message = f"starting_after is {after}, and this response does not have so many events so far"
        raise ApiError(400, message, "invalid_value", "starting_after") from error
    if rest is None:
        message = "the events of this response are not kept any more; read it without stream"
        raise ApiError(409, message, "answer_not_kept", "stream")
    return rest


async def _listed(
    service: Service, stored: StoredResponse, limit: int, order: Literal["asc", "desc"], after: str | None
) -> InputItemList:
    earlier = [] if stored.previous is None else await service.responses.chain(stored.client, stored.previous)

    def read() -> list[Any]:
        own: list[Any] = json.loads(stored.items)
        return [item for each in earlier for item in items_of_stored(each)] + own

    items = await service.read(read, sum(each.size for each in (*earlier, stored)), stored.client)
    items = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise ApiError(400, f"no item of this response has the id {after[:64]!r}", "invalid_value", "after")
        items = items[place + 1 :]
    page = items[:limit]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(items) > limit,
    )
