"""An engine in a separate process, with the methods of `TokenEngine`. If the process crashes or its device fails, its
answers fail, and it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.errors import NearfarError, Unavailable

from ..engine.config import EngineConfig
from ..log_event import log_event
from ..option_types import HANG_SECONDS
from ..processes.connection import end, start
from .engine_client import EngineClient, engine_closed, process_failed, process_restarts
from .messages import Close, EngineRecipe, Listen, LoadAdapter, Open, UnloadAdapter

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
        self._hung = False
        self._process: subprocess.Popen[bytes] | None = None
        # The private folder with the socket for other servers.
        self._folder: Path | None = None
        self._adapters: dict[str, Mapping[str, FloatArray]] = {}
        self._ended = asyncio.Event()
        self._closing = False
        self._restarting: asyncio.Task[None] | None = None
        self._crashes, self._opened_at = 0, 0.0

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
        return engine

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def share(self) -> str:
        """Let other servers of this user attach, at the returned path of a Unix socket."""
        if self._folder is None:
            # Only this user may enter the folder.
            self._folder = Path(tempfile.mkdtemp(prefix="nearfar-"))
            await self._listen()
        return self._socket_path

    async def load_adapter(self, name: str, states: Mapping[str, FloatArray]) -> None:
        """See `TokenEngine.load_adapter`."""
        self._require_open()
        await self._call(lambda call: LoadAdapter(call, name, states))
        self._adapters[name] = states

    async def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self._require_open()
        await self._call(lambda call: UnloadAdapter(call, name))
        self._adapters.pop(name, None)

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None:
        """See `TokenEngine.close`."""
        if not self._closing:
            self._closing = True
            self._refusal = reason or Unavailable("this model is being unloaded; try again later")
            if self._restarting is not None:
                self._restarting.cancel()
            self._send(Close(drain_seconds, reason))
        process = self._process
        if process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_seconds + EXIT_SECONDS):
                    await self._ended.wait()
            await asyncio.to_thread(end, process, ENDED_SECONDS)
        await asyncio.to_thread(self._masks.close)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- the process ---

    @property
    def _socket_path(self) -> str:
        assert self._folder is not None
        return str(self._folder / "engine")

    async def _start(self) -> None:
        self._ended.clear()
        self._process = await start(MAIN, self._connect())
        await self._open(Open(self._recipe, EngineConfig().max_mask_wait_seconds, self._hang_seconds))
        self._opened_at = time.monotonic()
        for name, states in self._adapters.items():
            await self._call(lambda call, name=name, states=states: LoadAdapter(call, name, states))  # type: ignore[misc]
        if self._folder is not None:
            await self._listen()

    async def _listen(self) -> None:
        # The socket of a process that has crashed.
        Path(self._socket_path).unlink(missing_ok=True)
        await self._call(lambda call: Listen(call, self._socket_path))

    def _on_hang(self) -> None:
        """End the process, after which it is started again. This ends a stopped process too."""
        assert self._process is not None
        self._hung = True
        self._log("engine_hung", seconds=self._hang_seconds)
        self._process.kill()

    def _on_end(self) -> NearfarError:
        """The process has ended: as requested, by a crash, or because it hung."""
        self._ended.set()
        failure: NearfarError = engine_closed()
        if not self._closing:
            what = f"did not respond for {self._hang_seconds:g} s" if self._hung else "failed"
            failure, self._refusal = process_failed(what), process_restarts()
        self._hung = False
        self._fail_all(failure)
        if not self._closing and self._opened is not None and self._restarting is None:
            self._restarting = asyncio.ensure_future(self._restart())
        return failure

    def _log(self, event: str, **fields: object) -> None:
        log_event(event, logging.ERROR, model=self._recipe.name, engine=self.pid, **fields)

    async def _restart(self) -> None:
        """Start the process again until that succeeds or is given up."""
        if time.monotonic() - self._opened_at > STEADY_SECONDS:
            self._crashes = 0
        while True:
            assert self._process is not None
            status = await asyncio.to_thread(end, self._process, ENDED_SECONDS)
            self._crashes += 1
            self._log("engine_ended", status=status)
            if self._crashes > MAX_CRASHES:
                self._log("engine_given_up", failures=self._crashes)
                self._refusal = Unavailable(
                    f"the process of the engine has failed {self._crashes} times and is not started again; its last "
                    f"status was {status}"
                )
                return
            await asyncio.sleep(FIRST_RESTART_SECONDS * 2 ** (self._crashes - 1))
            try:
                await self._start()
            except NearfarError:
                continue
            self._refusal = self._restarting = None
            self._restarts += 1
            return
