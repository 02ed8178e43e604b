"""ApiConfig: the limits and the access rules of the HTTP server. Sizes in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..engine_process.heartbeat import HANG_SECONDS
from ..schema.common import MAX_CHOICES, MAX_STOPS
from .keys import Keys


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """If ``keys`` has no key, the API is open to everyone who reaches it; then bind the server to this machine.

    ``allowed_hosts`` are the names that the Host header may have; an empty list allows any. A server without keys
    should list its own names: otherwise a web page could reach it through a host name of its own that resolves to this
    machine. ``cors_origins`` are the origins of the pages that may call, such as ``https://example.org``, or ``*``.
    ``request_timeout_seconds`` is the longest time for a request; the header X-Request-Timeout-Ms can shorten it.
    ``body_timeout_seconds`` is the time for a body to arrive, ``write_timeout_seconds`` how long a client may read
    nothing, ``header_timeout_seconds`` how long a connection may be silent before and between requests, and
    ``draft_timeout_seconds`` the time for a client that drafts tokens to send its next drafts. ``lenient`` ignores
    unknown keys of a request, which are otherwise an error, and lists them in a header of the answer. ``max_choices``
    bounds n times the number of prompts, ``max_inputs`` the texts of one embedding request. ``max_body_bytes`` is for
    one body, ``body_memory_bytes`` for the bodies of all running requests. One client gets at most ``client_share``
    (above 0, at most 1) of the requests at once, the body memory, the connections, and the answers that a model can run
    and queue. A client is a key or, without keys, an address; connections count by address. ``trusted_proxies`` are the
    addresses or networks whose X-Forwarded-For is believed. A front end or an engine that is silent for
    ``hang_seconds`` is started again.
    """

    keys: Keys = field(default_factory=Keys)
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    lenient: bool = False
    max_body_bytes: int = 4 << 20
    max_choices: int = MAX_CHOICES
    max_stops: int = MAX_STOPS
    max_inputs: int = 2048
    max_concurrent_requests: int = 1024
    max_connections: int = 4096
    body_memory_bytes: int = 256 << 20
    client_share: float = 0.5
    trusted_proxies: tuple[str, ...] = ()
    request_timeout_seconds: float = 600.0
    body_timeout_seconds: float = 30.0
    write_timeout_seconds: float = 60.0
    header_timeout_seconds: float = 75.0
    draft_timeout_seconds: float = 30.0
    drain_seconds: float = 30.0
    hang_seconds: float = HANG_SECONDS
