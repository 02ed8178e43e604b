"""Derive from the options of `nearfar serve` the opener, and the models to load with their names."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Opener, Opening
from ..executors.local_opener import LocalOpener, Progress
from ..executors.local_options import LocalOptions
from ..executors.registry import default_name
from ..executors.upstream_executor import UpstreamOpener, UpstreamOptions, only_model
from ..executors.vllm import NodeOptions, VllmOpener, VllmOptions
from ..pipelines.plan import make_plan
from ..schema.models import LoadRequest
from .node import node_key
from .options import Serve, Upstreams


def make_opener(options: Serve, environment: Mapping[str, str], progress: Progress) -> Opener:
    """Raises RequestError."""
    others, hang_seconds = options.others, options.access.hang_seconds
    shared, prefill = options.front_ends > 1, options.local.prefill
    if options.executor != "local" and options.local.watermark_key is not None:
        raise RequestError(
            f"--watermark-key marks answers of our own engine, and --executor is {options.executor}; leave it out"
        )
    prefill.require_consistent(options.executor, options.front_ends)
    api_key = key_of(environment, "--prefill-api-key-env", prefill.prefill_api_key_env)
    prefill = replace(prefill, api_key=api_key, ca=options.access.tls_ca)
    local = replace(options.local, own_process=True, hang_seconds=hang_seconds, shared=shared, prefill=prefill)
    local.kv_tiers.require_consistent()
    if options.executor != "local" and local.kv_tiers.any:
        raise RequestError(
            f"--kv-host-memory, --kv-disk: the program of --executor {options.executor} keeps its pages to itself and "
            "has options of its own for them; remove these"
        )
    if options.executor == "upstream":
        return with_transcriber(options, UpstreamOpener(upstream_options(options, environment)), local, progress)
    if others.upstream:
        raise RequestError("--upstream names the server that runs the model; add --executor upstream")
    if options.executor == "vllm":
        vllm = VllmOptions(
            "",
            "",
            others.tensor_parallel_size,
            others.pipeline_parallel_size,
            others.data_parallel_size,
            arguments=tuple(shlex.split(others.vllm_arguments)),
            nodes=node_options(others, environment),
            hang_seconds=hang_seconds,
        )
        return with_transcriber(options, VllmOpener(vllm), local, progress)
    return LocalOpener(local, progress)


def with_transcriber(options: Serve, others: Opener, local: LocalOptions, progress: Progress) -> Opener:
    """``others`` for all models but the transcriber, which runs on this machine."""
    if options.transcriber is None:
        return others
    return TranscriberOpener(options.transcriber, LocalOpener(local, progress), others)


class TranscriberOpener:
    """Implements `Opener`."""

    def __init__(self, transcriber: str, local: Opener, others: Opener) -> None:
        self._transcriber, self._local, self._others = transcriber, local, others

    async def prepare(self, model: str, name: str | None) -> Opening:
        opener = self._local if model == self._transcriber else self._others
        return await opener.prepare(model, name)


def node_options(options: Upstreams, environment: Mapping[str, str]) -> NodeOptions | None:
    """None for one machine. Raises RequestError for several without an address or a key."""
    if options.nodes == 1:
        return None
    if options.node_address is None:
        raise RequestError("--nodes: the other machines need the address of this one: --node-address HOST")
    host, port = options.node_address
    return NodeOptions(options.nodes, host, port, options.master_port, node_key(environment))


def upstream_options(options: Serve, environment: Mapping[str, str]) -> UpstreamOptions:
    """Raises RequestError."""
    others = options.others
    if not others.upstream:
        raise RequestError("--executor upstream needs the server's address: --upstream http://host:port")
    api_key = key_of(environment, "--upstream-api-key-env", others.upstream_api_key_env)
    prefill = options.local.prefill
    if prefill.prefill_from and others.dialect != "nearfar":
        raise RequestError(
            "--prefill-from: only upstream servers of nearfar have prefill workers; add --dialect nearfar"
        )
    return UpstreamOptions(
        others.upstream,
        "",
        dialect=others.dialect,
        api_key=api_key,
        context=options.local.context,
        prefill_urls=prefill.prefill_from,
        prefill_api_key=key_of(environment, "--prefill-api-key-env", prefill.prefill_api_key_env),
        prefill_tokens=prefill.prefill_tokens,
        ca=options.access.tls_ca,
    )


def key_of(environment: Mapping[str, str], flag: str, variable: str | None) -> str | None:
    """The key of another server, in the environment variable that an option names. Raises RequestError."""
    if variable is None:
        return None
    if not environment.get(variable):
        raise RequestError(f"{flag} {variable}: this environment variable is not set")
    return environment[variable]


def serves_store(options: Serve) -> bool:
    """Whether the models of the store are served, because no others are named."""
    return options.executor == "local" and not options.models and not options.pipeline


def load_requests(options: Serve, environment: Mapping[str, str]) -> list[LoadRequest]:
    """Raises RequestError for an alias of an unknown model. An alias may name its model as on the command line, or by
    the model's default name.
    """
    models = list(options.models)
    of_pipelines = pipeline_requests(options.pipeline, {default_name(model) for model in models})
    if not models and options.executor == "upstream":
        models = [asyncio.run(only_model(upstream_options(options, environment)))]
    if not models and not of_pipelines and not serves_store(options):
        raise RequestError(
            f"--executor {options.executor} needs a model: a bundle, a folder, or a name on the Hugging Face Hub"
        )
    by_name = {name: model for model in models for name in (model, default_name(model))}
    if options.transcriber is not None and options.transcriber not in models:
        models.append(options.transcriber)
    aliases: dict[str, list[str]] = {model: [] for model in models}
    for text in options.alias:
        alias, equals, name = text.partition("=")
        if not alias or not equals or name not in by_name:
            why = f"{name!r} is not a model of this server" if alias and name else "write NAME=MODEL"
            raise RequestError(f"--alias {text}: {why}; the models are {', '.join(by_name)}")
        aliases[by_name[name]].append(alias)
    given = [LoadRequest(model=model, aliases=names) for model, names in aliases.items()]
    return [*given, *of_pipelines]


def pipeline_requests(paths: Sequence[str], served: Collection[str]) -> list[LoadRequest]:
    """The pipelines, after the models that their files name and that are not ``served`` anyway. Raises RequestError."""
    if not paths:
        return []
    plans = {path: make_plan(Path(path)) for path in paths}
    models: dict[str, str] = {}
    for path, plan in plans.items():
        for name, model in plan.models():
            if models.setdefault(name, model) != model:
                raise RequestError(f"{path}: the model {name!r} is {model} here and {models[name]} in another pipeline")
    return [
        *(LoadRequest(model=model, name=name) for name, model in models.items() if name not in served),
        *(LoadRequest(model=path, name=plan.file.name) for path, plan in plans.items()),
    ]
