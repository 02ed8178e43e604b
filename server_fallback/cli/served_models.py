"""Derive from the options of `nearfar serve` the opener, and the models to load with their names."""

from __future__ import annotations

import argparse
import asyncio
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nearfar.compiler import quant
from nearfar.compiler.cli.sign import trusted_keys
from nearfar.compiler.errors import RequestError

from ..engine.text_queue import Batching
from ..executors.dialect import DIALECTS
from ..executors.executor import Opener
from ..executors.local_opener import LocalOpener, LocalOptions, Progress
from ..executors.registry import default_name
from ..executors.upstream_executor import UpstreamOpener, UpstreamOptions, only_model
from ..executors.vllm import NodeOptions, VllmOpener, VllmOptions
from ..schema.models import LoadRequest
from .node import node_key


def make_opener(options: argparse.Namespace, environment: Mapping[str, str], progress: Progress) -> Opener:
    """Raises RequestError."""
    if options.executor == "upstream":
        return UpstreamOpener(upstream_options(options, environment))
    if options.upstream:
        raise RequestError("--upstream names the server that runs the model; add --executor upstream")
    if options.executor == "vllm":
        sizes = {
            "tensor_parallel_size": options.tensor_parallel_size,
            "pipeline_parallel_size": options.pipeline_parallel_size,
        }
        arguments = tuple(shlex.split(options.vllm_arguments))
        nodes = node_options(options, environment)
        return VllmOpener(
            VllmOptions("", "", **sizes, arguments=arguments, nodes=nodes, hang_seconds=options.hang_seconds)
        )
    if options.quantization is not None:
        quant.by_name(options.quantization)
    return LocalOpener(
        LocalOptions(
            target=options.target,
            quantization=options.quantization,
            requantize=options.requantize,
            context=options.context,
            kv=options.kv,
            lora_rank=options.lora_rank,
            ignore_keys=tuple(options.ignore_keys),
            max_sequences=options.max_sequences,
            kv_memory_bytes=options.kv_memory,
            max_waiting=options.max_waiting,
            max_adapters=options.max_adapters,
            draft=options.draft,
            draft_tokens=options.draft_tokens,
            remote_drafts=options.remote_drafts,
            trust=tuple(trusted_keys(options)),
            batching=Batching(
                options.batch_delay_ms / 1000, options.batch_sizes, options.batch_tokens, options.batch_texts
            ),
            own_process=True,
            hang_seconds=options.hang_seconds,
            shared=options.front_ends > 1,
        ),
        progress,
    )


def node_options(options: argparse.Namespace, environment: Mapping[str, str]) -> NodeOptions | None:
    """None for one machine. Raises RequestError for several without an address or a key."""
    if options.nodes == 1:
        return None
    if options.node_address is None:
        raise RequestError("--nodes: the other machines need the address of this one: --node-address HOST")
    host, port = options.node_address
    return NodeOptions(options.nodes, host, port, options.master_port, node_key(environment))


def upstream_options(options: argparse.Namespace, environment: Mapping[str, str]) -> UpstreamOptions:
    if not options.upstream:
        raise RequestError("--executor upstream needs the server's address: --upstream http://host:port")
    dialect = next((known for known in DIALECTS if known == options.dialect), None)
    if dialect is None:
        raise RequestError(f"--dialect {options.dialect}: unknown dialect; known: {', '.join(DIALECTS)}")
    variable = options.upstream_api_key_env
    if variable is not None and not environment.get(variable):
        raise RequestError(f"--upstream-api-key-env {variable}: this environment variable is not set")
    return UpstreamOptions(
        urls=tuple(options.upstream),
        name="",
        dialect=dialect,
        api_key=environment[variable] if variable is not None else None,
        context=options.context,
    )


def load_requests(options: argparse.Namespace, environment: Mapping[str, str]) -> list[LoadRequest]:
    """Raises RequestError without a model, or for an alias of an unknown model. An alias may name its model as on the
    command line, or by the model's default name.
    """
    models = list(options.models)
    of_pipelines = pipeline_requests(options.pipeline, {default_name(model) for model in models})
    if not models and options.executor == "upstream":
        models = [asyncio.run(only_model(upstream_options(options, environment)))]
    if not models and not of_pipelines:
        raise RequestError("nearfar serve needs a model: a bundle, a folder, a name on the Hugging Face Hub, or demo")
    by_name = {name: model for model in models for name in (model, default_name(model))}
    aliases: dict[str, list[str]] = {model: [] for model in models}
    for text in options.alias:
        alias, equals, name = text.partition("=")
        if not alias or not equals or name not in by_name:
            raise RequestError(f"--alias {text}: write NAME=MODEL, with one of the models {', '.join(by_name)}")
        aliases[by_name[name]].append(alias)
    given = [LoadRequest(model=model, aliases=names) for model, names in aliases.items()]
    return [*given, *of_pipelines]


def pipeline_requests(paths: Sequence[str], served: Collection[str]) -> list[LoadRequest]:
    """The pipelines, after the models that their files name and that are not ``served`` anyway. Raises RequestError."""
    if not paths:
        return []
    from ..pipelines.plan import make_plan

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
