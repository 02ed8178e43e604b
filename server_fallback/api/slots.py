"""/slots, as in llama.cpp's server: list the slots of a model; save, restore and erase one."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import HasSlots
from ..executors.slots import Slots
from ..schema.common import ErrorResponse
from ..schema.slots import (
    RestoreTimings,
    SaveTimings,
    SlotErased,
    SlotReply,
    SlotRequest,
    SlotRestored,
    SlotSaved,
)
from .document import in_json
from .errors import ApiError
from .exchange import exchange_of
from .only_model import only_model
from .route import EVERYWHERE, WITH_BODY, Responses, StoreRoute, keyed_router
from .service import Service

ACTIONS = ("save", "restore", "erase")
NO_SLOTS: Responses = {501: {**in_json(ErrorResponse), "description": "The server was started without slots."}}


def slots_router(service: Service) -> APIRouter:
    router = keyed_router()

    @router.get("/slots", responses=EVERYWHERE | NO_SLOTS | {400: WITH_BODY[400], 404: WITH_BODY[404]})
    async def slots(request: Request, model: str | None = None, fail_on_no_slot: bool = False) -> list[SlotReply]:
        """The slots of the only model, or of ``model`` (extension)."""
        executor, found = await _slots_of(service, request, model)
        if fail_on_no_slot and all(slot.running for slot in found):
            raise ApiError(503, "no slot is idle; try again later", "no_slot_available", kind="unavailable_error")
        return [
            SlotReply(id=slot.number, n_ctx=executor.context, is_processing=slot.running > 0, n_tokens=len(slot.keys))
            for slot in found
        ]

    return router


def slot_files_router(service: Service) -> APIRouter:
    """What reads and writes files: for admins, and for programs on this machine if the server has no keys."""
    router = keyed_router(StoreRoute)

    @router.post("/slots/{id_slot}", responses=WITH_BODY | NO_SLOTS)
    async def slot(
        id_slot: int,
        body: SlotRequest,
        request: Request,
        action: Annotated[str, Query(json_schema_extra={"enum": [*ACTIONS]})],
        model: str | None = None,
    ) -> SlotSaved | SlotRestored | SlotErased:
        """Save what the prefix cache has of a slot's tokens to a file, restore it, or forget the tokens. ``model``
        (extension) is in the query, as that of GET /slots, or in the body.
        """
        if action not in ACTIONS:
            raise RequestError(f"action is {action[:40]!r}; it must be one of {', '.join(ACTIONS)}", param="action")
        if model is not None and body.model not in (None, model):
            raise RequestError(f"model is {model[:40]!r} in the address and another one in the body", param="model")
        executor, found = await _slots_of(service, request, model or body.model)
        if action == "erase":
            return SlotErased(id_slot=id_slot, n_erased=found.erase(id_slot))
        if body.filename is None:
            raise RequestError(f"filename is missing; name a file to {action}", param="filename")
        began = time.monotonic()
        if action == "save":
            moved = await found.save(id_slot, body.filename)
            return SlotSaved(
                id_slot=id_slot,
                filename=body.filename,
                n_saved=moved.tokens,
                n_written=moved.size_bytes,
                timings=SaveTimings(save_ms=_ms_since(began)),
            )
        moved = await found.restore(id_slot, body.filename, executor.adapter)
        return SlotRestored(
            id_slot=id_slot,
            filename=body.filename,
            n_restored=moved.tokens,
            n_read=moved.size_bytes,
            timings=RestoreTimings(restore_ms=_ms_since(began)),
        )

    return router


async def _slots_of(service: Service, request: Request, model: str | None) -> tuple[HasSlots, Slots]:
    """Raises ApiError for a server without slots, and UnknownModel."""
    executor = await service.executor(model or await only_model(service), exchange_of(request))
    found = executor.slots if isinstance(executor, HasSlots) else None
    if found is None:
        raise ApiError(
            501,
            "this server does not support slots; start it with --slot-save-path FOLDER, for a model of our own engine",
            "slots_not_supported",
            kind="not_supported_error",
        )
    assert isinstance(executor, HasSlots)
    return executor, found


def _ms_since(began: float) -> float:
    return round(1000 * (time.monotonic() - began), 3)
