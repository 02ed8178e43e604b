"""An encoder of a gateway: a model of this machine, which is opened once for all pairs of sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nearfar.compiler.runtime.errors import Unavailable

from ...executors.encoder_executor import EncoderExecutor
from ...executors.executor import Executor, Opener


class LocalEncoder:
    """``model`` in any form that ``opener`` accepts. `open` loads it at its first call; `close` closes it.

    ``check`` raises RequestError for a model that does not fit.
    """

    def __init__(self, opener: Opener, model: str, check: Callable[[Executor], EncoderExecutor]) -> None:
        self._opener, self._model, self._check = opener, model, check
        self._opening = asyncio.Lock()
        self._executor: EncoderExecutor | None = None
        self._closed = False

    async def open(self) -> EncoderExecutor:
        """Raises what ``check`` raises, and the errors of opening the model."""
        async with self._opening:
            if self._executor is None:
                executor = await (await self._opener.prepare(self._model, None)).open()
                try:
                    if self._closed:
                        raise Unavailable("the server is shutting down; use another server")
                    self._executor = self._check(executor)
                finally:
                    if self._executor is None:
                        await executor.close()
        return self._executor

    async def close(self) -> None:
        self._closed = True
        if self._executor is not None:
            await self._executor.close()
