"""ApiConfig: what the HTTP side of the server allows. Sizes in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..schema.common import MAX_CHOICES, MAX_STOPS
from .keys import Keys


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """``keys`` without any key leave the API open to whoever reaches it; then bind it to this machine.

    ``allowed_hosts`` are the names that the Host header may have, none for any: a server without keys should list its own, or a page in a
    browser could reach it through a name of its own that points here. ``cors_origins`` are the pages that may call, such as
    ``https://example.org``, or ``*``.
    ``request_timeout_seconds`` is the longest that a request may take; the header X-Request-Timeout-Ms asks for less.
    ``body_timeout_seconds`` is how long a body may take to come, ``write_timeout_seconds`` how long a reader may take nothing, and
    ``header_timeout_seconds`` how long a connection may be silent before and between requests, and ``draft_timeout_seconds`` how long a
    client that guesses tokens may take for its next guesses.
    ``lenient`` ignores unknown keys of a request, which are an error otherwise, and names them in a header of the answer.
    ``max_choices`` bounds n times the number of prompts, ``max_inputs`` the texts of one embedding request.
    ``max_body_bytes`` is for one body, ``body_memory_bytes`` for the bodies of all running requests. One client gets at most
    ``client_share`` (above 0, at most 1) of the requests at once, the body memory, the connections, and the answers that a model can run
    and queue. A client is a key or, without keys, an address; connections count by address. ``trusted_proxies`` are the addresses or
    networks whose X-Forwarded-For is believed.
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
