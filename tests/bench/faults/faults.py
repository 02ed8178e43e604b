"""The faults: what each does to a server, and which failures of a request it explains."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import psutil  # type: ignore[import-untyped]
from waiting import until, wait_until

from .questions import EMBEDDING, MODEL, STORED
from .servers import ADMIN_KEY, DECODE, FRONT_ENDS, PREFILL, Server

# The code of a connection or a stream that broke off.
BROKEN = "broken"
FRONT_END, ENGINE, WORKER = "front_ends.front_end", "engine_process.process", "_worker import main"
# An engine's process that fails more than five times without a minute of work between them is not started again.
MOST_ENGINE_KILLS, KILL_MEMORY_SECONDS = 4, 70.0
PAUSE_SECONDS = 1.0
# The time in which the children of a killed process end.
END_SECONDS = 20.0
# A request may fail that a fault reaches a moment before or after it happens.
MARGIN_SECONDS = 2.0


@dataclass(slots=True)
class Fault:
    """What happened to a server from ``began`` to ``ended``, times of `time.monotonic`."""

    name: str
    server: str
    began: float
    ended: float = float("inf")

    def explains(self, server: str, code: str, began: float, ended: float) -> bool:
        """Whether a request that failed with this code may have done so because of this fault."""
        overlaps = began <= self.ended + MARGIN_SECONDS and self.began - MARGIN_SECONDS <= ended
        return self.server == server and overlaps and any(each in code for each in EXPLAINED[self.name])


# Codes of errors, or for Ollama's API parts of messages. A fault that is not here explains none.
EXPLAINED: Mapping[str, Sequence[str]] = {
    "front end killed": (BROKEN,),
    # An event of /v1/responses has one of OpenAI's codes.
    "engine killed": ("unavailable", "device_error", "server_error"),
    # The decode worker computes what its prefill worker does not.
    "prefill worker killed": (),
    "engine of the prefill worker killed": (),
    "cache of the decode worker emptied": (),
    "worker killed": ("chat_template", "chat template", "grammar"),
    "keys changed": ("invalid_api_key", "does not know this API key"),
    "certificate changed": (),
    "options changed": (),
    "wrong file": (),
    "asleep": ("model_asleep", "the model is asleep"),
    "models created and removed": (),
    "unloaded": (),
}


@dataclass
class Faults:
    """Hits the servers until ``until_time``, one fault at a time for each of them; those of workers count as their
    gateway's.
    """

    servers: Mapping[str, Server]
    seed: int
    happened: list[Fault] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    # By server.
    _engine_kills: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    async def run(self, until_time: float) -> None:
        of_models = (
            ("front end killed", self._kill_front_end),
            ("engine killed", self._kill_engine),
            ("worker killed", self._kill_worker),
            ("keys changed", self._change_keys),
            ("certificate changed", self._change_certificate),
            ("options changed", self._change_options),
            ("wrong file", self._write_wrong_file),
            ("asleep", self._sleep),
        )
        of_store = (
            ("worker killed", self._kill_worker),
            ("keys changed", self._change_keys),
            ("certificate changed", self._change_certificate),
            ("wrong file", self._write_wrong_file),
            ("models created and removed", self._create_and_remove),
            ("unloaded", self._unload),
        )
        of_gateway = (
            ("prefill worker killed", self._kill_prefill_worker),
            ("engine of the prefill worker killed", self._kill_prefill_engine),
            ("engine killed", self._kill_decode_engine),
            ("cache of the decode worker emptied", self._empty_cache),
            ("worker killed", self._kill_decode_template),
        )
        await asyncio.gather(
            self._hit(self.servers["models"], of_models, until_time),
            self._hit(self.servers["store"], of_store, until_time),
            self._hit(self.servers["gateway"], of_gateway, until_time),
        )

    async def _hit(
        self,
        server: Server,
        faults: Sequence[tuple[str, Callable[[Server, random.Random], Awaitable[None]]]],
        until_time: float,
    ) -> None:
        rng = random.Random(f"{self.seed} {server.name}")
        order: list[int] = []
        while time.monotonic() < until_time:
            await asyncio.sleep(PAUSE_SECONDS)
            # Each of them once, in another order each time.
            order = order or rng.sample(range(len(faults)), len(faults))
            name, happen = faults[order.pop()]
            fault = Fault(name, server.name, time.monotonic())
            self.happened.append(fault)
            try:
                await happen(server, rng)
            except (AssertionError, httpx.HTTPError) as error:
                self.mistakes.append(f"{name}: {error!r}"[:500])
            fault.ended = time.monotonic()

    # --- processes ---

    async def _kill_front_end(self, server: Server, rng: random.Random) -> None:
        await _kill(server, FRONT_END, rng)
        await until(lambda: len(server.processes(FRONT_END)) == FRONT_ENDS)
        await asyncio.to_thread(_wait_until_ready, server)

    async def _kill_engine(self, server: Server, rng: random.Random) -> None:
        if self._may_kill_engine(server):
            await _kill(server, ENGINE, rng)
            await asyncio.to_thread(_wait_until_ready, server)

    def _may_kill_engine(self, server: Server) -> bool:
        kills, now = self._engine_kills[server.name], time.monotonic()
        if kills and now - kills[-1] >= KILL_MEMORY_SECONDS:
            kills.clear()
        if len(kills) >= MOST_ENGINE_KILLS:
            return False
        kills.append(now)
        return True

    async def _kill_worker(self, server: Server, rng: random.Random) -> None:
        """One that renders chat templates or reads grammars."""
        await _kill(server, WORKER, rng)

    # --- workers of a gateway ---

    async def _kill_prefill_worker(self, gateway: Server, rng: random.Random) -> None:
        """The whole server, while it computes prompts. A service manager starts it again."""
        prefill = self.servers[PREFILL]
        await self._empty_cache(gateway, rng)
        await asyncio.sleep(rng.random() / 2)
        processes = prefill.processes()
        prefill.process.kill()
        await asyncio.to_thread(prefill.process.wait)
        _, alive = await asyncio.to_thread(psutil.wait_procs, processes, END_SECONDS)
        assert not alive, f"the prefill worker left {alive}"
        await asyncio.sleep(rng.random())
        prefill.start()
        await until(prefill.is_ready)

    async def _kill_prefill_engine(self, gateway: Server, rng: random.Random) -> None:
        prefill = self.servers[PREFILL]
        if self._may_kill_engine(prefill):
            await self._empty_cache(gateway, rng)
            await asyncio.sleep(rng.random() / 2)
            await _kill(prefill, ENGINE, rng)
            await until(prefill.is_ready)

    async def _kill_decode_engine(self, gateway: Server, rng: random.Random) -> None:
        decode = self.servers[DECODE]
        if self._may_kill_engine(decode):
            await _kill(decode, ENGINE, rng)
            # The gateway notices later than the worker that it answers again.
            await asyncio.to_thread(_wait_until_ready, gateway)

    async def _kill_decode_template(self, gateway: Server, rng: random.Random) -> None:  # noqa: ARG002
        await _kill(self.servers[DECODE], WORKER, rng)

    async def _empty_cache(self, gateway: Server, rng: random.Random) -> None:  # noqa: ARG002
        """Each prompt is computed by the prefill worker once more."""
        with self.servers[DECODE].client() as client:
            (await asyncio.to_thread(client.post, f"/reset_prefix_cache?model={MODEL}")).raise_for_status()

    # --- files ---

    async def _change_keys(self, server: Server, rng: random.Random) -> None:
        place = rng.randrange(len(server.keys))
        server.keys[place] = f"key-of-clients-{rng.getrandbits(64):x}"
        server.write()
        await _reload(server, ["keys"])

    async def _change_certificate(self, server: Server, rng: random.Random) -> None:  # noqa: ARG002
        server.renew_certificate()
        await _reload(server, ["certificate"])

    async def _change_options(self, server: Server, rng: random.Random) -> None:
        """Other limits, and another name for a model, which no client uses."""
        changed, options = f"max_body = {rng.randrange(1, 100) * 100_000}", server.options
        server.options = f'{changed}\n{options}extra = "{rng.choice((MODEL, EMBEDDING))}"\n'
        server.write()
        await _reload(server, ["max_body", "aliases"])
        server.options = options
        server.write()
        await _reload(server, ["max_body", "aliases"])

    async def _write_wrong_file(self, server: Server, rng: random.Random) -> None:
        """A server that reads a file with a mistake stays as it is."""
        server.write(
            rng.choice(("max_bodies = 1", 'host = "0.0.0.0"', 'tls_cert = "nothing.pem"', "=", 'models = ["nothing"]'))
        )
        line = await asyncio.to_thread(server.hang_up)
        assert line["event"] == "reload_refused", line
        server.write()

    # --- models ---

    async def _sleep(self, server: Server, rng: random.Random) -> None:
        with_client = server.client()
        with with_client as client:
            (await asyncio.to_thread(client.post, f"/sleep?model={MODEL}")).raise_for_status()
            await asyncio.sleep(rng.random())
            (await asyncio.to_thread(client.post, f"/wake_up?model={MODEL}")).raise_for_status()

    async def _create_and_remove(self, server: Server, rng: random.Random) -> None:
        """Models that no client uses, which share the files of the others."""
        name = f"made-{rng.randrange(3)}"
        with server.client() as client:
            body = {"model": name, "from": rng.choice(STORED), "system": str(rng.random()), "stream": False}
            (await asyncio.to_thread(client.post, "/api/create", json=body)).raise_for_status()
            copy = {"source": name, "destination": f"{name}:copy"}
            (await asyncio.to_thread(client.post, "/api/copy", json=copy)).raise_for_status()
            for each in (name, f"{name}:copy"):
                gone = await asyncio.to_thread(client.request, "DELETE", "/api/delete", json={"model": each})
                gone.raise_for_status()

    async def _unload(self, server: Server, rng: random.Random) -> None:
        """What Ollama's clients send to unload a model. The next request loads it again."""
        with server.client() as client:
            body = {"model": rng.choice(STORED), "keep_alive": 0}
            (await asyncio.to_thread(client.post, "/api/generate", json=body)).raise_for_status()


async def _kill(server: Server, part: str, rng: random.Random) -> None:
    found = server.processes(part)
    if not found:
        return
    victim = rng.choice(found)

    def has_ended() -> bool:
        try:
            return not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    # The process of a model may have ended with it.
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    await until(has_ended)


async def _reload(server: Server, changed: Sequence[str]) -> None:
    line = await asyncio.to_thread(server.hang_up)
    assert line["event"] == "reloaded", line
    assert line["changed"] == list(changed), line


def _wait_until_ready(server: Server) -> None:
    """All models of all front ends: each connection may reach another one."""
    ready = 0

    def is_ready() -> bool:
        nonlocal ready
        ready = ready + 1 if server.is_ready() and _answers(server) else 0
        return ready >= 4 * FRONT_ENDS

    wait_until(is_ready)


def _answers(server: Server) -> bool:
    with server.client(ADMIN_KEY) as client:
        try:
            found = [
                client.post("/tokenize", json={"model": MODEL, "prompt": "x"}),
                client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 1}),
            ]
            if server.name == "models":
                found.append(client.post("/v1/embeddings", json={"model": EMBEDDING, "input": "x"}))
        except httpx.HTTPError:
            return False
        return all(each.status_code == 200 for each in found)
