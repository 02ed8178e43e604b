"""Opening a model on this machine: a bundle, or a checkpoint that is compiled into the cache on first use -> a LocalExecutor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nearfar.compiler.bundle import Bundle, open_bundle
from nearfar.compiler.compile import CompileOptions
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.manifest import MANIFEST_FILE
from nearfar.compiler.target import open_runner

from ..engine.config import EngineConfig
from ..engine.model import TokenModel
from ..engine.token_engine import TokenEngine
from .compile_process import compiled
from .devices import default_target, kv_memory_bytes
from .executor import Executor
from .local import LocalExecutor, TextModel
from .memory import plan_memory, weight_bytes
from .opening import Opening
from .registry import default_name

DEMO = "demo"
# Prompt tokens and decoded ones of a step together. More makes prefill faster, and lets those that decode wait longer.
STEP_TOKENS = {"cpu": 256, "cuda": 2048}
DEFAULT_SEQUENCES = {"cpu": 32, "cuda": 256}

# What is compiled, then as `compile_model` tells it.
Progress = Callable[[str, str, int, int], None]


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """``target`` None: a GPU where there is one, else the CPU. ``target`` to ``kv`` are for what is compiled; bundles have theirs.

    ``max_sequences`` None: DEFAULT_SEQUENCES. ``kv_memory_bytes`` None: a share of the device's memory.
    """

    target: str | None = None
    quantization: str = "q4f16"
    context: int | None = None
    kv: Literal["activation", "q8"] = "activation"
    max_sequences: int | None = None
    kv_memory_bytes: int | None = None
    max_waiting: int = 256


class LocalOpener:
    """Implements `Opener`. ``progress`` is told while a model is compiled."""

    def __init__(self, options: LocalOptions, progress: Progress = lambda *_: None) -> None:
        self._options, self._progress = options, progress

    async def prepare(self, model: str, name: str | None) -> Opening:
        """Raises BundleError, CheckpointError, RequestError and what else compiling raises."""
        options = self._options
        bundle = await self._bundle(model)
        target = bundle.manifest.target
        kv_bytes = options.kv_memory_bytes or kv_memory_bytes(target, weight_bytes(bundle.manifest))
        sequences = options.max_sequences or DEFAULT_SEQUENCES.get(target, 8)
        tokens = max(STEP_TOKENS.get(target, 64), sequences)
        memory = plan_memory(bundle.manifest, sequences=sequences, tokens=tokens, kv_bytes=kv_bytes)
        name = name or default_name(model)

        async def open_it() -> Executor:
            # Hashes, weights and libraries are read on a thread, so that those who are served meanwhile do not wait.
            runner = await asyncio.to_thread(open_runner, target, bundle, memory.limits)
            try:
                text = await asyncio.to_thread(TextModel.of, bundle, name)
                engine = TokenEngine(runner, TokenModel.of(bundle.manifest), EngineConfig(max_waiting=options.max_waiting))
            except BaseException:
                runner.close()
                raise
            return LocalExecutor(engine, text, memory_bytes=memory.total_bytes, device=runner.device)

        return Opening(name, memory.total_bytes, open_it)

    async def _bundle(self, model: str) -> Bundle:
        path = CHECKPOINT if model == DEMO else Path(model).expanduser()
        if (path / MANIFEST_FILE).is_file():
            return await asyncio.to_thread(open_bundle, path)
        options = self._options
        wanted = CompileOptions(
            target=options.target or default_target(),
            quantization=options.quantization,
            context=options.context,
            kv=options.kv,
            # It is for browsers, which meet GPUs that nobody tried.
            self_test=False,
        )
        name = str(path) if path.is_dir() else model
        place = await compiled(name, wanted, lambda phase, done, total: self._progress(model, phase, done, total))
        return await asyncio.to_thread(open_bundle, place)
