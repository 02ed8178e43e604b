"""The output of `nearfar serve`: progress while models load, then the served models and an example request."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from nearfar.compiler.cli.output import megabytes, new_console
from nearfar.compiler.cli.phases import phases, progress_bars
from nearfar.compiler.cli.program import program
from nearfar.compiler.ir.tasks import Task
from nearfar.compiler.store.sources import DOWNLOAD

from ..executors.registry import Registry
from ..executors.stored_models import StoredModels
from ..log_event import log_event

QUESTION = "what is 27 + 58?"


class Announcement:
    """``progress`` is called while a model is compiled or downloaded. It is shown as bars, but as a line for each phase
    in the ``log`` of a server that is not a terminal.
    """

    def __init__(self, log: TextIO | None = None) -> None:
        self._has_log, self._phase = log is not None and not log.isatty(), ""
        self._bars: Progress | None = None
        self._report: Callable[[str, int, int], None] | None = None
        self._model: str | None = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        if self._has_log:
            yield
            return
        with progress_bars() as bars:
            self._bars = bars
            try:
                yield
            finally:
                # Models that are loaded later over HTTP are compiled without progress bars.
                self._bars = None

    def progress(self, model: str, phase: str, done: int, total: int) -> None:
        if self._has_log:
            # "start" is the time in which the compiler is loaded.
            if (model, phase) != (self._model, self._phase) and phase != "start":
                event = "model_downloading" if phase == DOWNLOAD else "model_compiling"
                log_event(event, model=model, phase=phase)
                self._model, self._phase = model, phase
            return
        if self._bars is None:
            return
        if model != self._model:
            self._model = model
            verb = "downloading" if phase == DOWNLOAD else "compiling"
            self._bars.console.print(f"{verb} {model} (first use only)", highlight=False, markup=False)
            self._report = phases(self._bars)
        assert self._report is not None
        self._report(phase, done, total)

    def serving(
        self,
        models: Registry | StoredModels,
        address: Any,
        *,
        keyed: bool,
        secure: bool = False,
        grpc_port: int | None = None,
        computes_prompts: bool = False,
    ) -> None:
        """``address`` is the listening socket's name. ``computes_prompts``: the server is a prefill worker, which
        refuses requests for answers.
        """
        host, port = address[:2]
        url = f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        console = new_console(soft_wrap=True)
        console.print(stored_table(models) if isinstance(models, StoredModels) else models_table(models))
        if isinstance(models, StoredModels) and not models.cards():
            console.print(
                f"the store has no models yet; {program()} pull MODEL gets one", highlight=False, markup=False
            )
        console.print(f"serving at {url}/v1, Ctrl-C stops", highlight=False, markup=False)
        if grpc_port is not None:
            console.print(f"gRPC on port {grpc_port}", highlight=False, markup=False)
        if not keyed and host not in ("127.0.0.1", "::1"):
            console.print(
                "anyone who reaches this address may send requests, because no keys are set; set them with "
                "--api-keys FILE",
                style="bold yellow",
            )
        if isinstance(models, StoredModels):
            console.print(f"for programs with Ollama's API: export OLLAMA_HOST={url}", highlight=False, markup=False)
            model = models.cards()[0].id if models.cards() else "MODEL"
            console.print(chat_curl(url, model, keyed=keyed), highlight=False, markup=False)
            return
        if computes_prompts:
            key = " --prefill-api-key-env NAME" if keyed else ""
            command = f"{program()} serve {models.cards()[0].id} --role decode --prefill-from {url}{key}"
            console.print(f"for decode workers, which answer: {command}", highlight=False, markup=False)
            return
        console.print(curl(url, models, keyed=keyed), highlight=False, markup=False)


def stored_table(models: StoredModels) -> Table:
    table = Table("model", "size", "made from")
    for model in models.store.models():
        table.add_row(escape(model.name), megabytes(model.size_bytes), escape(model.parent or ""))
    return table


def chat_curl(url: str, model: str, *, keyed: bool) -> str:
    """One line of curl that sends a chat."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
    key = ' -H "Authorization: Bearer $NEARFAR_API_KEY"' if keyed else ""
    return f"curl {url}/api/chat{key} -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"


def models_table(registry: Registry) -> Table:
    table = Table("model", "context", "memory", "on", "also called")
    states = registry.states()
    for card in registry.cards():
        if card.id != card.root:
            continue
        state = states[card.id]
        aliases = ", ".join(each.id for each in registry.cards() if each.root == card.id != each.id)
        memory = registry.memory_bytes(card.id)
        table.add_row(
            escape(card.id),
            f"{card.max_model_len:,}" if card.max_model_len else "",
            megabytes(memory) if memory else "",
            escape(state.detail),
            escape(aliases),
        )
    return table


def curl(url: str, registry: Registry, *, keyed: bool) -> str:
    """One line of curl that sends a request to the first model."""
    model = registry.cards()[0].id
    examples: dict[Task, tuple[str, dict[str, object]]] = {
        "generate": ("chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
        "embed": ("embeddings", {"input": QUESTION}),
        "rerank": ("rerank", {"query": QUESTION, "documents": ["27 + 58 = 85", "the capital of Peru is Lima"]}),
        "classify": ("classify", {"input": QUESTION}),
        "decide": (
            "decide",
            {"context": QUESTION, "questions": {"sum": {"type": "yes_no", "question": "Is it a sum?"}}},
        ),
    }
    key = ' -H "Authorization: Bearer $NEARFAR_API_KEY"' if keyed else ""
    task = registry.task(model)
    if task == "transcribe":
        return f"curl {url}/v1/audio/transcriptions{key} -F file=@SOUND.wav -F {shlex.quote(f'model={model}')}"
    route, fields = examples[task]
    body = {"model": model, **fields}
    return (
        f"curl {url}/v1/{route}{key} -H 'Content-Type: application/json' -d "
        f"{shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
