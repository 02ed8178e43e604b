"""The servers under test: `nearfar serve` with the demo model (tools, three adapters) and an embedding model, and a
gateway.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from recording_proxy import RecordingProxy, recording_proxy
from serving_process import NEARFAR, START_SECONDS, Process, gateway, nearfar_serve
from tiny_adapters import SELF_ATTENTION, make_adapter
from tiny_models import make_embedding_checkpoint

from nearfar.compiler.demo import CHECKPOINT

from .honest_requests import ADAPTERS, EMBEDDING, MODEL

HONEST_KEYS = tuple(f"honest-key-{index}" for index in range(6))
ATTACKER_KEY, ADMIN_KEY = "attacker-key", "admin-key-0"
# The slow bodies use up all requests of their key, and would so protect the server from the other attacks.
SLOW_BODY_KEY = "slow-body-key"
# The demo model's template, extended with a system message, tools and their results.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<user>write <tool_call> for one of {% for tool in tools %}{{ tool | tojson }}{% "
    "endfor %}"
    "<end>{% endif %}"
    "{% for message in messages %}{{ '<assistant>' if message.role == 'assistant' else '<user>' }}"
    "{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
POLICY = {
    "version": 1,
    "mode": "prefer-far",
    "private": {"labels": ["private"], "patterns": ["\\b[0-9]{3}-[0-9]{2}-[0-9]{4}\\b"]},
}


@dataclass(frozen=True, slots=True)
class Soaked:
    """``far`` records every byte that the gateway sends to the server, which is its far side."""

    folder: Path
    server: Process
    gateway: Process | None
    far: RecordingProxy | None

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.server.process.pid)
        return [parent, *parent.children(recursive=True)]


@contextmanager
def soaked(folder: Path, threads: int, *, with_gateway: bool) -> Iterator[Soaked]:
    make_models(folder)
    (folder / "keys.toml").write_text(
        "\n".join(_key(key, key == ADMIN_KEY) for key in (*HONEST_KEYS, ATTACKER_KEY, SLOW_BODY_KEY, ADMIN_KEY))
    )
    (folder / "policy.json").write_text(json.dumps(POLICY))
    environment = {"NEARFAR_CACHE": str(folder / "cache")}
    models = [str(folder / "bundles" / MODEL), str(folder / EMBEDDING)]
    common = [
        "--threads",
        str(threads),
        "--api-keys",
        str(folder / "keys.toml"),
        "--kv-memory",
        "64MB",
    ]
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with ExitStack() as stack:
        server = stack.enter_context(nearfar_serve([*models, *common], folder / "server.log", admin, environment))
        for model in (MODEL, EMBEDDING):
            wait_until_loaded(server.url, model, admin)
        for name in ADAPTERS:
            body = {"lora_name": name, "lora_path": str(folder / name), "model": MODEL}
            httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, headers=admin, timeout=60).raise_for_status()
        if not with_gateway:
            yield Soaked(folder, server, None, None)
            return
        far = stack.enter_context(recording_proxy(int(server.url.rsplit(":", 1)[1])))
        environment |= {"FAR_KEY": HONEST_KEYS[0], "NEARFAR_THREADS": "1"}
        arguments = [
            "--near",
            str(folder / MODEL),
            "--far",
            far.url,
            "--far-model",
            MODEL,
            "--far-api-key-env",
            "FAR_KEY",
        ]
        arguments += ["--policy", str(folder / "policy.json")]
        yield Soaked(folder, server, stack.enter_context(gateway(arguments, folder / "gateway.log", environment)), far)


def wait_until_loaded(url: str, model: str, headers: dict[str, str]) -> None:
    """Wait until all models are loaded; a server lists them earlier."""
    give_up = time.monotonic() + START_SECONDS
    while httpx.post(f"{url}/tokenize", json={"model": model, "prompt": "x"}, headers=headers).status_code != 200:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{model} was not loaded within {START_SECONDS:.0f} s")
        time.sleep(0.2)


def make_models(folder: Path) -> None:
    """Write the checkpoints and adapters unless they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MODEL).exists():
        write_model(folder / MODEL, TEMPLATE)
    bundle = folder / "bundles" / MODEL
    if not bundle.exists():
        # --lora-rank of `nearfar serve` would apply to the embedding model too, which has no adapters.
        bundle.parent.mkdir(exist_ok=True)
        command = [*NEARFAR, "compile", str(folder / MODEL), "-o", str(bundle), "--target", "cpu", "--lora-rank", "4"]
        subprocess.run(command, check=True)
    for index, name in enumerate(ADAPTERS):
        if not (folder / name).exists():
            make_adapter(folder / name, CHECKPOINT, SELF_ATTENTION[: index + 1], rank=index + 1, alpha=4, seed=index)
    if not (folder / EMBEDDING).exists():
        make_embedding_checkpoint(folder / EMBEDDING)


def write_model(folder: Path, template: str) -> None:
    """Write the demo model's checkpoint with another chat template."""
    unfinished = folder.with_name(f"unfinished-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(CHECKPOINT, unfinished)
    config = json.loads((unfinished / "tokenizer_config.json").read_text())
    (unfinished / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    unfinished.rename(folder)


def _key(key: str, admin: bool) -> str:
    return f'[[keys]]\nname = "{key}"\nkey = "{key}"\nadmin = {str(admin).lower()}\n'
