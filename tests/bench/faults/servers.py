"""The servers that the faults hit, all with TLS, keys and a configuration in a file: one of two front ends with named
models, one of the model store, whose memory holds two of its three models, and a gateway before a decode worker with
its prefill worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
from certificates import write_certificate
from serving_process import NEARFAR
from waiting import wait_until

from nearfar.compiler.store.model import Changes
from nearfar.compiler.store.parameters import Parameters
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions

from .questions import ALIAS, EMBEDDING, MODEL, STORED

ADMIN_KEY, CLIENT_KEYS = "the-admins-key", tuple(f"key-of-clients-{number}" for number in range(8))
KV_BYTES = 16_000_000
CONTEXTS = dict(zip(STORED, (256, 384, 512), strict=True))
# Stored responses fill their room in the first minute, so that they do not count as growth.
COMMON = """
tls_cert = "cert.pem"
tls_key = "key.pem"
drain_seconds = 60
response_memory = "100KB"
"""
LOCAL = f"""
target = "cpu"
kv_memory = {KV_BYTES}
"""
# A gateway and its workers. A prompt of two pages is long here.
PREFILL, DECODE, GATEWAY = "prefill", "decode", "gateway"
PREFILL_TOKENS, KEY_VARIABLE = 32, "NEARFAR_KEY_OF_WORKERS"
FRONT_ENDS = 2
# Both load their models at the same time, on a machine that may have other work.
START_SECONDS = 600.0


@dataclass(eq=False)
class Server:
    """``folder`` has its configuration, its certificate and its log. ``keys`` are those that it knows now, or will know
    when it has read its file again.
    """

    name: str
    folder: Path
    options: str
    process: subprocess.Popen[bytes]
    url: str = ""
    keys: list[str] = field(default_factory=lambda: list(CLIENT_KEYS))
    # The number of certificates that it has had. All of them are trusted, because connections keep theirs.
    certificates: int = 0
    trust: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def lines(self, event: str, after: int = 0) -> list[dict[str, Any]]:
        """The lines of its log about events whose names begin so, from this byte on."""
        with self.log.open("rb") as file:
            file.seek(after)
            # The last line may not be whole yet.
            *lines, _ = file.read().split(b"\n")
        found = [json.loads(line) for line in lines if line.startswith(b"{") and event.encode() in line]
        return [line for line in found if line["event"].startswith(event)]

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Its processes, or those with this text in their command lines."""
        found = []
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            for each in (own, *own.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    if part in " ".join(each.cmdline()):
                        found.append(each)
        return found

    def client(self, key: str = ADMIN_KEY, seconds: float = 120.0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, verify=self.trust, timeout=seconds)

    def write(self, changes: str = "") -> None:
        """Write its configuration, with the keys of now."""
        rows = [_key("admin", ADMIN_KEY, admin=True), *(_key(key, key) for key in self.keys)]
        (self.folder / "nearfar.toml").write_text("\n".join([changes, self.options, *rows]))

    def renew_certificate(self) -> None:
        made = Path(mkdtemp(dir=self.folder))
        # OpenSSL finds only one certificate of a name.
        cert, key = write_certificate(made, f"{self.name} {self.certificates}")
        self.trust.load_verify_locations(cert)
        self.certificates += 1
        key.replace(self.folder / "key.pem")
        cert.replace(self.folder / "cert.pem")
        shutil.rmtree(made)

    def start(self) -> None:
        """Start its process, again at the address that it had."""
        port = httpx.URL(self.url).port if self.url else 0
        command = [*NEARFAR, "serve", "--config", str(self.folder / "nearfar.toml"), "--port", str(port)]
        with self.log.open("ab") as log, (self.folder / "printed").open("ab") as printed:
            self.process = subprocess.Popen(command, stdout=printed, stderr=log)

    def hang_up(self) -> dict[str, Any]:
        """Let it read its files again. Returns the line of its log about that."""
        size = self.log.stat().st_size
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(self.lines("reload", size)))
        return self.lines("reload", size)[-1]

    def is_ready(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/health/ready").status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def servers(folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, Server]]:
    """All of them, ready, by their names. ``environment`` is added to that of this process."""
    # Also for the store that this process fills, and the models that it compiles.
    os.environ.update(environment, NEARFAR_CACHE=str(folder / "cache"))
    os.environ[KEY_VARIABLE] = CLIENT_KEYS[0]
    local = LOCAL + COMMON
    named = f'models = ["{MODEL}", "{EMBEDDING}"]\nfront_ends = {FRONT_ENDS}\n{local}\n[aliases]\n{ALIAS} = "{MODEL}"\n'
    on_use = f"memory = {_make_store()}\nkeep_alive = 2\n{local}"
    with ExitStack() as stack:
        started = {}
        for name, options in (("models", named), ("store", on_use)):
            started[name] = stack.enter_context(_server(name, folder / name, options))
        for server in started.values():
            _wait_until_serves(server)
        # Certificates of the workers, which trust each other.
        trusted = folder / "workers.pem"
        trusted.write_bytes(b"")
        for name in (PREFILL, DECODE, GATEWAY):
            options = f'tls_ca = "{trusted}"\n{COMMON}'
            if name == GATEWAY:
                options += f'executor = "upstream"\ndialect = "nearfar"\nupstream = ["{started[DECODE].url}"]\n'
                options += f'upstream_api_key_env = "{KEY_VARIABLE}"\n'
            else:
                options += f'models = ["{MODEL}"]\nrole = "{name}"\n{LOCAL}'
            if name == DECODE:
                options += f'prefill_from = ["{started[PREFILL].url}"]\nprefill_api_key_env = "{KEY_VARIABLE}"\n'
                options += f"prefill_tokens = {PREFILL_TOKENS}\n"
            server = started[name] = stack.enter_context(_server(name, folder / name, options))
            with trusted.open("ab") as file:
                file.write((server.folder / "cert.pem").read_bytes())
            _wait_until_serves(server)
        yield started


def _make_store() -> int:
    """Fill the store, and compile all models. Returns the memory with which a server holds two of the store's."""
    store, sizes = Store.of_user(), list[int]()
    opener = LocalOpener(LocalOptions(target="cpu", kv_memory_bytes=KV_BYTES))

    async def size(name: str) -> int:
        opening = await opener.prepare(name, None)
        opening.release()
        assert opening.memory_bytes is not None
        return opening.memory_bytes

    for name in (MODEL, EMBEDDING):
        asyncio.run(size(name))
    for name, context in CONTEXTS.items():
        if store.find(name) is None:
            store.create(name, MODEL, Changes(parameters=Parameters(num_ctx=context)))
        sizes.append(asyncio.run(size(name)))
    return sum(sorted(sizes)[-2:])


@contextmanager
def _server(name: str, folder: Path, options: str) -> Iterator[Server]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    server = Server(name, folder, options, None)  # type: ignore[arg-type]
    server.renew_certificate()
    server.write()
    server.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def _wait_until_serves(server: Server) -> None:
    def serves() -> bool:
        assert server.process.poll() is None, server.log.read_text()[-4000:]
        found = re.findall(r"https://127\.0\.0\.1:\d+", (server.folder / "printed").read_text())
        if found:
            server.url = found[-1]
        return bool(found)

    wait_until(serves, START_SECONDS)


def _key(name: str, key: str, *, admin: bool = False) -> str:
    return f'[[keys]]\nname = "{name}"\nkey = "{key}"\nadmin = {str(admin).lower()}\n'
