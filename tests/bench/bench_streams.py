"""The server's cost of a streamed token, with a device that computes nothing: 256 clients read answers of the demo
model's tokens over HTTP.

    .venv/bin/python tests/bench/bench_streams.py                    # 256 clients, steps of 5 ms
    .venv/bin/python tests/bench/bench_streams.py --clients 64 --step-ms 10
    .venv/bin/python tests/bench/bench_streams.py --front-ends 2

The server is a process, or several, with the app and the text layer, and one with the engine; the device samples random
tokens after
``--step-ms``. The clients are another process and parse nothing, so that they do not slow the server down. Processor
time is that of the server and all its children, per generated token. Gaps are the times between two pieces of an answer
that arrive at a client; a piece may hold several tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import httpx
import numpy as np
from bench_compile import machine

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.runtime.batch import Array, Batch, FloatArray
from nearfar.compiler.runtime.page_groups import PageGroup
from nearfar.compiler.runtime.runner import Limits, Output
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.server import bind, run_server
from nearfar.server_fallback.engine.masks import Masks
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.engine_process.remote_engine import RemoteEngine
from nearfar.server_fallback.executors.executor import Executor, Models, Opening
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.local_share import LocalShare
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.front_ends.front_ends import run_front_ends
from nearfar.server_fallback.schema.models import LoadRequest

MODEL = "idle"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
PROMPT, CONTEXT, PAGE_SIZE = 64, 1024, 16
WARM_UP_SECONDS = 2.0
# Each token of the device has this many letters, so that the clients can count tokens.
LETTERS = 3
CONTENT = re.compile(rb'"(?:text|content)":"([^"]*)"')


class IdleRunner:
    """A device that takes ``step_seconds`` for every batch, and samples tokens at random."""

    def __init__(self, tokens: Sequence[int], limits: Limits, step_seconds: float) -> None:
        assert limits.pages is not None
        self.limits, self.groups, self.device = limits, (PageGroup(limits.pages),), "nothing"
        self._step_seconds = step_seconds
        self._tokens = np.random.default_rng(0).choice(np.array(tokens, np.int32), 1 << 16)
        self._device = ThreadPoolExecutor(1)
        self._steps = 0

    def submit(self, batch: Batch) -> Future[Output]:
        return self._device.submit(self._work, len(batch.sample_rows))

    def _work(self, rows: int) -> Output:
        time.sleep(self._step_seconds)
        self._steps += 1
        start = self._steps * 257 % (len(self._tokens) - rows)
        nothing = np.zeros((0, 0), np.int32)
        return Output(
            self._tokens[start : start + rows],
            np.zeros(rows, np.float32),
            nothing,
            nothing.astype(np.float32),
            lambda: np.zeros((0, 0), np.float32),
        )

    def embed(self, batch: Batch) -> FloatArray:
        raise NotImplementedError("the benchmark does not embed")

    def write_state(self, name: str, slot: int, values: Array) -> None: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]], group: int = 0) -> None: ...

    def read_pages(self, units: Sequence[Sequence[int]]) -> Future[bytes]:
        raise NotImplementedError("a device without pages")

    def write_pages(self, units: Sequence[Sequence[int]], data: bytes) -> None: ...

    def close(self) -> None:
        self._device.shutdown()


# --- the server ---


@dataclass(frozen=True, slots=True)
class IdleRecipe:
    """The engine over an `IdleRunner`."""

    tokens: Sequence[int]
    vocab_size: int
    sequences: int
    step_seconds: float
    name: str = "idle"

    def open(self, masks: Masks | None = None) -> TokenEngine:
        pages = self.sequences * CONTEXT // PAGE_SIZE
        limits = Limits(tokens=2048, sequences=self.sequences, rows=self.sequences, pages=pages)
        model = TokenModel(self.vocab_size, frozenset(), CONTEXT, PAGE_SIZE)
        return TokenEngine(IdleRunner(self.tokens, limits, self.step_seconds), model, masks=masks)


@dataclass(frozen=True, slots=True)
class IdleFolder:
    """The part of a bundle that the text layer reads."""

    tokenizer_json: Path
    vocab_size: int

    def tokenizer_files(self) -> TokenizerFiles:
        return TokenizerFiles.at(self.tokenizer_json, TEMPLATE)

    @property
    def manifest(self) -> Any:
        spec = SimpleNamespace(vocab_size=self.vocab_size, eos_token_ids=(), hidden_size=64, num_token_types=0)
        return SimpleNamespace(
            spec=spec, embedding=None, classifier=None, files=(), model_dump_json=lambda include: str(include)
        )


@dataclass(frozen=True, slots=True)
class IdleOpener:
    sequences: int
    step_seconds: float
    own_process: bool
    shared: bool

    async def prepare(self, model: str, name: str | None) -> Opening:
        return Opening(name or model, None, self._open, answers_at_once=2 * self.sequences)

    async def _open(self) -> Executor:
        file = DEMOS["demo"] / "tokenizer.json"
        size = len(json.loads(file.read_text())["model"]["vocab"])
        folder = IdleFolder(file, size)
        text = TextModel.of(cast(Bundle, folder), MODEL)
        texts = {id: text.tokenizer.decode([id]) for id in range(size)}
        words = [id for id, word in texts.items() if len(word) == LETTERS and word.isalpha() and word.isascii()]
        recipe = IdleRecipe(words, size, self.sequences, self.step_seconds)
        engine = await RemoteEngine.open(recipe) if self.own_process else recipe.open()
        threading.Thread(target=report, args=(engine,), daemon=True).start()
        share = None
        if self.shared:
            assert isinstance(engine, RemoteEngine)
            share = LocalShare(cast(Bundle, folder), MODEL, await engine.share(), None)
        return LocalExecutor(engine, text, share=share)


def report(engine: TokenEngine | RemoteEngine) -> None:
    """Print the engine's counts for each line of the standard input."""
    while sys.stdin.readline():
        stats = engine.stats()
        print(
            json.dumps({"steps": stats.steps, "overhead": stats.overhead_seconds}),
            flush=True,
        )


def serve(port: int, sequences: int, step_seconds: float, *, own_process: bool, front_ends: int) -> None:
    registry = Registry(IdleOpener(sequences, step_seconds, own_process, front_ends > 1))
    config = ApiConfig(max_concurrent_requests=2 * sequences, client_share=1.0)

    async def load(models: Models) -> None:
        await models.change(LoadRequest(model=MODEL))

    if front_ends > 1:
        listeners = [bind("127.0.0.1", port, shared=True) for _ in range(front_ends)]
        run_front_ends(registry, config, listeners, load)
    else:
        run_server(create_app(registry, config), bind("127.0.0.1", port), lambda: load(registry))


# --- the clients ---


class Client(asyncio.Protocol):
    """Reads answers without parsing them, one after the other."""

    def __init__(self, load: Load, index: int) -> None:
        self._load, self._index = load, index
        body = {
            "model": MODEL,
            "prompt": [1 + (index * 31 + position) % 200 for position in range(PROMPT)],
            "max_tokens": CONTEXT - PROMPT - 8,
            "stream": True,
            "temperature": 0.8,
            "top_p": 0.9,
            "seed": index,
        }
        if load.chat:
            body.update(messages=[{"role": "user", "content": f"{index} " * 20}])
            del body["prompt"]
        text = json.dumps(body)
        path = "chat/completions" if load.chat else "completions"
        self._request = (
            f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}"
        ).encode()
        self._last: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        now, load = time.perf_counter(), self._load
        load.events += data.count(b"data: ")
        load.tokens += sum(map(len, CONTENT.findall(data))) // LETTERS
        if self._last is not None and load.measures:
            load.gaps.append(now - self._last)
        self._last = now
        if b"data: [DONE]" in data:
            self._last = None
            self._ask()

    def _ask(self) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(self._request)


@dataclass
class Load:
    """Counts, and in ``gaps`` the seconds between reads of one client while ``measures`` is set."""

    chat: bool
    events: int = 0
    tokens: int = 0
    measures: bool = False
    gaps: list[float] = field(default_factory=list)


async def load_server(port: int, clients: int, *, chat: bool) -> None:
    """Run until standard input ends; each line of it starts or ends a measurement."""
    load, loop = Load(chat), asyncio.get_running_loop()
    for index in range(clients):
        await loop.create_connection(lambda index=index: Client(load, index), "127.0.0.1", port)  # type: ignore[misc]
    while await asyncio.to_thread(sys.stdin.readline):
        load.measures = not load.measures
        if not load.measures:
            print(json.dumps({"events": load.events, "tokens": load.tokens, "gaps": sorted(load.gaps)}), flush=True)
        load.events, load.tokens, load.gaps = 0, 0, []


# --- the measurement ---


@dataclass(frozen=True, slots=True)
class Result:
    """Tokens and events (which hold at least one token) per second; microseconds of processor time per token;
    milliseconds that a step takes in the engine, and in total; milliseconds between two pieces that a client reads.
    """

    tokens: float
    events: float
    processor_us: float
    engine_ms: float
    step_ms: float
    median_gap_ms: float
    p99_gap_ms: float


def processor_seconds(pid: int) -> float:
    """The processor time of a process and its children, including all threads."""
    total, pids = 0.0, [pid]
    while pids:
        each = pids.pop()
        with open(f"/proc/{each}/stat", encoding="utf-8") as file:
            values = file.read().rsplit(")", 1)[1].split()
        total += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
        # A process is the child of the thread that started it.
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
    return total


def ask(process: subprocess.Popen[str]) -> None:
    """Send a line to the server or the clients."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def counts_of(server: subprocess.Popen[str]) -> Any:
    ask(server)
    return answer(server)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(port: int, log: IO[bytes]) -> None:
    """Raises RuntimeError with the server's log if it does not start."""
    state = ""
    for _ in range(300):
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/health/ready")
            if answer.status_code == 200:
                return
            state = answer.text
        except httpx.HTTPError as error:
            state = str(error)
        time.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"the server did not start: {state}\n{log.read().decode(errors='replace')}")


def measure(options: argparse.Namespace) -> Result:
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "import bench_streams; bench_streams.main()",
        "--port",
        str(port),
        "--clients",
        str(options.clients),
    ]
    command += ["--step-ms", str(options.step_ms), *(["--chat"] if options.chat else [])]
    command += ["--one-process"] if options.one_process else []
    command += ["--front-ends", str(options.front_ends)]
    with ExitStack() as started:
        log = started.enter_context(tempfile.TemporaryFile())

        def start(role: str) -> subprocess.Popen[str]:
            process = subprocess.Popen([*command, "--role", role], stdin=-1, stdout=-1, stderr=log, text=True)
            started.callback(process.wait)
            started.callback(process.kill)
            return process

        server = start("server")
        wait_until_ready(port, log)
        clients = start("clients")
        time.sleep(WARM_UP_SECONDS)
        before, busy, began = counts_of(server), processor_seconds(server.pid), time.perf_counter()
        ask(clients)
        time.sleep(options.seconds)
        ask(clients)
        found = answer(clients)
        seconds, busy = time.perf_counter() - began, processor_seconds(server.pid) - busy
        after = counts_of(server)
    counts = {name: after[name] - before[name] for name in before}
    gaps = found["gaps"]
    return Result(
        found["tokens"] / seconds,
        found["events"] / seconds,
        1e6 * busy / found["tokens"],
        1e3 * counts["overhead"] / counts["steps"],
        1e3 * seconds / counts["steps"],
        1e3 * statistics.median(gaps),
        1e3 * gaps[int(len(gaps) * 0.99)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--chat", action="store_true", help="chats, not completions")
    parser.add_argument("--one-process", action="store_true", help="the engine in the process of the server")
    parser.add_argument("--front-ends", type=int, default=1, help="processes that answer HTTP")
    parser.add_argument("--role", choices=("server", "clients"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        own_process, step_seconds = not options.one_process, options.step_ms / 1000
        serve(options.port, options.clients, step_seconds, own_process=own_process, front_ends=options.front_ends)
    elif options.role == "clients":
        asyncio.run(load_server(options.port, options.clients, chat=options.chat))
    else:
        # This lets the process of the engine find this module under the name by which it is pickled.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        print(machine())
        for name, value in asdict(measure(options)).items():
            print(f"{name:14} {value:10.1f}")


if __name__ == "__main__":
    main()
