"""The CPU time of a streamed token in front of another server, with 256 answers at once.

``make bench-upstream`` runs this and prints a table. Another server, in a process of its own, streams answers in vLLM's
form, each token as one event in one HTTP chunk and one write: as fast as it can, and one token in every step of some
milliseconds, as an engine does. The clients are in this process. The figure is the CPU time (user and system) of only
`nearfar serve --executor upstream`, without its start, divided by all tokens. It includes the time for requests. Every
16th answer is compared with what the other server sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from bench_compile import machine
from serving_process import Process, nearfar_serve

MODEL, WORDS = "there", (" the", " answer", " is", " forty", "-", "two", ".\\n", " caf\u00e9")
WARM_UP_TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=256, help="streamed at the same time (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="of each answer (default: %(default)s)")
    parser.add_argument(
        "--step-ms", type=float, nargs="+", default=[0.0, 20.0], help="between the tokens of an answer; 0: none"
    )
    options = parser.parse_args()
    print(machine())
    print("| time between tokens | tokens/s | CPU of nearfar serve, us a token | of it in the kernel |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="nearfar-") as name:
        for step_ms in options.step_ms:
            with (
                other_server(step_ms / 1000) as url,
                nearfar_serve(["--executor", "upstream", "--upstream", url, *NO_LIMITS], Path(name) / "log") as server,
            ):
                asyncio.run(load(server.url, 8, WARM_UP_TOKENS))
                before, started = cpu_seconds(server), time.monotonic()
                asyncio.run(load(server.url, options.answers, options.tokens))
                seconds = time.monotonic() - started
                user, system = (now - then for now, then in zip(cpu_seconds(server), before, strict=True))
                tokens = options.answers * options.tokens
                print(
                    f"| {f'{step_ms:g} ms' if step_ms else 'none'} | {tokens / seconds:,.0f} "
                    f"| {1e6 * (user + system) / tokens:.1f} | {1e6 * system / tokens:.1f} |",
                    flush=True,
                )


NO_LIMITS = ("--client-share", "1")


def cpu_seconds(server: Process) -> tuple[float, float]:
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user, times.system


# --- the clients ---


async def load(url: str, answers: int, tokens: int) -> None:
    """Raises AssertionError for an answer that is not the one that was sent."""
    expected = "".join(json.loads(f'"{WORDS[index % len(WORDS)]}"') for index in range(tokens))
    texts = await asyncio.gather(*(ask(url, tokens, check=index % 16 == 0) for index in range(answers)))
    assert all(text in (None, expected) for text in texts), "an answer differs"


async def ask(url: str, tokens: int, *, check: bool) -> str | None:
    """Read the answer to its end with as little CPU time as possible; return its text if it is to be checked."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    message = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "max_tokens": tokens, "stream": True}
    body = json.dumps(message).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
    )
    answer = b"".join([part async for part in parts_of(reader)])
    writer.close()
    assert answer.count(b"data: [DONE]") == 1, answer[-500:]
    return text_of(answer) if check else None


async def parts_of(reader: asyncio.StreamReader) -> Any:
    while part := await reader.read(1 << 16):
        yield part


def text_of(answer: bytes) -> str:
    # This server's HTTP chunks do not split events: each chunk contains complete events.
    lines = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


# --- the other server ---


class Answers(asyncio.Protocol):
    """A connection of the other server, which answers one request after another."""

    def __init__(self, running: set[Answers]) -> None:
        self._running = running
        self._received = b""
        self.is_full = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._running.discard(self)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
        if not blank or len(body) < size:
            return
        self._received = body[size:]
        if head.startswith(b"GET"):
            models = json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 8192}]}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(models) + models)
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._rest = iter(answer_chunks(json.loads(body[:size])["max_tokens"]))
        self._running.add(self)

    def step(self) -> None:
        if self.is_full:
            return
        part = next(self._rest, None)
        if part is None:
            self._running.discard(self)
        else:
            self.transport.write(part)


def answer_chunks(tokens: int) -> Iterator[bytes]:
    """In the form of vLLM 0.32."""
    start = '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"there",'

    def event(rest: str) -> bytes:
        data = f"data: {rest}\n\n".encode()
        return b"%x\r\n" % len(data) + data + b"\r\n"

    def choice(delta: str, end: str) -> bytes:
        return event(
            f'{start}"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{end},"token_ids":null}}]}}'
        )

    yield choice('{"role":"assistant","content":""}', "null")
    for index in range(tokens):
        yield choice(f'{{"content":"{WORDS[index % len(WORDS)]}"}}', "null")
    yield choice('{"content":""}', '"length"')
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    yield event(f'{start}"choices":[],"usage":{json.dumps(usage)}}}')
    yield event("[DONE]") + b"0\r\n\r\n"


def serve(step_seconds: float, port: Any) -> None:
    async def run() -> None:
        running: set[Answers] = set()
        server = await asyncio.get_running_loop().create_server(lambda: Answers(running), "127.0.0.1", 0, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        at = time.monotonic()
        while os.getppid() != 1:
            for answer in list(running):
                answer.step()
            at = max(at + step_seconds, time.monotonic())
            await asyncio.sleep(at - time.monotonic() if running else 0.001)

    asyncio.run(run())


@contextmanager
def other_server(step_seconds: float) -> Iterator[str]:
    receiver, sender = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(step_seconds, sender), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
