"""The executor of embedding models, rerankers and classifiers on our own engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nearfar.compiler.ir.tasks import task_of
from nearfar.compiler.runtime.batch import FloatArray
from nearfar.compiler.runtime.encoding import check_dimensions
from nearfar.compiler.runtime.errors import NearfarError, RequestError
from nearfar.compiler.runtime.text.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, search_prompt
from nearfar.compiler.runtime.text.tokenizer import EncodedText

from ..engine.encode_job import EncodeRequest
from ..engine.stats import EngineStats
from ..schema.completions import AnswerRequest
from ..schema.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse
from ..schema.encoding import EncodingRequest, EncodingUsage, text_of
from ..schema.rerank import ApiVersion, RerankMeta, RerankRequest, RerankResponse, RerankResult, RerankTokens
from ..schema.score import ClassifyRequest, ClassifyResponse, Score, ScoreRequest, ScoreResponse
from ..schema.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from ..text.classes import ZeroShot, classes
from ..text.embed_forms import encoded
from ..text.encoder_texts import TextReader
from ..text.output import Output
from ..text.scores import check_relevance, prompt_of, relevance, shortened, unit_rows
from ..text.token_labels import token_classification
from .executor import Abilities, Call, ExecutorState
from .local_share import LocalShare
from .text_model import TextModel


class EncodingEngine(Protocol):
    """The part of `engine.encoder_engine.EncoderEngine` that is needed here."""

    @property
    def context(self) -> int: ...

    async def encode(self, request: EncodeRequest) -> FloatArray: ...

    def stats(self) -> EngineStats: ...

    async def close(self, drain_seconds: float = 0.0, reason: NearfarError | None = None) -> None: ...


class EncoderExecutor:
    """An `Executor`, and `Encodes` and `Ranks`. It owns its engine and closes it in the end. ``share`` as in
    `LocalExecutor`.
    """

    def __init__(
        self,
        engine: EncodingEngine,
        model: TextModel,
        *,
        memory_bytes: int | None = None,
        device: str = "",
        share: LocalShare | None = None,
    ) -> None:
        self.share = share
        self.model = model
        self._engine, self._memory_bytes, self._device = engine, memory_bytes, device
        self._closed = False

    @property
    def context(self) -> int:
        return self._engine.context

    # --- texts to vectors and scores ---

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:
        spec = self.model.embedding
        if spec is None:
            raise RequestError("this model scores texts and makes no embeddings; use an embedding model", param="model")
        prefix = prompt_of(spec, request)
        check_dimensions(spec, request.dimensions)
        texts = await self._read(
            request, request.input, call.client, lambda reader: reader.texts(request.input, "input", prefix)
        )
        rows = await self.encode(texts, call)
        vectors = shortened(rows, spec, request.dimensions)
        as_text = request.encoding_format == "base64"
        return EmbeddingResponse(
            data=[
                Embedding(index=index, embedding=encoded(vector) if as_text else vector.tolist())
                for index, vector in enumerate(vectors)
            ],
            model=self.model.name,
            usage=_usage(texts),
        )

    async def rerank(self, request: RerankRequest, call: Call) -> RerankResponse:
        documents = [text_of(document) for document in request.documents]
        names = [f"documents[{index}]" for index in range(len(documents))]
        if not request.query:
            raise RequestError("query is empty; give at least one character", param="query")
        scores, usage = await self._relevance(
            request, [request.query] * len(documents), documents, names, call, request.max_tokens_per_doc
        )
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: request.top_n or None]

        return RerankResponse(
            id=f"rerank-{uuid.uuid4()}",
            model=self.model.name,
            results=[
                RerankResult(index=index, relevance_score=float(scores[index]), document=request.returned(index))
                for index in best
            ],
            usage=usage,
            meta=RerankMeta(api_version=ApiVersion(version="2"), tokens=RerankTokens(input_tokens=usage.prompt_tokens)),
        )

    async def score(self, request: ScoreRequest, call: Call) -> ScoreResponse:
        first, second = _listed(request.text_1), _listed(request.text_2)
        if len(first) not in (1, len(second)) or not second:
            raise RequestError(
                f"text_1 has {len(first)} texts and text_2 has {len(second)}; give one of text_1, or as many as of "
                "text_2",
                param="text_1",
            )
        names = [f"text_2[{index}]" for index in range(len(second))]
        for index, text in enumerate(first):
            if not text:
                raise RequestError("a text is empty; give at least one character", param=f"text_1[{index}]")
        first = first * len(second) if len(first) == 1 else first
        scores, usage = await self._relevance(request, first, second, names, call, None)
        return ScoreResponse(
            id=f"score-{uuid.uuid4()}",
            created=int(time.time()),
            model=self.model.name,
            data=[Score(index=index, score=float(score)) for index, score in enumerate(scores)],
            usage=usage,
        )

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:
        classifier = self.model.classifier
        if classifier is None:
            raise RequestError("this model makes embeddings and has no classes; use a classifier", param="model")
        if request.labels is not None:
            asked = ZeroShot.of(request, classifier)
            texts = await self._read(
                request,
                asked.pairs,
                call.client,
                lambda reader: reader.pairs(asked.pairs, asked.names, None, classifier, shortens_first=True),
            )
            data = asked.classes(await self.encode(texts, call))
        else:
            texts = await self._read(
                request,
                request.input,
                call.client,
                lambda reader: reader.texts(request.input, "input", offsets=classifier.per_token),
            )
            scores = await self.encode(texts, call)
            if classifier.per_token:
                given = [request.input] if isinstance(request.input, str) else request.input
                rows = np.split(scores, np.cumsum([len(text.ids) for text in texts])[:-1])
                # The spans of long texts take as long as many requests.
                data = [
                    await asyncio.to_thread(
                        token_classification, index, part if isinstance(part, str) else None, text, own, classifier
                    )
                    for index, (part, text, own) in enumerate(zip(given, texts, rows, strict=False))
                ]
            else:
                data = classes(scores, classifier)
        return ClassifyResponse(
            id=f"classify-{uuid.uuid4()}",
            created=int(time.time()),
            model=self.model.name,
            data=data,
            usage=_usage(texts),
        )

    async def encode(self, texts: Sequence[EncodedText], call: Call) -> FloatArray:
        """The engine's rows for texts that are read."""
        await call.expect(sum(len(text.ids) for text in texts))
        types = [text.token_types for text in texts]
        has_types = self.model.num_token_types > 0 and any(map(any, types))
        return await self._engine.encode(
            EncodeRequest(
                [text.ids for text in texts],
                types if has_types else None,
                client=call.client,
                priority=call.priority,
                deadline=call.deadline,
            )
        )

    async def vectors(self, texts: Sequence[str], call: Call, *, is_query: bool) -> FloatArray:
        """Vectors of length 1 (n, E) for a search, with the model's prompt for queries or documents."""
        spec = self.model.embedding
        if spec is None:
            raise RequestError("this model scores texts and makes no embeddings; use an embedding model", param="model")
        prefix = search_prompt(spec, QUERY_PROMPTS if is_query else DOCUMENT_PROMPTS)
        request = EncodingRequest(model=self.model.name, truncate=True)
        read = await self._read(request, texts, call.client, lambda reader: reader.texts(list(texts), "input", prefix))
        return unit_rows(await self.encode(read, call))

    async def _relevance(
        self,
        request: EncodingRequest,
        first: Sequence[str],
        second: Sequence[str],
        names: Sequence[str],
        call: Call,
        max_second: int | None,
    ) -> tuple[FloatArray, EncodingUsage]:
        """The relevance of each second text to its first one: a reranker's score, or the cosine of two embeddings."""
        spec, classifier = self.model.embedding, self.model.classifier
        if classifier is not None:
            check_relevance(classifier)
            pairs = list(zip(first, second, strict=True))
            read = await self._read(
                request, pairs, call.client, lambda reader: reader.pairs(pairs, names, max_second, classifier)
            )
            return relevance(await self.encode(read, call), classifier), _usage(read)
        assert spec is not None
        queries = list(dict.fromkeys(first))
        query_prompt, document_prompt = search_prompt(spec, QUERY_PROMPTS), search_prompt(spec, DOCUMENT_PROMPTS)

        def read_both(reader: TextReader) -> list[EncodedText]:
            return [
                *reader.texts(queries, "query", query_prompt),
                *reader.limited(max_second).texts(list(second), "documents", document_prompt),
            ]

        read = await self._read(request, [queries, second], call.client, read_both)
        vectors = unit_rows(await self.encode(read, call))
        of_query = {query: vectors[index] for index, query in enumerate(queries)}
        of_first = np.stack([of_query[text] for text in first])
        return np.einsum("ne,ne->n", of_first, vectors[len(queries) :]), _usage(read)

    async def _read(
        self, request: EncodingRequest, given: object, client: str, read: Callable[[TextReader], list[EncodedText]]
    ) -> list[EncodedText]:
        reader = TextReader.of(request, self.model.tokenizer, self.model.vocab_size, self.context)
        return await self.model.long_texts.run(given, client, lambda: read(reader))

    # --- the rest of an executor ---

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:  # noqa: ARG002
        does = "makes embeddings" if self.model.embedding is not None else "scores texts"
        raise RequestError(f"this model {does} and generates no text; use a model that generates text", param="model")

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        return await self.model.tokens_of_prompt(self.context, request)

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        return await self.model.text_of(request)

    def abilities(self) -> Abilities:
        model = self.model
        return Abilities(
            model.tokenizer_sha256,
            model.vocab_size,
            tools=False,
            embeds=True,
            model=model.model,
            task=task_of(model.embedding or model.classifier),
            identity=model.identity,
        )

    def state(self) -> ExecutorState:
        return ExecutorState.of(self._engine.stats(), self._device, self._memory_bytes, closed=self._closed)

    async def close(self) -> None:
        self._closed = True
        await self._engine.close()


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _usage(texts: Sequence[EncodedText]) -> EncodingUsage:
    tokens = sum(len(text.ids) for text in texts)
    return EncodingUsage(prompt_tokens=tokens, total_tokens=tokens)
