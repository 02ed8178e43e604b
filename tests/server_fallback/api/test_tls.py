"""A server with TLS, whose certificate is read again while it serves."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest
import tritonclient.grpc
from asgi import HI
from certificates import write_certificate
from cryptography import x509
from fake_models import FakeExecutor, FakeModels
from live_server import live_server
from waiting import WAIT_SECONDS

from nearfar.compiler.runtime.errors import RequestError, Unavailable
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.tls import tls_context
from nearfar.server_fallback.engine.request import TokenRequest
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.upstream import make_upstream
from nearfar.server_fallback.kserve.grpc_server import GrpcServer
from nearfar.server_fallback.router.sides.wire_speculation import FarModel, WireSpeculation


def common_name(port: int) -> str:
    """Of the certificate that a new connection gets."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=WAIT_SECONDS)
    (name,) = x509.load_pem_x509_certificate(pem.encode()).subject
    return str(name.value)


def test_a_new_certificate_is_for_new_connections_and_streams_go_on(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "first")
    config = ApiConfig(tls_cert=cert, tls_key=key)
    models = FakeModels(FakeExecutor(pieces=["a"] * 60, delay_seconds=0.01))
    trusted = ssl.create_default_context(cafile=cert)
    with live_server(models, config) as live:
        url = f"https://127.0.0.1:{live.port}"
        with httpx.Client(verify=trusted, timeout=WAIT_SECONDS) as client:
            assert client.get(f"{url}/health/startup").json() == {"status": "started"}
            with client.stream("POST", f"{url}/v1/chat/completions", json={**HI, "stream": True}) as story:
                lines = story.iter_lines()
                first = next(lines)
                write_certificate(tmp_path, "second")
                live.configure(config)
                assert common_name(live.port) == "second"
                text = "".join([first, *lines])
            assert text.count('"content":"a"') == 60
            assert "[DONE]" in text
        asyncio.run(requests_of_other_servers(url, cert))
        with pytest.raises(httpx.ConnectError, match="self-signed certificate"):
            httpx.get(f"{url}/health", verify=trusted)
        now = ssl.create_default_context(cafile=cert)
        assert httpx.get(f"{url}/health", verify=now, timeout=WAIT_SECONDS).status_code == 200
        with socket.create_connection(("127.0.0.1", live.port), WAIT_SECONDS) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")


async def requests_of_other_servers(url: str, ca: Path) -> None:
    """What our own server and gateway are as clients of another server."""

    async def drafted(trusted: Path | None) -> None:
        # It is refused before near is asked.
        far = FarModel(url, "fake", "5ha", ca=trusted)
        await anext(WireSpeculation(cast("Any", None), far).generate(TokenRequest([1, 2], 4)))

    async def listed(trusted: Path | None) -> Any:
        upstream = make_upstream(url, None, trusted)
        try:
            return await upstream.request("GET", "/v1/models", None, Call("1"))
        finally:
            await upstream.close()

    for work in (drafted, listed):
        with pytest.raises(Unavailable, match=r"certificate is not accepted .*: --tls-ca FILE"):
            await work(None)
    assert (await listed(ca))["data"][0]["id"] == "fake"
    with pytest.raises(RequestError) as refused:
        await drafted(ca)
    assert refused.value.details["code"] == "verify_unavailable"


def test_grpc_has_the_certificate_of_the_server_and_its_newer_one(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "first")
    config = ApiConfig(tls_cert=cert, tls_key=key)
    with live_server(FakeModels(), config) as live:
        server = GrpcServer(live.service, "127.0.0.1:0")
        asyncio.run_coroutine_threadsafe(server.start(), live.loop).result()
        try:
            for name in ("first", "second"):
                roots = grpc.ssl_channel_credentials(cert.read_bytes())
                with tritonclient.grpc.InferenceServerClient(
                    f"127.0.0.1:{server.port}", ssl=True, creds=roots
                ) as triton:
                    assert triton.is_server_live()
                if name == "first":
                    write_certificate(tmp_path, "second")
                    live.configure(replace(config))
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), live.loop).result()


def test_certificates_that_cannot_be_used_are_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    cert, key = write_certificate(tmp_path, "first")
    other_cert, other_key = write_certificate(tmp_path / "other", "other", password=b"secret")
    for given, message in (
        (ApiConfig(tls_key=key), "--tls-key .*: needs its certificate, too"),
        (ApiConfig(tls_cert=tmp_path / "none.pem", tls_key=key), "none.pem: cannot be read: No such file"),
        (ApiConfig(tls_cert=cert), "give a certificate with its chain and its own private key"),
        (ApiConfig(tls_cert=other_cert, tls_key=key), "KEY_VALUES_MISMATCH|key values mismatch"),
        (ApiConfig(tls_cert=other_cert, tls_key=other_key), "key.pem: the key is encrypted; decrypt it"),
        (ApiConfig(tls_cert=key, tls_key=key), "give a certificate with its chain"),
    ):
        with pytest.raises(RequestError, match=message):
            tls_context(given)
    config = ApiConfig(tls_cert=cert, tls_key=key)
    with live_server(FakeModels(), config) as live:
        cert.write_bytes(other_cert.read_bytes())
        with pytest.raises(RequestError, match=r"mismatch|MISMATCH"):
            live.configure(config)
        assert common_name(live.port) == "first"
        assert json.loads(httpx.get(f"https://127.0.0.1:{live.port}/health/live", verify=False).content)
