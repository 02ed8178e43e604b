"""The model repository of Triton's protocol: the models of this server, which load and sleep by their names.

A model that is unloaded over this protocol sleeps: it holds no memory, the index lists it as UNAVAILABLE, and a load
wakes it. A load of another name loads what `nearfar serve NAME` would.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from nearfar.compiler.runtime.errors import RequestError

from ..api.exchange import Exchange
from ..api.model_changes import ModelChanges
from ..api.model_routes import to_its_end
from ..api.service import Service
from ..executors.model_table import ASLEEP, LOADING, NOT_LOADED
from ..schema.models import LoadRequest
from .model_tensors import VERSION

# Of an unload: Triton's ensembles have dependents, and models here have none.
IGNORED = ("unload_dependents",)


def index(service: Service, *, only_ready: bool = False) -> list[dict[str, str]]:
    """The state of each model, also of those that the store has and that are not loaded, and the reason if it cannot
    answer.
    """
    found, states = [], service.models.states()
    # The card of an alias or an adapter names the loaded model that it belongs to.
    unloaded = {card.id: NOT_LOADED for card in service.models.cards() if card.root is None and card.id not in states}
    for name, state in {**states, **unloaded}.items():
        label = "READY" if state.ready else "LOADING" if state == LOADING else "UNAVAILABLE"
        if state.ready or not only_ready:
            reason = "" if state.ready else state.detail
            found.append({"name": name, "version": VERSION, "state": label, "reason": reason})
    return found


async def load(service: Service, exchange: Exchange, name: str, parameters: Collection[str]) -> None:
    """Raises RequestError for parameters, which would be another configuration of the model, and the errors of
    `Models.change`.
    """
    _refuse(parameters)
    changes, state = _changes(service, exchange), service.models.states().get(name)
    if state is None:
        await to_its_end(changes.load(_load_request(name)))
    elif state == ASLEEP:
        await to_its_end(changes.wake(name))


async def unload(service: Service, exchange: Exchange, name: str, parameters: Collection[str]) -> None:
    """Raises RequestError, and the errors of `Models.change`."""
    _refuse([parameter for parameter in parameters if parameter not in IGNORED])
    await to_its_end(_changes(service, exchange).sleep(name))


def _load_request(name: str) -> LoadRequest:
    """Raises RequestError for a text that cannot be a name. It comes from an address, which may have any characters."""
    try:
        return LoadRequest(model=name)
    except ValidationError as error:
        raise RequestError(f"{name[:100]!r} is not a model: {error.errors()[0]['msg']}", param="model") from error


def _changes(service: Service, exchange: Exchange) -> ModelChanges:
    return ModelChanges(service.models, exchange.client, exchange.address)


def _refuse(parameters: Collection[str]) -> None:
    for name in parameters:
        raise RequestError(
            f"the parameter {name[:100]!r} is not supported; a model is loaded as the server is configured", param=name
        )
