"""The bytes of an image or a video that a request names by its URL: in the URL itself (data:), or fetched from a host
that the operator allows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.data_url import (
    PICTURE,
    TYPES,
    article,
    is_data_url,
    read_data_url,
    shown,
    wrong_url,
)

from .options import ImageOptions
from .public_addresses import public_address

PORTS = {"http": 80, "https": 443}
MAX_REDIRECTS = 3
# An address of a host, which is public.
Resolve = Callable[[str, int], Awaitable[str]]


class ImageUrls:
    """Used from one event loop. ``resolve`` finds the address of a host."""

    def __init__(self, options: ImageOptions, resolve: Resolve = public_address) -> None:
        self._options, self._resolve = options, resolve

    async def read(self, url: str, what: str = PICTURE) -> bytes:
        """``what``: `PICTURE` or `VIDEO`. Raises RequestError."""
        if is_data_url(url):
            return read_data_url(url, what)
        kind = TYPES[what][0]
        try:
            async with asyncio.timeout(self._options.fetch_seconds):
                return await self._fetch(url, kind)
        except TimeoutError as error:
            raise wrong_url(
                f"{shown(url)} was not received within {self._options.fetch_seconds:g} s; send the {kind} as a data: "
                "URL",
                kind,
            ) from error

    async def _fetch(self, url: str, kind: str) -> bytes:
        """Follow redirects, each of which must lead to an allowed host, too."""
        for _ in range(MAX_REDIRECTS + 1):
            parts = self._allowed(url, kind)
            found = await self._get(url, parts, kind)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise wrong_url(f"{shown(url)} is redirected more than {MAX_REDIRECTS} times; name the {kind}'s own URL", kind)

    def _allowed(self, url: str, kind: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in PORTS or parts.username is not None or re.search(r"[\s\x00-\x1f]", url):
            raise wrong_url(f"{shown(url)} is not a data: URL, or one of {article(kind)} with http or https", kind)
        if not self._options.fetches:
            raise wrong_url(f"this server fetches no {kind}s; send the {kind} as a data: URL", kind)
        is_usual = port in (None, PORTS[parts.scheme])
        names = (host, f"{host}:{PORTS[parts.scheme]}") if is_usual else (f"{host}:{port}",)
        if not any(self._options.allows(name) for name in names):
            raise wrong_url(f"this server fetches no {kind}s from {names[0]}; send the {kind} as a data: URL", kind)
        return parts

    async def _get(self, url: str, parts: SplitResult, kind: str) -> bytes | str:
        """The file, or where it has moved."""
        assert parts.hostname is not None
        try:
            address = await self._resolve(parts.hostname, parts.port or PORTS[parts.scheme])
        except RequestError as error:
            raise wrong_url(error.message, kind) from error
        headers = {"Host": parts.netloc, "Accept": f"{kind}/*", "Accept-Encoding": "identity"}
        to = httpx.URL(url).copy_with(host=address, fragment=None)
        # Without the proxies and passwords of the environment. The certificate is that of the name.
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=None) as client,
                client.stream("GET", to, headers=headers, extensions={"sni_hostname": parts.hostname}) as answer,
            ):
                if answer.is_redirect:
                    return str(answer.headers["Location"])
                if answer.status_code != 200:
                    status = answer.status_code
                    raise wrong_url(f"{shown(url)} was answered with the status {status}; correct the URL", kind)
                return await self._body(answer, url, kind)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise wrong_url(
                f"{shown(url)} cannot be fetched ({type(error).__name__}); correct the URL", kind
            ) from error

    async def _body(self, answer: httpx.Response, url: str, kind: str) -> bytes:
        most, body = self._options.max_fetched_bytes, bytearray()
        async for part in answer.aiter_raw():
            body += part
            if len(body) > most:
                raise wrong_url(f"{shown(url)} has more than {most:,} bytes; send a smaller {kind}", kind)
        return bytes(body)
