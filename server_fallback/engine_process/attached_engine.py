"""An engine that another server's process has started, with the methods of `TokenEngine`. If it crashes, its answers
here fail, and this server attaches again as soon as it is back.
"""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from .engine_client import EngineClient, engine_closed, process_failed, process_restarts
from .messages import Attach

RETRY_SECONDS = 0.1


class AttachedEngine(EngineClient):
    """``path`` is that of `RemoteEngine.share`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._closing = False
        self._again: asyncio.Task[None] | None = None

    @staticmethod
    async def open(path: str) -> AttachedEngine:
        """Raises DeviceError or Unavailable if the engine does not run."""
        engine = AttachedEngine(path)
        try:
            await engine._attach()
        except OSError as error:
            await engine.close()
            raise Unavailable(f"the process of the engine cannot be reached ({error}); try again later") from error
        except BaseException:
            await engine.close()
            raise
        return engine

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:  # noqa: ARG002
        """Fail this server's answers. The engine continues for other servers."""
        self._closing = True
        self._refusal = reason or Unavailable("this model is being unloaded; try again later")
        if self._again is not None:
            self._again.cancel()
        if self._connection is not None:
            await self._connection.close()
        await asyncio.to_thread(self._masks.close)

    async def _attach(self) -> None:
        """Raises OSError if nothing listens, and DeviceError if the connection ends early."""
        connection = self._connect()
        await self._loop.create_unix_connection(lambda: connection, self._path)
        await self._open(Attach())

    def _on_end(self) -> NearfarError:
        failure: NearfarError = engine_closed()
        if not self._closing:
            failure, self._refusal = process_failed(), process_restarts()
        self._fail_all(failure)
        if not self._closing and self._opened is not None and self._again is None:
            self._again = asyncio.ensure_future(self._attach_again())
        return failure

    async def _attach_again(self) -> None:
        """The server that started the engine restarts it, or gives up and unloads the model."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._attach()
            except (OSError, NearfarError):
                continue
            self._refusal = self._again = None
            self._restarts += 1
            return
