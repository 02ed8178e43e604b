"""The bytes of images by their URLs: data URLs, and hosts that the operator allows."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.data_url import PICTURE, VIDEO, read_data_url
from nearfar.server_fallback.images.image_urls import ImageUrls
from nearfar.server_fallback.images.options import ImageOptions, host_pattern

IMAGE = bytes(range(256)) * 4
HOST = "pictures.example"
Answer = Callable[[str, dict[str, str]], bytes]


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    if "Transfer-Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[dict[str, str]]]]:
    """A server of this machine: its port, and the headers of what it received, with the path."""
    received: list[dict[str, str]] = []
    connections: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = lines[0].split(" ")[1]
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        received.append({**headers, "path": path})
        writer.write(answer(path, headers))
        with suppress(OSError):
            await writer.drain()
            # Until the client has left.
            await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1], received
    finally:
        await asyncio.gather(*connections)


async def here(host: str, port: int) -> str:  # noqa: ARG001
    """Resolves every name to this machine, which `public_address` never does."""
    return "127.0.0.1"


def fetched(answer: Answer, path: str = "/cat.png", **options: object) -> tuple[bytes, list[dict[str, str]]]:
    async def work() -> tuple[bytes, list[dict[str, str]]]:
        async with serving(answer) as (port, received):
            allowed = ImageOptions(allow_image_urls=(f"{HOST}:{port}",), **options)  # type: ignore[arg-type]
            data = await ImageUrls(allowed, here).read(f"http://{HOST}:{port}{path}")
            return data, received

    return asyncio.run(work())


def refusal(url: str, *hosts: str) -> str:
    """The codes of an image and of a video are those of their kind."""
    found = []
    for what, kind in ((VIDEO, "video"), (PICTURE, "image")):

        async def work(what: str = what) -> None:
            await ImageUrls(ImageOptions(allow_image_urls=hosts)).read(url, what)

        with pytest.raises(RequestError) as refused:
            asyncio.run(work())
        assert refused.value.details["code"] == f"invalid_{kind}_url"
        found.append(refused.value.message)
    return found[-1]


@pytest.mark.parametrize(
    "head", ["data:image/png;base64,", "data:;base64,", "DATA:image/svg+xml;charset=utf-8;BASE64,"]
)
def test_a_data_url_has_the_bytes(head: str) -> None:
    assert read_data_url(head + base64.b64encode(IMAGE).decode()) == IMAGE


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png,abc", "is not a data: URL of an image"),
        ("data:text/html;base64,YQ==", "is not a data: URL of an image"),
        ("data:image/png;base64,YQ", "is not base64"),
        ("data:image/png;base64,Y Q==", "is not base64"),
        ("data:image/png;base64,ÿ", "is not base64"),
    ],
)
def test_other_data_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_data_url(url)


def test_without_an_allowed_host_nothing_is_fetched() -> None:
    assert refusal("https://example.org/cat.png") == "this server fetches no images; send the image as a data: URL"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/cat.png",
        "//example.org/cat.png",
        "/cat.png",
        "https://",
        "https://user:secret@example.org/cat.png",
        "https://user@example.org/cat.png",
        "https://example.org:port/cat.png",
        "https://example.org/a\nHost: b",
        "javascript:alert(1)",
        "https://[::1/cat.png",
    ],
)
def test_urls_that_are_not_plain_http_are_refused(url: str) -> None:
    assert "is not a data: URL, or one of an image with http or https" in refusal(url, "*", "example.org")


@pytest.mark.parametrize(
    ("host", "patterns", "is_allowed"),
    [
        ("example.org", ("example.org",), True),
        ("EXAMPLE.org.", ("example.org",), True),
        ("a.example.org", ("example.org",), False),
        ("a.example.org", ("*.example.org",), True),
        ("example.org", ("*.example.org",), False),
        ("evil-example.org", ("*.example.org",), False),
        ("example.org:8080", ("example.org",), False),
        ("example.org:8080", ("example.org:8080",), True),
        ("example.org", ("*",), True),
        ("example.org:8080", ("*",), False),
    ],
)
def test_hosts_are_allowed_by_name_and_port(host: str, patterns: tuple[str, ...], is_allowed: bool) -> None:
    assert ImageOptions(allow_image_urls=tuple(map(host_pattern, patterns))).allows(host) == is_allowed


@pytest.mark.parametrize("text", ["", "https://example.org", "a@b", "exa*mple.org", "**.org"])
def test_other_patterns_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        host_pattern(text)


@pytest.mark.parametrize(
    "name", ["https://localhost/cat.png", "http://127.0.0.1/", "http://[::ffff:7f00:1]/", "http://2130706433/"]
)
def test_an_allowed_host_inside_is_refused(name: str) -> None:
    message = refusal(name, "*", "localhost", "127.0.0.1")
    assert "is not on the public internet" in message or "fetches no images from" in message


def test_an_image_is_fetched_from_the_address_that_was_checked_under_the_hosts_name() -> None:
    data, [request] = fetched(lambda *_: response(IMAGE))
    assert data == IMAGE
    assert request["path"] == "/cat.png"
    assert request["host"].startswith(f"{HOST}:")
    assert request["accept-encoding"] == "identity"
    assert not {"cookie", "authorization"} & request.keys()


def test_each_name_is_resolved_once() -> None:
    """A second resolution could lead inside (DNS rebinding)."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> str:
        asked.append(f"{host}:{port}")
        return "127.0.0.1"

    async def work() -> None:
        async with serving(lambda *_: response(IMAGE)) as (port, _):
            options = ImageOptions(allow_image_urls=(f"{HOST}:{port}",))
            await ImageUrls(options, resolve).read(f"http://{HOST}:{port}/")
            assert asked == [f"{HOST}:{port}"]

    asyncio.run(work())


def test_redirects_are_followed_to_allowed_hosts_only() -> None:
    def answer(path: str, headers: dict[str, str]) -> bytes:  # noqa: ARG001
        return response(b"", "302 Found", Location="/dog.png") if path == "/cat.png" else response(IMAGE)

    data, requests = fetched(answer)
    assert (data, [each["path"] for each in requests]) == (IMAGE, ["/cat.png", "/dog.png"])
    for place in ("http://169.254.169.254/latest/meta-data", "http://localhost/", "file:///etc/passwd"):
        with pytest.raises(RequestError, match=r"fetches no images from|is not a data: URL, or one"):
            fetched(lambda *_, place=place: response(b"", "302 Found", Location=place))


def test_redirects_end() -> None:
    with pytest.raises(RequestError, match="is redirected more than 3 times"):
        fetched(lambda *_: response(b"", "301 Moved Permanently", Location="/cat.png"))


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error", "206 Partial Content"])
def test_another_status_is_named(status: str) -> None:
    with pytest.raises(RequestError, match=f"was answered with the status {status[:3]}"):
        fetched(lambda *_: response(b"", status))


def test_a_body_beyond_the_bound_is_not_read() -> None:
    assert len(fetched(lambda *_: response(IMAGE), max_fetched_bytes=1024)[0]) == 1024
    with pytest.raises(RequestError, match="has more than 1,023 bytes"):
        fetched(lambda *_: response(IMAGE), max_fetched_bytes=1023)


def test_a_compressed_body_is_not_expanded() -> None:
    """A small body may expand to any size."""
    data, _ = fetched(lambda *_: response(b"\x1f\x8b not really", **{"Content-Encoding": "gzip"}))
    assert data == b"\x1f\x8b not really"


def test_a_host_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(RequestError, match=r"was not received within 0\.2 s"):
        fetched(lambda *_: b"", fetch_seconds=0.2)


def test_an_answer_that_is_not_http_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match="cannot be fetched"):
        fetched(lambda *_: b"hello\r\n\r\n")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a name that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, private


@pytest.mark.parametrize("name", [HOST, "other.example"])
def test_the_certificate_must_be_that_of_the_name_and_not_of_the_address(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, private = certificate(tmp_path, name)
    offered = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offered.load_cert_chain(pem, private)
    asked: list[str | None] = []
    offered.sni_callback = lambda _, host, __: asked.append(host)
    trusting = ssl.create_default_context(cafile=str(pem))
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, verify=trusting))

    async def work() -> bytes:
        async with serving(lambda *_: response(IMAGE), offered) as (port, _):
            options = ImageOptions(allow_image_urls=(f"{HOST}:{port}",))
            return await ImageUrls(options, here).read(f"https://{HOST}:{port}/")

    if name == HOST:
        assert asyncio.run(work()) == IMAGE
    else:
        with pytest.raises(RequestError, match="cannot be fetched"):
            asyncio.run(work())
    assert asked == [HOST]
