"""ApiConfig: the limits and the access rules of the HTTP server. Sizes in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from nearfar.compiler.options import Count, File, Flag, Name, SizeBytes, at_least, options, size_bytes

from ..option_types import HANG_SECONDS, Network, Origin, Seconds, Share
from ..schema.limits import MAX_CHOICES, MAX_STOPS
from .keys import Keys

# A server that runs takes another value (`reload.py`).
RELOADS = Flag(reloads=True)


@options
class ApiConfig:
    """If ``keys`` has no key, the API is open to everyone who reaches it; then bind the server to this machine. A
    client is a key or, without keys, an address; connections count by address.

    ``allowed_hosts`` are the names that the Host header may have; an empty list allows any. A server without keys
    should list its own names: otherwise a web page could reach it through a host name of its own that resolves to this
    machine. ``request_timeout_seconds`` is the longest time for a request; the header X-Request-Timeout-Ms can shorten
    it. ``body_timeout_seconds`` is the time for a body to arrive, ``write_timeout_seconds`` how long a client may read
    nothing, ``header_timeout_seconds`` how long a connection may be silent before and between requests, and
    ``draft_timeout_seconds`` the time for a client that drafts tokens to send its next drafts. ``max_choices`` bounds n
    times the number of prompts, and ``max_inputs`` the texts of one embedding request. ``is_local``: only this machine
    reaches the server, so that without keys its programs may change the store. ``transcriber`` names the model
    that writes down the recordings of chats; ``near_transcriber`` the one that does so for the near side of a gateway.
    """

    keys: Keys = field(default_factory=Keys)
    cors_origins: Annotated[tuple[Origin, ...], Flag(("--cors-origin",))] = ()
    """origin of pages that may send requests, such as https://example.org; may be repeated"""
    allowed_hosts: Annotated[tuple[Name, ...], Flag(("--allowed-host",), reloads=True)] = ()
    """host name that requests may use for this server; may be repeated"""
    lenient: Annotated[bool, RELOADS] = False
    """ignore unknown keys of requests and list them in X-Nearfar-Ignored (default: an error)"""
    trusted_proxies: Annotated[tuple[Network, ...], Flag(("--trusted-proxy",))] = ()
    """a proxy, or a network such as 10.0.0.0/8, whose X-Forwarded-For is trusted; may be given several times"""
    client_share: Annotated[Share, RELOADS] = 0.5
    """the largest share of requests, answers, connections and request memory for one client (a key or, without keys, an
    address); 1 reserves nothing for others"""
    max_connections: Annotated[Count, RELOADS] = 4096
    """connections open at once; idle ones are closed to make room"""
    body_memory_bytes: Annotated[SizeBytes, Flag(("--body-memory",), reloads=True)] = 256 << 20
    """memory for the bodies of all running requests (default: 256MiB)"""
    response_memory_bytes: Annotated[
        int, Flag(("--response-memory",), metavar="SIZE", parse=size_bytes, check=at_least(0))
    ] = 64 << 20
    """memory for stored responses of /v1/responses; 0 stores none (default: 64MiB)"""
    max_body_bytes: Annotated[SizeBytes, Flag(("--max-body",), reloads=True)] = 4 << 20
    """the largest body of a request, with its images (default: 4MiB)"""
    max_audio_bytes: Annotated[SizeBytes, Flag(("--max-audio",), reloads=True)] = 25 << 20
    """the largest form with a file of sound (default: 25MiB)"""
    drain_seconds: Annotated[Seconds, RELOADS] = 30.0
    """time for requests to finish after SIGTERM or SIGHUP"""
    keep_seconds: Annotated[Seconds, RELOADS] = 300.0
    """how long a stream with an Idempotency-Key goes on, and is kept, after its last reader has left"""
    hang_seconds: Seconds = HANG_SECONDS
    """an engine, front end or vLLM that does not respond for this time is started again"""
    speaker: Annotated[str | None, Flag(metavar="espeak|URL")] = None
    """what answers /v1/audio/speech: espeak (pip install 'nearfar[espeak]'), or a server with OpenAI's API"""
    speaker_api_key_env: Annotated[str | None, Flag(metavar="NAME")] = None
    """the environment variable that holds the API key of the speaker's server"""
    tls_cert: Annotated[File | None, RELOADS] = None
    """serve HTTPS (and gRPC) with this certificate and its chain, in PEM; SIGHUP reads it again"""
    tls_key: Annotated[File | None, RELOADS] = None
    """the private key of the certificate, in PEM, not encrypted (default: in the file of --tls-cert)"""
    tls_ca: File | None = None
    """a PEM file of authorities that sign the certificates of the servers to which this one connects: --upstream,
    --prefill-from, --far, --speaker (default: the usual authorities, which are accepted in any case)"""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], RELOADS] = "info"
    """the least important lines of the log"""
    access_log: Annotated[bool, RELOADS] = True
    """write no line for each request"""
    is_local: bool = False
    transcriber: str | None = None
    near_transcriber: str | None = None
    max_choices: int = MAX_CHOICES
    max_stops: int = MAX_STOPS
    max_inputs: int = 2048
    max_concurrent_requests: int = 1024
    request_timeout_seconds: float = 600.0
    body_timeout_seconds: float = 30.0
    write_timeout_seconds: float = 60.0
    header_timeout_seconds: float = 75.0
    draft_timeout_seconds: float = 30.0
