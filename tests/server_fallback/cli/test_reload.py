"""What SIGHUP changes of a server that runs, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from certificates import write_certificate
from command_line import parsed
from fake_executor import FakeExecutor
from waiting import until

from nearfar.compiler.runtime.errors import BundleError
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.cli import reload as module
from nearfar.server_fallback.cli.reload import Reload, ServedModels
from nearfar.server_fallback.cli.serve import api_config
from nearfar.server_fallback.cli.served_models import load_requests
from nearfar.server_fallback.executors.executor import Executor, ExecutorState, Opening, UnknownModel
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.models import LoadRequest

FILE = 'models = ["a", "b"]\nmax_body = "1MB"\n[aliases]\ngpt = "a"\n'
KEY = '[[keys]]\nname = "web"\nkey = "sk-web-12345678"\n'


@dataclass
class Opener:
    """Every model but "torn" opens, with an executor of its own."""

    opened: dict[str, FakeExecutor] = field(default_factory=dict)

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            if model.endswith("torn"):
                raise BundleError("torn: shard 0 is missing")
            self.opened[model] = FakeExecutor(now=ExecutorState(ready=True, detail="cpu"))
            return self.opened[model]

        return Opening(name or model, 1, open_it)


class Running:
    """A server that was started with a file. ``configured`` are the configurations that it has had."""

    def __init__(self, file: Path, events: list[tuple[str, dict[str, Any]]]) -> None:
        self.file, self._events = file, events
        self.opener = Opener()
        self.registry = Registry(self.opener)
        self.options = parsed("serve", "--config", str(file))
        self.configured = [api_config(self.options, {})]
        self.error: Exception | None = None
        requests = load_requests(self.options, {})
        served = ServedModels(self.registry, requests, lambda options: load_requests(options, {}))
        self._reload = Reload(self.options, self.configured[0], lambda options: api_config(options, {}), served)
        self._requests = requests

    async def start(self) -> None:
        for request in self._requests:
            await self.registry.load(request)
        self._reload.has_begun.set()

    async def reload(self, text: str) -> tuple[str, dict[str, Any]]:
        """The event of the log and its fields."""
        self.file.write_text(text)

        async def configure(config: ApiConfig) -> None:
            if self.error is not None:
                raise self.error
            self.configured.append(config)

        await self._reload(configure)
        return self._events.pop()

    def names(self) -> list[str]:
        return sorted(card.id for card in self.registry.cards())


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    events = list[tuple[str, dict[str, Any]]]()
    monkeypatch.setattr(module, "log_event", lambda event, _level=0, **fields: events.append((event, fields)))
    file = tmp_path / "nearfar.toml"
    file.write_text(FILE)
    return Running(file, events)


def run(running: Running, work: Coroutine[Any, Any, None]) -> None:
    async def all_of_it() -> None:
        await running.start()
        await work
        await running.registry.close(0.0)
        assert all(executor.closed for executor in running.opener.opened.values())

    asyncio.run(all_of_it())


def test_keys_and_limits_change(running: Running) -> None:
    async def work() -> None:
        assert await running.reload(FILE) == ("reloaded", {"changed": []})
        changed = FILE.replace("1MB", "2MB").replace("[aliases]", "log_level = 'debug'\n[aliases]") + KEY
        assert await running.reload(changed) == ("reloaded", {"changed": ["max_body", "log_level", "keys"]})
        config = running.configured[-1]
        assert (config.max_body_bytes, config.log_level) == (2_000_000, "debug")
        assert config.keys.find("sk-web-12345678") is not None
        # Without keys, only this machine's host names may reach it.
        assert (running.configured[0].allowed_hosts != (), config.allowed_hosts) == (True, ())
        more = changed.replace("sk-web-12345678", "sk-new-12345678")
        assert await running.reload(more) == ("reloaded", {"changed": ["keys"]})

    run(running, work())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FILE.replace("1MB", "none"), "nearfar.toml:2: max_body: 'none' is not a size"),
        ("models = [", "is not TOML"),
        ("models = " + "[" * 100_000, "is not TOML"),
        (f"max_waiting = {'1' * 5000}\n{FILE}", "is not TOML"),
        (f"drain_seconds = {10**400}\n{FILE}", "drain_seconds: is too large for a number"),
        ('tls_cert = "a\\u0000b"\n' + FILE, "tls_cert: is no path: it has a NUL character"),
        ('tls_cert = "~no-such-user/x"\n' + FILE, "tls_cert: is no path: Could not determine home"),
        (FILE + "\n[[keys]]\nname = " + "[" * 100_000, "is not TOML"),
        ("port = 1\nmax_waiting = 7\n" + FILE.replace("1MB", "2MB"), "port, max_waiting: cannot change while"),
        ("tls_cert = 'none.pem'\n" + FILE, "none.pem: cannot be read"),
        (FILE.replace('"b"', '"b", "torn"').replace("1MB", "2MB") + KEY, "torn: shard 0 is missing"),
        (FILE.replace('"b"', '"c"').replace('gpt = "a"', 'gpt = "a"\nb = "c"\nc = "a"'), "the name 'c' is already"),
        (FILE.replace('gpt = "a"', 'gpt = "x"'), "nearfar.toml: aliases gpt=x: 'x' is not a model of this server"),
    ],
)
def test_a_configuration_that_is_wrong_or_cannot_be_taken_changes_nothing(
    running: Running, text: str, says: str
) -> None:
    async def work() -> None:
        event, fields = await running.reload(text)
        assert (event, says in fields["message"]) == ("reload_refused", True), fields
        assert running.names() == ["a", "b", "gpt"]
        assert running.configured[-1].max_body_bytes == 1_000_000
        assert running.configured[-1].keys.keys == ()
        assert running.registry._unnamed == set()
        # The next one is compared with the one that stayed.
        assert await running.reload(FILE.replace("1MB", "3MB")) == ("reloaded", {"changed": ["max_body"]})

    run(running, work())


def test_models_come_and_go_while_running_answers_end(running: Running) -> None:
    async def work() -> None:
        leaving = running.opener.opened["b"]
        leaving.now = ExecutorState(ready=True, detail="cpu", running=1)
        text = FILE.replace('["a", "b"]', '["a", "c"]').replace('gpt = "a"', 'gpt = "c"\nold = "a"')
        assert await running.reload(text) == ("reloaded", {"changed": ["models", "aliases"]})
        assert running.names() == ["a", "c", "gpt", "old"]
        assert await running.registry.executor("gpt") is running.opener.opened["c"]
        with pytest.raises(UnknownModel):
            await running.registry.executor("b")
        assert not leaving.closed
        leaving.now = ExecutorState(ready=True, detail="cpu")
        await until(lambda: leaving.closed)
        # What an admin has loaded stays.
        await running.registry.load(LoadRequest(model="mine"))
        assert (await running.reload(FILE))[0] == "reloaded"
        assert running.names() == ["a", "b", "gpt", "mine"]

    run(running, work())


def test_another_model_takes_a_name_without_a_moment_in_between(running: Running) -> None:
    folders = [running.file.parent / version / "chat" for version in ("v1", "v2")]
    for folder in folders:
        folder.mkdir(parents=True)
    seen = list[str]()

    async def watch() -> None:
        while True:
            found = await running.registry.executor("chat")
            seen.append(next(name for name, each in running.opener.opened.items() if each is found))
            await asyncio.sleep(0)

    async def work() -> None:
        first, second = ('models = ["' + f'{version}/chat"]\n[aliases]\ngpt = "chat"' for version in ("v1", "v2"))
        assert (await running.reload(f'max_body = "1MB"\n{first}'))[0] == "reloaded"
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        assert (await running.reload(f'max_body = "1MB"\n{second}'))[1] == {"changed": ["models"]}
        await until(lambda: seen[-1] == str(folders[1]))
        watching.cancel()
        assert await running.registry.executor("gpt") is running.opener.opened[str(folders[1])]
        await until(lambda: running.opener.opened[str(folders[0])].closed)
        torn = folders[0].parent / "torn"
        torn.mkdir()
        event, _ = await running.reload(f'max_body = "1MB"\n{second}'.replace("v2/chat", "v1/torn"))
        assert event == "reload_refused"
        assert running.names() == ["chat", "gpt"]

    run(running, work())


def test_a_certificate_that_a_front_end_refuses_leaves_the_models_as_they_were(running: Running) -> None:
    async def work() -> None:
        running.error = BundleError("no")
        assert (await running.reload(FILE.replace('"b"', '"b", "c"')))[0] == "reload_refused"
        assert running.names() == ["a", "b", "gpt"]
        assert running.opener.opened["c"].closed

    run(running, work())


def test_another_certificate_is_named_and_a_wrong_pair_is_refused(running: Running, tmp_path: Path) -> None:
    write_certificate(tmp_path, "first")
    text = f'tls_cert = "cert.pem"\ntls_key = "key.pem"\n{FILE}'
    running.file.write_text(text)
    secure = Running(running.file, running._events)

    async def work() -> None:
        assert await secure.reload(text) == ("reloaded", {"changed": []})
        first = (tmp_path / "cert.pem").read_bytes()
        write_certificate(tmp_path, "second")
        assert await secure.reload(text) == ("reloaded", {"changed": ["certificate"]})
        (tmp_path / "cert.pem").write_bytes(first)
        event, fields = await secure.reload(text)
        assert (event, "give a certificate with its chain" in fields["message"]) == ("reload_refused", True)
        event, fields = await secure.reload(FILE)
        assert (event, fields["message"].startswith("tls_cert: cannot change")) == ("reload_refused", True)

    run(secure, work())


def files(arguments: Sequence[str]) -> bool:
    return Reload.has_files(parsed("serve", "demo", *arguments))


def test_only_a_server_with_files_reloads(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    assert not files([])
    assert files(["--config", str(tmp_path / "c.toml")])
    assert files(["--api-keys", "keys.toml"])
    assert files(["--tls-cert", "cert.pem"])
