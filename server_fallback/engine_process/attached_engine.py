"""An engine that another server's process has started, with the methods of `TokenEngine`. If it crashes, its answers
here fail, and this server attaches again as soon as it is back.
"""

from __future__ import annotations

import asyncio

from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..processes.connection import Connection
from ..processes.supervisor import Restarts, supervise
from .engine_client import EngineClient
from .messages import Attach

# The server that started the engine starts it again, or gives up and unloads the model.
RETRIES = Restarts(first_seconds=0.1, longest_seconds=0.1)


class AttachedEngine(EngineClient):
    """``path`` is that of `RemoteEngine.share`."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._ended = asyncio.Event()

    @staticmethod
    async def open(path: str) -> AttachedEngine:
        """Raises DeviceError or Unavailable if the engine does not run."""
        engine = AttachedEngine(path)
        try:
            await engine._start()
        except OSError as error:
            await engine.close()
            raise Unavailable(f"the process of the engine cannot be reached ({error}); try again later") from error
        except BaseException:
            await engine.close()
            raise
        engine._supervision = asyncio.ensure_future(supervise(engine, RETRIES))
        return engine

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:  # noqa: ARG002
        """Fail this server's answers. The engine continues for other servers."""
        self._begin_close(reason)
        if self._connection is not None:
            await self._connection.close()
        await asyncio.to_thread(self._masks.close)

    async def ended(self) -> str:
        await self._ended.wait()
        return "the connection to the engine has ended"

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:
        """The server that started the engine reports it."""

    async def _start(self) -> None:
        """Raises OSError if nothing listens, and DeviceError if the connection ends early."""
        connection = Connection(self._receive, self._lost)
        self._ended.clear()
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, self._path)
        await self._open(connection, Attach())

    def _lost(self) -> NearfarError:
        self._ended.set()
        return super()._lost()
