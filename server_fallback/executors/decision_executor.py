"""/v1/decide by a model with a decision head: a prompt for each question, which the model's template writes, and the
head's scores of its options at the end.

`web/src/shared/questions/head.ts` makes the variables of prompts and reads the scores, for the page too.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import EncodedText
from nearfar.compiler.shared.script import SharedScript

from ..schema.completions import AnswerRequest
from ..schema.decide import DecideRequest, DecideResponse
from ..schema.embeddings import EmbeddingRequest, EmbeddingResponse
from ..schema.rerank import RerankRequest, RerankResponse
from ..schema.score import ClassifyRequest, ClassifyResponse, ScoreRequest, ScoreResponse
from ..text.chat_prompt import Chat
from ..text.output import Output
from ..text.requests import check_length, check_prompt
from ..text.text_workers import TextWorkers
from .chat_prompts import chat_prompt
from .decide import answer_of, messages_of, questions_of, reading_of
from .encoder_executor import EncoderExecutor
from .executor import Call

# The template reads the variables alone.
MESSAGES = [{"role": "user", "content": ""}]


class DecisionExecutor(EncoderExecutor):
    """An `EncoderExecutor` that also `Decides`, and does nothing else. It owns ``workers`` too."""

    def __init__(self, *parts: Any, workers: TextWorkers, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._workers = workers

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:
        """Raises RequestError, and the errors of the engine."""
        assert self.model.classifier is not None
        assert self.model.classifier.decision is not None
        script, questions = SharedScript.of_thread(), questions_of(request)
        # Before anything is computed.
        asked = script.ask("askedQuestions", questions, reading_of(request, self.model.model))
        prompts = script.ask("headPrompts", questions, asdict(self.model.classifier.decision))
        state = self._state(request)
        texts = [await self._prompt({"state": state, "question": each["question"]}, call) for each in prompts]
        rows = (await self.encode(texts, call)).tolist()
        logprobs = script.ask("headLogprobs", prompts, rows)
        return answer_of(self.model, request, asked, logprobs, sum(len(text.ids) for text in texts))

    def _state(self, request: DecideRequest) -> str | list[dict[str, str]]:
        messages = messages_of(request)
        if request.messages is None:
            state: str | list[dict[str, str]] = request.context or ""
        else:
            given = [each.model_dump(exclude_none=True) for each in messages]
            state = SharedScript.of_thread().ask("headState", given)
        whole = state if isinstance(state, str) else "".join(each["content"] for each in state)
        check_length(self.model.tokenizer, whole, self.context, "context")
        return state

    async def _prompt(self, variables: dict[str, Any], call: Call) -> EncodedText:
        chat = Chat(MESSAGES, {"add_generation_prompt": True, "tools": None, "variables": variables})
        try:
            ids = list((await chat_prompt(self.model, self._workers, chat, self.context, call.client)).ids)
            check_prompt(ids, self.model.vocab_size, self.context, "context")
        except RequestError as error:
            raise RequestError(error.message, **{**error.details, "param": "context"}) from error
        return EncodedText(ids, [0] * len(ids), [])

    async def answer(self, request: AnswerRequest, call: Call, output: Output[Any]) -> None:  # noqa: ARG002
        raise _only_decides()

    async def embed(self, request: EmbeddingRequest, call: Call) -> EmbeddingResponse:  # noqa: ARG002
        raise _only_decides()

    async def rerank(self, request: RerankRequest, call: Call) -> RerankResponse:  # noqa: ARG002
        raise _only_decides()

    async def score(self, request: ScoreRequest, call: Call) -> ScoreResponse:  # noqa: ARG002
        raise _only_decides()

    async def classify(self, request: ClassifyRequest, call: Call) -> ClassifyResponse:  # noqa: ARG002
        raise _only_decides()

    async def close(self) -> None:
        await super().close()
        self._workers.close()


def _only_decides() -> RequestError:
    return RequestError(
        "this model answers typed questions and does nothing else; ask it with /v1/decide, or use another model",
        param="model",
    )
