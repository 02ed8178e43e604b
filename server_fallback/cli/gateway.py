"""nearfar gateway: answer each OpenAI request near or far, as a policy decides."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nearfar.compiler.cli.output import add_command
from nearfar.compiler.cli.sign import add_trust, trusted_keys
from nearfar.compiler.errors import RequestError, Unavailable

from .serve import add_access, api_config, require_libraries

if TYPE_CHECKING:
    from ..router.decision.policy import Policy
    from ..router.sides.far import Far

# Not the port of `nearfar serve`, which may be the far side on the same machine.
DEFAULT_PORT = 8001
# Prompts that wait for the encoder at once.
WAITING_PROMPTS = 4096


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands,
        "gateway",
        run,
        example="nearfar gateway --near demo --far http://host:8000 --policy policy.json",
    )
    parser.add_argument(
        "--near",
        required=True,
        metavar="MODEL",
        help="the model on this machine: a bundle, a Hugging Face folder or name, or demo",
    )
    add_trust(parser)
    parser.add_argument("--far", required=True, metavar="URL", help="the server of the far side")
    parser.add_argument("--policy", required=True, type=Path, metavar="FILE", help="the routing policy, as JSON")
    parser.add_argument(
        "--encoder",
        metavar="MODEL",
        help="the embedding model of a policy that was fitted with --features embedding, in any form that --near "
        "accepts, or demo-encoder",
    )
    parser.add_argument(
        "--far-api-key-env", metavar="NAME", help="the environment variable that holds the far server's API key"
    )
    parser.add_argument(
        "--far-model", metavar="NAME", help="the far server's name for its model (default: its only model)"
    )
    parser.add_argument(
        "--far-dialect",
        default="nearfar",
        help="the far server's kind: nearfar, vllm, or openai (default: %(default)s)",
    )
    parser.add_argument("--far-vision", action="store_true", help="the far server's model accepts images")
    parser.add_argument(
        "--name", metavar="NAME", help="the name of the pair in requests (default: the near model's name)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help="0 selects a free port (default: %(default)s)"
    )
    add_access(parser)


def run(options: argparse.Namespace) -> None:
    """Raises ToolError if the server's libraries are missing, and RequestError for invalid options."""
    require_libraries("gateway")
    from ..api.app import create_app
    from ..api.log import configure_logs
    from ..api.model_changes import ModelChanges
    from ..api.server import bind, run_server
    from ..api.traces import open_traces
    from ..executors.local_opener import LocalOpener, LocalOptions
    from ..executors.registry import Registry
    from ..router.decision.policy import Policy
    from ..router.opening import HybridOpener
    from ..router.sides.local_embedder import LocalEmbedder, require_encoder
    from ..schema.models import LoadRequest
    from .announcement import Announcement

    policy, far = Policy.read(options.policy), far_of(options, os.environ)
    components = require_encoder(policy, options.encoder)
    announcement = Announcement()
    config = api_config(options, os.environ)
    traces = open_traces(os.environ)
    # Bind before any slow work.
    listener = bind(options.host, options.port)
    local = LocalOptions(trust=tuple(trusted_keys(options)))
    embedder = None
    if components is not None:
        # A prompt waits for its vector no longer than for near's first token, so all may wait.
        waiting = replace(local, max_waiting=WAITING_PROMPTS)
        embedder = LocalEmbedder(LocalOpener(waiting, announcement.progress), options.encoder, components)
    registry = Registry(HybridOpener(LocalOpener(local, announcement.progress), far, policy, embedder))
    configure_logs(sys.stderr)

    async def started() -> None:
        try:
            with announcement.loading():
                await ModelChanges(registry).load(LoadRequest(model=options.near, name=options.name))
        except Unavailable:
            if registry.closed:
                # The server was stopped while the model loaded, which is not an error.
                return
            raise
        printed = routes(options.near, far, policy, options.encoder)
        Console(soft_wrap=True).print(printed, highlight=False, markup=False)
        announcement.serving(registry, listener.getsockname(), keyed=bool(config.keys.keys))

    on_close = None if embedder is None else embedder.close
    run_server(create_app(registry, config, traces, routed=True, on_close=on_close), listener, started)


def far_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Far:
    from ..executors.dialect import DIALECTS
    from ..router.sides.far import Far

    dialect = next((known for known in DIALECTS if known == options.far_dialect), None)
    if dialect is None:
        raise RequestError(f"--far-dialect {options.far_dialect}: unknown dialect; known: {', '.join(DIALECTS)}")
    variable = options.far_api_key_env
    if variable is not None and not environment.get(variable):
        raise RequestError(f"--far-api-key-env {variable}: this environment variable is not set")
    api_key = environment[variable] if variable is not None else None
    return Far(options.far, api_key, options.far_model, dialect, options.far_vision)


def routes(near: str, far: Far, policy: Policy, encoder: str | None = None) -> str:
    """One line that states where requests are sent."""
    private = policy.private
    stays = [f"labelled {label}" for label in private.labels]
    stays += [f"that match one of {len(private.patterns)} patterns"] if private.patterns else []
    stay_near = f"; requests {' or '.join(stays)} stay near" if stays else ""
    embeds = f"; {encoder} embeds the prompts" if encoder is not None else ""
    sides = f"near is {near}, far is {far.model or 'the model'} at {far.base_url}"
    return f"routing by {policy.mode}: {sides}{embeds}{stay_near}"
