"""nearfar gateway: answer each OpenAI request near or far, as a policy decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from nearfar.compiler.cli.output import new_console
from nearfar.compiler.runtime.errors import Unavailable

from ..api.app import create_app
from ..api.config import ApiConfig
from ..api.log import configure_logs, errors_in_log, set_level
from ..api.model_changes import ModelChanges
from ..api.server import bind, run_server
from ..api.traces import open_traces
from ..executors.local_opener import LocalOpener
from ..executors.local_options import LocalOptions
from ..executors.registry import Registry, default_name
from ..executors.transcriber import TranscriberByName
from ..router.decision.policy import Policy
from ..router.opening import HybridOpener
from ..router.private_speaker import PrivateSpeaker
from ..router.sides.far import Far
from ..router.sides.local_embedder import LocalEmbedder, require_encoder
from ..router.sides.local_encoder import LocalEncoder
from ..router.sides.local_finder import finder_of, require_finder
from ..schema.models import LoadRequest
from ..speech.speaker import Speaker, open_speaker
from .announcement import Announcement
from .options import Gateway
from .reload import Reload
from .serve import api_config
from .served_models import key_of

# Prompts that wait for the encoder at once.
WAITING_PROMPTS = 4096


def run(options: Gateway) -> None:
    """Raises RequestError for invalid options."""
    policy, far = Policy.read(options.policy), far_of(options, os.environ)
    components = require_encoder(policy, options.encoder)
    require_finder(policy, options.finder)
    announcement = Announcement(sys.stderr)
    config = gateway_config(options)
    speaker: Speaker | None = None
    if config.speaker is not None:
        speaker = open_speaker(config.speaker, config.speaker_api_key_env, os.environ, config.tls_ca)
        speaker = PrivateSpeaker(speaker, policy.private_check) if speaker.is_remote else speaker
    traces = open_traces(os.environ)
    # Bind before any slow work.
    listener = bind(options.host, options.port)
    local = LocalOptions(trust=options.trust)
    embedder = None
    if components is not None:
        # A prompt waits for its vector no longer than for near's first token, so all may wait.
        waiting = replace(local, max_waiting=WAITING_PROMPTS)
        embedder = LocalEmbedder(LocalOpener(waiting, announcement.progress), options.encoder or "", components)
    finder = None
    if options.finder is not None:
        # A chat waits for its entities before anything is decided, so all may wait.
        waiting = replace(local, max_waiting=WAITING_PROMPTS)
        check = partial(finder_of, options.finder)
        finder = LocalEncoder(LocalOpener(waiting, announcement.progress), options.finder, check)
    near = replace(local, receipt_key=options.receipt_key)
    opener = LocalOpener(near, announcement.progress, side="near")
    transcriber = None if options.transcriber is None else TranscriberByName(default_name(options.transcriber))
    registry = Registry(HybridOpener(opener, far, policy, embedder, transcriber, finder))
    loads = [LoadRequest(model=options.near, name=options.name)]
    if transcriber is not None and options.transcriber is not None:
        transcriber.models = registry
        loads.append(LoadRequest(model=options.transcriber))
    configure_logs(sys.stderr)
    set_level(config.log_level)
    reload = Reload(options, config, gateway_config) if Reload.has_files(options) else None

    async def started() -> None:
        try:
            with announcement.loading():
                for load in loads:
                    await ModelChanges(registry).load(load)
                if transcriber is not None:
                    await transcriber.check()
        except Unavailable:
            if registry.closed:
                # The server was stopped while the model loaded, which is not an error.
                return
            raise
        printed = routes(options.near, far, policy, options.encoder)
        new_console(soft_wrap=True).print(printed, highlight=False, markup=False)
        secure = config.tls_cert is not None
        announcement.serving(registry, listener.getsockname(), keyed=bool(config.keys.keys), secure=secure)
        if reload is not None:
            reload.has_begun.set()

    async def on_close() -> None:
        for encoder in (embedder, finder):
            if encoder is not None:
                await encoder.close()

    app = create_app(registry, config, traces, routed=True, on_close=on_close, speaker=speaker)
    with errors_in_log(sys.stderr):
        run_server(app, listener, started, None if reload is None else reload.of_server)


def gateway_config(options: Gateway) -> ApiConfig:
    """Raises RequestError."""
    config = api_config(options, os.environ)
    if options.transcriber is not None:
        config = replace(config, near_transcriber=default_name(options.transcriber))
    return config


def far_of(options: Gateway, environment: Mapping[str, str]) -> Far:
    api_key = key_of(environment, "--far-api-key-env", options.far_api_key_env)
    return Far(
        options.far,
        api_key,
        options.far_model,
        options.far_dialect,
        vision=options.far_vision,
        video=options.far_video,
        sound=options.far_sound,
        ca=options.access.tls_ca,
    )


def routes(near: str, far: Far, policy: Policy, encoder: str | None = None) -> str:
    """One line that states where requests are sent."""
    private = policy.private
    stays = [f"labelled {label}" for label in private.labels]
    if private.patterns:
        count = len(private.patterns)
        stays.append("that match the pattern" if count == 1 else f"that match one of {count} patterns")
    stay_near = f"; requests {' or '.join(stays)} stay near" if stays else ""
    masked = {"mask": "masked before they leave", "ask": "masked, and leave once confirmed", "near": "kept near"}
    masks = "" if private.masks is None else f"; private texts are {masked[private.masks.then]}"
    embeds = f"; {encoder} embeds the prompts" if encoder is not None else ""
    sides = f"near is {near}, far is {far.model or 'the model'} at {far.base_url}"
    return f"routing by {policy.mode}: {sides}{embeds}{stay_near}{masks}"
