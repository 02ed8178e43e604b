"""Real sockets that misbehave: clients that leave, stop reading, send half, send too much, or stay idle."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from asgi import HI
from fake_models import FakeExecutor, FakeModels
from live_server import live_server
from waiting import WAIT_SECONDS, wait_until

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.connection import MAX_FRAMES, MAX_HEADER_BYTES, Connection, SocketConnection
from nearfar.server_fallback.api.server import bind

CROWDED = ApiConfig(max_connections=8)
PATIENT = ApiConfig(max_body_bytes=100_000)
# Only what these tests keep silent has a short limit: on a busy machine, all else may take as long.
ENDS_SILENT_READERS = ApiConfig(write_timeout_seconds=0.3)
ENDS_SILENT_WRITERS = ApiConfig(body_timeout_seconds=0.3, header_timeout_seconds=0.5)
MORE_THAN_THE_KERNEL_BUFFERS = ["x" * 100_000] * 1000


@pytest.fixture(scope="module")
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture(scope="module")
def port(models: FakeModels) -> Iterator[int]:
    with live_server(models, PATIENT) as live:
        yield live.port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)


def request(body: object, path: str = "/v1/chat/completions") -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def alive(port: int) -> bool:
    body = {"model": "fake", "prompt": "x", "n": 1}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=WAIT_SECONDS)
    return answer.status_code == 200


def read_to_end(sock: socket.socket) -> bytes:
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_until_closed(sock: socket.socket) -> bytes:
    """What arrives up to the frame that closes a WebSocket, or the end of the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while b"\x88" not in found and (part := sock.recv(1 << 16)):
            found += part
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_ends_its_answer(port: int, models: FakeModels, how: str, stream: bool) -> None:
    models.fake = FakeExecutor(pieces=["a"] * 10_000, delay_seconds=0.005)
    with connect(port) as sock:
        sock.sendall(request({**HI, "stream": stream}))
        wait_until(lambda: models.fake.open == 1)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        if how == "half":
            # A half-closed connection counts as closed by the client, so the server closes it.
            sock.shutdown(socket.SHUT_WR)
            read_to_end(sock)
    wait_until(lambda: models.fake.open == 0)
    assert models.fake.cancelled == 1


def test_a_connection_that_stays_open_keeps_no_model(port: int, models: FakeModels) -> None:
    """It has its last request, and is not freed itself before a garbage collection."""
    gc.disable()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
            for stream in (True, False):
                models.loaded["brief"] = FakeExecutor()
                held = weakref.ref(models.loaded["brief"])
                body = {**HI, "model": "brief", "stream": stream}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
                del models.loaded["brief"]
                wait_until(lambda held=held: held() is None)  # type: ignore[misc]
    finally:
        gc.enable()


def test_a_closed_connection_is_freed_without_a_garbage_collection(port: int, models: FakeModels) -> None:
    """With TLS, each has buffer of 256 KiB."""

    def held() -> int:
        return sum(type(each) in (Connection, SocketConnection) for each in gc.get_objects())

    models.fake = FakeExecutor(pieces=["a"] * 1000, delay_seconds=0.005)
    gc.disable()
    try:
        before = held()
        for body, status in (({**HI, "model": "brief"}, 200), ({"wrong": 1}, 400), ({**HI, "model": "none"}, 404)):
            models.loaded["brief"] = FakeExecutor()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
                assert client.post("/v1/chat/completions", json=body).status_code == status
        for stream in (True, False):
            with connect(port) as sock:
                sock.sendall(request({**HI, "stream": stream}) * 2)
                wait_until(lambda: models.fake.open == 1)
            wait_until(lambda: models.fake.open == 0)
        with connect(port) as sock:
            sock.sendall(OPEN_SOCKET)
            while not sock.recv(4096).endswith(b"\r\n\r\n"):
                pass
            sock.sendall(WRONG_MESSAGE)
            assert b"invalid_json" in read_until_closed(sock)
        wait_until(lambda: held() <= before)
    finally:
        gc.enable()


def test_a_client_that_stops_reading_is_disconnected_and_delays_no_one(port: int, models: FakeModels) -> None:
    with live_server(models, ENDS_SILENT_READERS) as live:
        for at in (port, live.port):
            models.fake = long = FakeExecutor(pieces=MORE_THAN_THE_KERNEL_BUFFERS)
            with connect(at) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(request({**HI, "stream": True}))
                # It may already have ended on the second server.
                wait_until(lambda long=long: long.requests != [])  # type: ignore[misc]
                models.fake = FakeExecutor()
                assert alive(at)
                if at == port:
                    assert long.open == 1
                else:
                    wait_until(lambda long=long: long.open == 0)  # type: ignore[misc]
            wait_until(lambda long=long: long.cancelled == 1)  # type: ignore[misc]


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost:", request(HI)[:-5]],
    ids=["nothing", "half a header", "half a body"],
)
def test_a_silent_client_is_disconnected(models: FakeModels, sent: bytes) -> None:
    with live_server(models, ENDS_SILENT_WRITERS) as live, connect(live.port) as sock:
        sock.sendall(sent)
        answer = read_to_end(sock)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")


def test_a_header_without_end_is_a_400(port: int) -> None:
    with connect(port) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEADER_BYTES)
        assert read_to_end(sock).startswith(b"HTTP/1.1 400 ")


def test_a_header_in_small_pieces_is_read(port: int) -> None:
    with connect(port) as sock:
        for piece in (b"GET /health/live HT", b"TP/1.1\r\nHo", b"st: x\r\nConnection: close\r", b"\n\r\n"):
            sock.sendall(piece)
            time.sleep(0.01)
        assert read_to_end(sock).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00", b"\r\n\r\n\r\n  ", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"]
)
def test_requests_that_are_not_http_do_no_harm(port: int, sent: bytes) -> None:
    with connect(port) as sock:
        sock.sendall(sent)
        answer = read_to_end(sock)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert alive(port)


def test_a_body_that_is_too_large_is_a_413_however_it_is_sent(port: int) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    headers = {"content-type": "application/json"}
    for content in (b" " * 3_000_000, chunks()):
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", content=content, headers=headers, timeout=WAIT_SECONDS
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


OPEN_SOCKET = (
    b"GET /v1/nearfar/verify HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WRONG_MESSAGE = b"\x81\x81\0\0\0\0a"


@pytest.mark.parametrize(
    ("begin", "each", "end"),
    [
        (b"\x01\x81\0\0\0\0{", b"\x00\x81\0\0\0\0a", b"\x80\x81\0\0\0\0a"),
        (b"", b"\x8a\x80\0\0\0\0", b"\x81\x81\0\0\0\0a"),
        (b"", b"\x89\x80\0\0\0\0", b"\x81\x81\0\0\0\0a"),
    ],
    ids=["fragments", "pongs", "pings"],
)
def test_a_socket_that_sends_too_many_frames_is_closed_before_they_are_read(
    port: int, begin: bytes, each: bytes, end: bytes
) -> None:
    for frames, is_answered in ((MAX_FRAMES - 2, True), (2 * MAX_FRAMES, False)):
        with connect(port) as sock:
            sock.sendall(OPEN_SOCKET)
            while not sock.recv(4096).endswith(b"\r\n\r\n"):
                pass
            sock.sendall(begin + each * frames + end)
            # The message is not JSON, which an error answers.
            assert (b"invalid_json" in read_until_closed(sock)) is is_answered
    assert alive(port)


def test_requests_on_one_connection_are_answered_in_order(port: int, models: FakeModels) -> None:
    models.fake = FakeExecutor()
    with connect(port) as sock:
        sock.sendall(request(HI) + b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = read_to_end(sock)
    assert answer.index(b"Hello!") < answer.index(b'{"status":"live"}')


@pytest.mark.parametrize("protocol", ["h2c", "websocket, h2c"])
def test_an_offer_of_another_protocol_is_ignored(port: int, models: FakeModels, protocol: str) -> None:
    """Java's HTTP client offers HTTP/2 with each request, and sends its body."""
    models.fake = FakeExecutor()
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAEAAEAA\r\nHost: x\r\n"
    offering = request(HI).replace(b"Host: x\r\n", offer.encode())
    with connect(port) as sock:
        # In one piece, with another request behind it; then with its body in pieces.
        sock.sendall(offering * 2 + offering[:-20])
        sock.sendall(offering[-20:] + b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = read_to_end(sock)
    assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"Hello!")) == (4, 3)


def test_a_thousand_idle_connections_delay_nobody(port: int, models: FakeModels) -> None:
    models.fake = FakeExecutor()
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(port))
        # The server waits longer for them than this waits for its answer.
        assert alive(port)


def test_health_answers_when_one_client_has_taken_all_its_connections() -> None:
    models = FakeModels(FakeExecutor(pieces=["a"] * 10_000, delay_seconds=0.005))
    with live_server(models, CROWDED) as live, ExitStack() as stack:
        socks = [stack.enter_context(connect(live.port)) for _ in range(20)]
        wait_until(lambda: len(live.server.open_connections) == 4)
        assert httpx.get(f"http://127.0.0.1:{live.port}/health/live", timeout=WAIT_SECONDS).status_code == 200
        # The oldest idle connections were closed.
        assert read_to_end(socks[0]) == b""
        socks[-1].sendall(request({**HI, "stream": True}))
        wait_until(lambda: models.fake.open == 1)
        for _ in range(8):
            stack.enter_context(connect(live.port))
        assert httpx.get(f"http://127.0.0.1:{live.port}/health/live", timeout=WAIT_SECONDS).status_code == 200
        assert models.fake.open == 1
        stack.close()
        wait_until(lambda: len(live.server.open_connections) == 0)


def test_many_at_once_are_each_answered_with_their_own(port: int, models: FakeModels) -> None:
    models.fake = FakeExecutor(pieces=["a"] * 10, delay_seconds=0.001)
    statuses: list[int] = []

    def ask() -> None:
        with httpx.stream(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json={**HI, "stream": True}, timeout=WAIT_SECONDS
        ) as answer:
            lines = [line for line in answer.iter_lines() if line]
            statuses.append(answer.status_code if len(lines) == 13 else len(lines))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 16
    assert models.fake.open == 0


def test_a_port_that_is_taken_is_an_error(port: int) -> None:
    with pytest.raises(RequestError, match=f"--port {port}: Address already in use"):
        bind("127.0.0.1", port)
    with pytest.raises(RequestError, match="--port 70000"):
        bind("127.0.0.1", 70000)
    with pytest.raises(RequestError, match=r"--host 203\.0\.113\.1 "):
        bind("203.0.113.1", 0)
