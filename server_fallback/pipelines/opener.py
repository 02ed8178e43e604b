"""Opens pipelines beside models: a model whose name ends in .json is the file of a pipeline."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nearfar.compiler.runtime.errors import RequestError

from ..executors.executor import Executor, Opener, Opening, Ranks, TellsAbilities, UnknownModel

if TYPE_CHECKING:
    from ..retrieval.store import StoreModel, VectorStore
    from .executor import PipelineExecutor, PipelineModels
    from .plan import Plan

SUFFIX = ".json"


class PipelineOpener:
    """Implements `Opener`. ``models`` are those that pipelines may use; set it before the first one is opened."""

    def __init__(self, inner: Opener) -> None:
        self._inner = inner
        self.models: PipelineModels | None = None

    async def prepare(self, model: str, name: str | None) -> Opening:
        """Raises RequestError for a mistake in a pipeline's file, and the errors of the inner opener."""
        path = Path(model).expanduser()
        if path.suffix != SUFFIX or path.is_dir():
            return await self._inner.prepare(model, name)
        from .plan import make_plan

        plan = make_plan(path)
        models, own_name = self.models, name or plan.file.name
        assert models is not None

        async def open_it() -> Executor:
            return await open_pipeline(plan, own_name, models)

        return Opening(own_name, None, open_it)


async def open_pipeline(plan: Plan, name: str, models: PipelineModels) -> PipelineExecutor:
    """Raises RequestError for a model that is not loaded or cannot do its step, and for a store that is missing or was
    made by another model.
    """
    from ..retrieval.store import VectorStore
    from .executor import PipelineExecutor
    from .schema import ChatStep, EmbedStep, RerankStep

    async with AsyncExitStack() as opened:
        contexts = []
        for step in plan.file.steps:
            where = f"{plan.path}: {step.output}"
            if isinstance(step, EmbedStep):
                (await _model(where, step.model, models)).check_embeds()
            elif isinstance(step, RerankStep):
                (await _model(where, step.model, models)).check_ranks()
            elif isinstance(step, ChatStep):
                found = await _model(where, step.model, models)
                found.check_chats()
                if step is plan.last:
                    contexts.append(found.executor.context)
        stores: dict[str, VectorStore] = {}
        for search, embedding in plan.searches():
            if search.store not in stores:
                store = await asyncio.to_thread(VectorStore.open, plan.store_path(search.store))
                opened.push_async_callback(asyncio.to_thread, store.close)
                stores[search.store] = store
            found = await _model(f"{plan.path}: {search.output}", embedding.model, models)
            stores[search.store].require_model(found.check_embeds())
        inner: dict[str, PipelineExecutor] = {}
        for key, each in plan.inner.items():
            inner[key] = await open_pipeline(each, each.file.name, models)
            opened.push_async_callback(inner[key].close)
        if not contexts:
            contexts = [inner[plan.last.pipeline].context]  # type: ignore[union-attr]
        executor = PipelineExecutor(plan, name, models, stores, inner, contexts[0])
        opened.pop_all()
    return executor


class _StepModel:
    """A model at the place where the pipeline names it."""

    def __init__(self, where: str, name: str, executor: Executor) -> None:
        self._where, self._name, self.executor = where, name, executor

    def check_embeds(self) -> StoreModel:
        from ..executors.encoder_executor import EncoderExecutor
        from ..retrieval.indexing import store_model

        if not isinstance(self.executor, EncoderExecutor):
            self._refuse("is not an embedding model on this machine; use one")
        return store_model(self.executor)

    def check_ranks(self) -> None:
        from ..executors.encoder_executor import EncoderExecutor

        if not isinstance(self.executor, Ranks):
            self._refuse("does not score texts; use a reranker or an embedding model")
        if isinstance(self.executor, EncoderExecutor):
            classifier = self.executor.model.classifier
            if classifier is not None and classifier.relevance is None:
                self._refuse("labels texts and does not score pairs; use a reranker or an embedding model")

    def check_chats(self) -> None:
        executor = self.executor
        if isinstance(executor, TellsAbilities) and executor.abilities().embeds:
            self._refuse("generates no text; use a model that does")

    def _refuse(self, what: str) -> NoReturn:
        raise RequestError(f"{self._where}: the model {self._name} {what}", param="model")


async def _model(where: str, name: str, models: PipelineModels) -> _StepModel:
    try:
        return _StepModel(where, name, await models.executor(name))
    except UnknownModel as error:
        raise RequestError(f"{where}: {error.message}", param="model") from error
