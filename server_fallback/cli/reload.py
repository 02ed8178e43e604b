"""Reload: SIGHUP reads the configuration of a server again, which goes on serving. A configuration that is wrong, or
that a running server cannot take, changes nothing, and the log says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from typing import Any

from nearfar.compiler.options import changed
from nearfar.compiler.runtime.errors import NearfarError, RequestError

from ..api.config import ApiConfig
from ..api.server import Server
from ..api.tls import certificate_digest
from ..executors.registry import Registry, default_name
from ..log_event import log_event
from ..schema.models import LoadRequest
from .options import Listening

# Gives the running server a configuration. Raises RequestError, and then changes nothing.
Configure = Callable[[ApiConfig], Awaitable[None]]


class Reload:
    """``options`` are those of the command, ``config`` what `config_of` makes of them. ``models`` is None for a server
    whose models are fixed. ``fixed`` are keys of options that this server cannot change, beside those that none can.
    """

    def __init__(
        self,
        options: Listening,
        config: ApiConfig,
        config_of: Callable[[Any], ApiConfig],
        models: ServedModels | None = None,
        fixed: Sequence[str] = (),
    ) -> None:
        self._options, self._config, self._config_of = options, config, config_of
        self._models, self._fixed = models, fixed
        self._certificate = certificate_digest(config)
        self._turn = asyncio.Lock()
        # Set once everything is loaded with which the server was started.
        self.has_begun = asyncio.Event()

    @staticmethod
    def has_files(options: Listening) -> bool:
        """Whether there is anything to read again."""
        files = (options.config, options.api_keys, options.access.tls_cert)
        return any(file is not None for file in files)

    async def __call__(self, configure: Configure) -> None:
        """Signals that come meanwhile are handled one after the other."""
        await self.has_begun.wait()
        async with self._turn:
            try:
                differs = await self._apply(configure)
            except NearfarError as error:
                log_event("reload_refused", logging.ERROR, error=error.code, message=error.message)
            except Exception as error:
                # Who sent the signal waits for a line. The error's own text may quote a key.
                log_event("reload_refused", logging.ERROR, error="internal_error", message=type(error).__name__)
                raise
            else:
                log_event("reloaded", changed=differs)

    async def of_server(self, server: Server) -> None:
        """Of a server without front ends."""

        async def configure(config: ApiConfig) -> None:
            server.configure(config)

        await self(configure)

    async def _apply(self, configure: Configure) -> list[str]:
        before = self._options
        options = before if before.config is None else await asyncio.to_thread(before.config.again)
        with nullcontext() if options.config is None else options.config.naming_keys():
            return await self._apply_options(before, options, configure)

    async def _apply_options(self, before: Listening, options: Listening, configure: Configure) -> list[str]:
        config = await asyncio.to_thread(self._config_of, options)
        differ = changed(before, options)
        fixed = [option.key for option in differ if not option.flag.reloads or option.key in self._fixed]
        if (config.tls_cert is None) != (self._config.tls_cert is None):
            fixed.append("tls_cert")
        if fixed:
            raise RequestError(f"{', '.join(fixed)}: cannot change while the server runs; restart it to change this")
        names = [option.key for option in differ if option.key not in ("keys", "api_keys")]
        if config.keys != self._config.keys:
            names.append("keys")
        certificate = await asyncio.to_thread(certificate_digest, config)
        if certificate != self._certificate:
            names.append("certificate")
        # What can fail comes first: models that do not load, and then files of certificates.
        async with AsyncExitStack() as undo:
            swap = None if self._models is None else await self._models.opened(options, undo)
            await configure(config)
            try:
                if swap is not None:
                    await swap()
            except NearfarError:
                await configure(self._config)
                raise
            undo.pop_all()
        self._options, self._config, self._certificate = options, config, certificate
        return names


class ServedModels:
    """The models of the configuration. Those that an admin has loaded are not among them. ``requests_of`` returns those
    of options.
    """

    def __init__(
        self, registry: Registry, requests: Sequence[LoadRequest], requests_of: Callable[[Any], Sequence[LoadRequest]]
    ) -> None:
        self._registry, self._requests_of = registry, requests_of
        self._requests = named(requests)

    async def opened(self, options: Listening, undo: AsyncExitStack) -> Callable[[], Awaitable[None]] | None:
        """Open the models that are new; the result puts them in place. None if nothing changes. ``undo`` closes them.
        Raises the errors of `Registry.load`.
        """
        registry, before = self._registry, self._requests
        after = named(await asyncio.to_thread(self._requests_of, options))
        if after == before:
            return None
        opened = []
        for name, request in after.items():
            if name not in before or before[name].model != request.model:
                entry = await registry.open_apart(request)
                undo.push_async_callback(registry.close_apart, entry)
                opened.append(entry)
        loaded = {entry.name for entry in registry.entries()} | {entry.name for entry in opened}
        aliases = {
            name: request.aliases
            for name, request in after.items()
            if name in loaded and (name not in before or before[name] != request)
        }
        return partial(self._swap, opened, [name for name in before if name not in after], aliases, after)

    async def _swap(self, opened: Any, gone: Any, aliases: Any, after: dict[str, LoadRequest]) -> None:
        await self._registry.swap(opened, gone, aliases)
        self._requests = after


def named(requests: Sequence[LoadRequest]) -> dict[str, LoadRequest]:
    return {request.name or default_name(request.model): request for request in requests}
