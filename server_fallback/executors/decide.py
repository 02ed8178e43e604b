"""/v1/decide over our own engine: the log-probability of each answer to typed questions about a context.

Questions, answers and calibrations are read by `web/src/shared/questions`, and `web/src/decide` does for the page what
this file does.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.shared.script import SharedScript

from ..engine.images import PromptImage
from ..engine.request import AnswerEnd, PromptLogprobs, TokenRequest, TokenSource
from ..schema.chat import Message, TextPart
from ..schema.decide import DecidedAnswer, DecideRequest, DecideResponse
from ..schema.encoding import EncodingUsage
from ..text.chat_prompt import Chat, ChatPrompt, read_chat
from ..text.requests import check_prompt
from ..text.thinking import SWITCH
from .executor import Call
from .text_model import TextModel

# More answers at once would only wait in the engine's queue, which other requests share.
ANSWERS_AT_ONCE = 32
MAX_KNOWN = 4096
# What a chat begins with whose answer's tokens are read.
OPENING = Message(role="user", content="x")
ReadPrompt = Callable[[Chat], Awaitable[ChatPrompt]]


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt, and the tokens of each answer to it."""

    prompt: Sequence[int]
    images: Sequence[PromptImage]
    answers: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Decider:
    """``read`` encodes a chat, ``arrive`` gives a position in the queue for requests that together make one answer.
    ``known``: the tokens of earlier answers, each with the one that ends its turn.
    """

    model: TextModel
    context: int
    source: TokenSource
    adapter: str | None
    read: ReadPrompt
    arrive: Callable[[], int]
    known: dict[str, Sequence[int]]

    async def decide(self, request: DecideRequest, call: Call) -> DecideResponse:
        """Raises RequestError, and the errors of the engine."""
        questions = questions_of(request)
        reading = reading_of(request, self.model.model)
        asked = SharedScript.of_thread().ask("askedQuestions", questions, reading)
        rows = await self._rows(messages_of(request), asked)
        tokens = sum(len(row.prompt) + sum(map(len, row.answers)) for row in rows)
        await call.expect(tokens)
        logprobs = await self._logprobs(rows, call)
        return answer_of(self.model, request, asked, logprobs, tokens)

    async def _rows(self, messages: Sequence[Message], asked: Sequence[Mapping[str, Any]]) -> list[Row]:
        template = self.model.tokenizer.chat_template
        variables = {SWITCH: False} if template is not None and SWITCH in template.source else {}
        known = await self._answers([answer for each in asked for answer in each["answers"]], variables)
        answers = [[known[answer] for answer in each["answers"]] for each in asked]
        SharedScript.of_thread().ask("requireDistinct", asked, answers)
        rows = list[Row]()
        for each, own in zip(asked, answers, strict=True):
            chat = self._chat(asking(messages, each["text"]), variables)
            prompt = await self.read(chat)
            if prompt.state != "content":
                raise RequestError(
                    "this model reasons before each answer, and its chat template cannot switch that off, so its "
                    "answers have no probabilities of their own; use another model",
                    param="model",
                )
            check_prompt([*prompt.ids, *max(own, key=len)], self.model.vocab_size, self.context, "context")
            rows.append(Row(prompt.ids, prompt.images, own))
        return rows

    def _chat(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> Chat:
        return read_chat(
            messages,
            variables=variables,
            images=self.model.images,
            hears=self.model.sounds is not None,
        )

    async def _answers(self, answers: Sequence[str], variables: Mapping[str, Any]) -> Mapping[str, Sequence[int]]:
        """The tokens of each answer. Each takes a rendering of the template, so they are kept."""
        missing = [answer for answer in dict.fromkeys(answers) if answer not in self.known]
        found = {answer: self.known[answer] for answer in answers if answer in self.known}
        if missing:
            opened = (await self.read(self._chat([OPENING], variables))).ids
            for answer in missing:
                found[answer] = await self._answer(answer, opened, variables)
            if len(self.known) + len(missing) > MAX_KNOWN:
                self.known.clear()
            self.known.update((answer, found[answer]) for answer in missing)
        return found

    async def _answer(self, answer: str, opened: Sequence[int], variables: Mapping[str, Any]) -> Sequence[int]:
        """The tokens of an answer and the one that ends a turn, as the model's chat template writes them. ``opened``:
        the prompt of an answer to `OPENING`.
        """
        chat = [OPENING, Message(role="assistant", content=answer)]
        ids = (await self.read(self._chat(chat, variables))).ids
        ends = self.model.eos_token_ids
        begun = ids[len(opened) :] if list(ids[: len(opened)]) == list(opened) else []
        end = next((index for index, token_id in enumerate(begun) if token_id in ends), 0)
        if end > 0:
            return begun[: end + 1]
        # A template that writes earlier answers in another way, or ends them with no token of its own.
        own = self.model.tokenizer.encode(answer, add_special_tokens=False, split_special_tokens=True)
        return [*own, *ends[:1]]

    async def _logprobs(self, rows: Sequence[Row], call: Call) -> list[list[float]]:
        """The log-probability of each answer. The first answer computes the context, then the first of each question
        the question, and then all others only themselves.
        """
        arrival, room = self.arrive(), asyncio.Semaphore(ANSWERS_AT_ONCE)
        found = [[math.nan] * len(row.answers) for row in rows]

        async def score(prompt: int, index: int) -> None:
            async with room:
                found[prompt][index] = await self._logprob(rows[prompt], index, call, arrival)

        places = [(prompt, index) for prompt, row in enumerate(rows) for index in range(len(row.answers))]
        first = [place for place in places if place == (0, 0)]
        of_questions = [place for place in places if place[1] == 0 and place[0] > 0]
        others = [place for place in places if place[1] > 0]
        for wave in (first, of_questions, others):
            async with asyncio.TaskGroup() as group:
                for place in wave:
                    group.create_task(score(*place))
        return found

    async def _logprob(self, row: Row, index: int, call: Call, arrival: int) -> float:
        answer = row.answers[index]
        request = TokenRequest(
            [*row.prompt, *answer],
            max_tokens=1,
            images=row.images,
            priority=call.priority,
            deadline=call.deadline,
            adapter=self.adapter,
            client=call.client,
            arrival=arrival,
            prompt_logprobs=len(answer),
        )
        total = math.nan
        async for item in self.source.generate(request):
            if isinstance(item, PromptLogprobs):
                total = math.fsum(item.values)
            if isinstance(item, AnswerEnd):
                break
        if not math.isfinite(total):
            raise RequestError("this model's engine computes no log-probabilities of prompts", param="model")
        return total


def answer_of(
    model: TextModel,
    request: DecideRequest,
    asked: Sequence[Mapping[str, Any]],
    logprobs: Sequence[Sequence[float]],
    tokens: int,
) -> DecideResponse:
    """The answer to a request whose questions were ``asked``, from the log-probabilities of each of its prompts.
    ``tokens``: of all prompts together.
    """
    questions, reading = questions_of(request), reading_of(request, model.model)
    decisions = SharedScript.of_thread().ask("readDecisions", questions, logprobs, reading)
    return DecideResponse(
        id=f"decide-{uuid4().hex}",
        created=int(time.time()),
        model=model.name,
        calibration_model=model.model,
        decisions={name: decided(decisions[name], asked, name) for name in questions},
        usage=EncodingUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def messages_of(request: DecideRequest) -> Sequence[Message]:
    """Raises RequestError unless exactly one of context and messages is given."""
    if (request.context is None) == (request.messages is None):
        raise RequestError("give exactly one of context and messages", param="context")
    if request.messages is not None:
        return request.messages
    return [Message(role="user", content=request.context)] if request.context else []


def asking(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """The messages with a question at their end: in the user's last message, after an empty line, or in one of its
    own. The page has the same.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return [*messages, Message(role="user", content=text)]
    added, content = f"\n\n{text}", last.content
    longer = [*content, TextPart(type="text", text=added)] if isinstance(content, list) else f"{content or ''}{added}"
    return [*messages[:-1], last.model_copy(update={"content": longer})]


def decided(decision: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], name: str) -> DecidedAnswer:
    """The decision about the question ``name``. Its probabilities have the question's order: in JavaScript, keys that
    are integers come first.
    """
    own, values = [each for each in asked if each["name"] == name], decision["probabilities"]
    labels = [each["key"].removeprefix(f"{name}/") for each in own]
    order = labels if decision["type"] == "labels" else own[0]["answers"]
    return DecidedAnswer.model_validate({**decision, "probabilities": {each: values[each] for each in order}})


def questions_of(request: DecideRequest) -> dict[str, Any]:
    return {name: question.model_dump(exclude_none=True) for name, question in request.questions.items()}


def reading_of(request: DecideRequest, model: str) -> dict[str, Any]:
    """How decisions are read, for `web/src/shared/questions/answers.ts`."""
    calibration = request.calibration
    return {
        "model": model,
        "calibration": None if calibration is None else calibration.model_dump(),
        "abstain_below": request.abstain_below,
    }


def fit_calibration(
    questions: Mapping[str, Any],
    examples: Sequence[Mapping[str, Any]],
    *,
    model: str | None = None,
    regularization: float = 1.0,
) -> dict[str, Any]:
    """A calibration from ``examples``, each {"decisions", "answers"}: what /v1/decide has answered about one context,
    and the right answers to some of its questions. ``model`` is the answers' ``calibration_model``; the calibration
    applies to no other one.

    ``regularization`` is the weight of the prior, by which nothing is changed. Raises RequestError.
    """
    options = {"model": model, "regularization": regularization}
    fitted: dict[str, Any] = SharedScript.of_thread().ask("fitCalibration", questions, examples, options)
    return fitted
