"""Loading, unloading, sleep and awakening of models, and loading and unloading of adapters, each with a line in the
log: the name, the time it took, its memory, and who requested it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nearfar.compiler.runtime.errors import NearfarError

from ..executors.executor import Models, SleepRequest, WakeRequest
from ..log_event import log_event
from ..schema.models import LoadAdapterRequest, LoadRequest, ModelCard, UnloadAdapterRequest, UnloadRequest

COMMAND_LINE = "command line"


class ModelChanges:
    """``by`` identifies who changes the models, in the form of `Call.client`; ``address`` is the sender's IP address,
    None for the command line.
    """

    def __init__(self, models: Models, by: str = COMMAND_LINE, address: str | None = None) -> None:
        self._models, self._by, self._address = models, by, address

    async def load(self, request: LoadRequest) -> ModelCard:
        """This and the other methods raise the errors of `Models.change`."""
        with self._logged("model_loaded", request.name or request.model) as fields:
            card = await self._models.change(request)
            assert card is not None
            state = self._models.states().get(card.root or card.id)
            fields.update(
                name=card.id, model=request.model, memory_bytes=state.memory_bytes if state is not None else None
            )
        return card

    async def unload(self, name: str) -> None:
        state = self._models.states().get(name)
        with self._logged("model_unloaded", name) as fields:
            await self._models.change(UnloadRequest(model=name))
            fields.update(memory_bytes=state.memory_bytes if state is not None else None)

    async def load_adapter(self, request: LoadAdapterRequest) -> ModelCard:
        with self._logged("adapter_loaded", request.lora_name) as fields:
            card = await self._models.change(request)
            assert card is not None
            fields.update(path=request.lora_path, model=card.parent)
        return card

    async def unload_adapter(self, request: UnloadAdapterRequest) -> None:
        with self._logged("adapter_unloaded", request.lora_name):
            await self._models.change(request)

    async def sleep(self, name: str) -> None:
        with self._logged("model_asleep", name):
            await self._models.change(SleepRequest(name))

    async def wake(self, name: str) -> None:
        with self._logged("model_awake", name):
            await self._models.change(WakeRequest(name))

    @contextmanager
    def _logged(self, event: str, name: str) -> Iterator[dict[str, object]]:
        started = time.monotonic()
        fields: dict[str, object] = {"name": name}

        def log(event: str, level: int, **more: object) -> None:
            seconds = round(time.monotonic() - started, 4)
            log_event(event, level, **fields, seconds=seconds, by=self._by, address=self._address, **more)

        try:
            yield fields
        except NearfarError as error:
            log("model_change_failed", logging.WARNING, change=event, error=error.code, message=error.message)
            raise
        log(event, logging.INFO)
