"""An engine in a separate process, with the methods of `TokenEngine`. If the process crashes or its device fails, its
answers fail, and it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..engine.config import EngineConfig
from ..engine.token_engine import TokenEngine
from ..log_event import log_event
from ..option_types import HANG_SECONDS
from ..processes.child import Child
from ..processes.frames import ask
from ..processes.supervisor import Restarts, supervise
from .engine_client import EngineClient
from .messages import Close, EngineRecipe, Listen, Open

MAIN = "from nearfar.server_fallback.engine_process.process import main; main()"
# A crashed process is started again after this time, and after twice the time if it crashes again. After this many
# crashes with less than STEADY_SECONDS of work between them, it is given up.
FIRST_RESTART_SECONDS, MAX_CRASHES, STEADY_SECONDS = 0.5, 5, 60.0
# The time that a process may take to end after its last answer.
EXIT_SECONDS = 15.0
# The time in which a process ends whose connection has ended.
ENDED_SECONDS = 0.5


class RemoteEngine(EngineClient):
    def __init__(self, recipe: EngineRecipe, hang_seconds: float = HANG_SECONDS) -> None:
        super().__init__()
        self._recipe, self._hang_seconds = recipe, hang_seconds
        self._child = Child(MAIN, self._receive, self._lost)
        # The private folder with the socket for other servers.
        self._folder: Path | None = None
        self._adapters: dict[str, Mapping[str, FloatArray]] = {}

    @staticmethod
    async def open(recipe: EngineRecipe, hang_seconds: float = HANG_SECONDS) -> RemoteEngine:
        """Start the process, and wait until its engine is open. It is started again if it crashes, or is silent for
        ``hang_seconds``. Raises the errors of the recipe, and DeviceError if the process ends.
        """
        engine = RemoteEngine(recipe, hang_seconds)
        try:
            await engine._start()
        except BaseException:
            await engine.close()
            raise
        restarts = Restarts(FIRST_RESTART_SECONDS, most=MAX_CRASHES, steady_seconds=STEADY_SECONDS)
        engine._supervision = asyncio.ensure_future(supervise(engine, restarts))
        return engine

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def share(self) -> str:
        """Let other servers of this user attach, at the returned path of a Unix socket."""
        if self._folder is None:
            # Only this user may enter the folder.
            self._folder = Path(tempfile.mkdtemp(prefix="nearfar-"))
            await self._listen()
        return self._socket_path

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None:
        """See `TokenEngine.load_adapter`."""
        await self._ask(ask(TokenEngine.load_adapter, name, states))
        self._adapters[name] = states

    async def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        await self._ask(ask(TokenEngine.unload_adapter, name))
        self._adapters.pop(name, None)

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        """See `TokenEngine.close`."""
        if not self._closing:
            self._begin_close(reason)
            self._send(Close(drain_seconds, reason))
        if self._child.pid is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds + EXIT_SECONDS):
                    await self._child.ended()
            await self._child.end(ENDED_SECONDS)
        await asyncio.to_thread(self._masks.close)
        # Both refer to this engine, which would be kept with its model until the garbage collector runs.
        self._child.release()
        self._supervision = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- the process ---

    async def ended(self) -> str:
        await self._child.ended()
        return "the process of the engine has ended"

    async def failed(self, reason: str, failures: int, wait_seconds: float | None) -> None:  # noqa: ARG002
        status = await self._child.end(ENDED_SECONDS)
        self._log("engine_ended", status=status)
        if wait_seconds is None:
            self._log("engine_given_up", failures=failures)
            self._refusal = Unavailable(
                f"the process of the engine has failed {failures} times and is not started again; its last status was "
                f"{status}"
            )

    @property
    def _socket_path(self) -> str:
        assert self._folder is not None
        return str(self._folder / "engine")

    async def _start(self) -> None:
        connection = await self._child.start()
        await self._open(connection, Open(self._recipe, EngineConfig().max_mask_wait_seconds, self._hang_seconds))
        for name, states in self._adapters.items():
            await self._call(ask(TokenEngine.load_adapter, name, states))
        if self._folder is not None:
            await self._listen()

    async def _listen(self) -> None:
        # The socket of a process that has crashed.
        Path(self._socket_path).unlink(missing_ok=True)
        await self._call(Listen(self._socket_path))

    def _on_hang(self) -> None:
        """End the process, after which it is started again."""
        self._fault = f"did not respond for {self._hang_seconds:g} s"
        self._log("engine_hung", seconds=self._hang_seconds)
        self._child.kill()

    def _log(self, event: str, **fields: object) -> None:
        log_event(event, logging.ERROR, model=self._recipe.name, engine=self.pid, **fields)
