"""Opening models that other servers have."""

from __future__ import annotations

from dataclasses import replace

from .executor import Executor, Opening
from .upstream import make_upstream
from .upstream_executor import UpstreamOptions, discover, open_upstream


class UpstreamOpener:
    """Implements `Opener`. A model is called what its servers call it, unless it gets another name; ``options.name`` is not used."""

    def __init__(self, options: UpstreamOptions) -> None:
        self._options = options

    async def prepare(self, model: str, name: str | None) -> Opening:
        options = replace(self._options, model=model, name=name or model)

        async def open_it() -> Executor:
            return await open_upstream(options)

        return Opening(options.name, None, open_it)


async def only_model(options: UpstreamOptions) -> str:
    """The name of the one model that the servers have. Raises RequestError where there are several, Unavailable where none answers."""
    upstreams = [make_upstream(url, options.api_key, any_request_id=options.any_request_id) for url in options.urls]
    try:
        model, _ = await discover(upstreams, options)
    finally:
        for upstream in upstreams:
            await upstream.close()
    return model
