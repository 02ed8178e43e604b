"""The model of a request that names none: forms of servers with one model have no name for it."""

from __future__ import annotations

from ..executors.executor import TellsAbilities
from .errors import ApiError
from .service import Service


async def only_model(service: Service) -> str:
    """The only model that writes text. Raises ApiError if there are several, or none."""
    names = []
    for card in service.models.cards():
        if card.parent is not None or card.root not in (None, card.id):
            continue
        executor = await service.answering(card.id)
        told = executor.abilities() if isinstance(executor, TellsAbilities) else None
        if told is None or not (told.embeds or told.sound):
            names.append(card.id)
    if len(names) == 1:
        return names[0]
    message = (
        f"this server has several models; name one as 'model': {', '.join(names)}"
        if names
        else "this server has no model that writes text"
    )
    raise ApiError(400, message, "missing_required_parameter", "model")
