"""Hybrid: OpenAI's chat client over a pair of sides. Each answer has the route that it took.

hybrid = await Hybrid.create(near="demo", far=Far("http://host:8000"), policy={"version": 1, "mode": "prefer-near"})
answer = await hybrid.chat.completions.create(messages=[{"role": "user", "content": "what is 27 + 58?"}])
answer.choices[0].message.content, answer.route.side
await hybrid.close()
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from nearfar.compiler.runtime.errors import RequestError

from ..api.validation import validation_error
from ..executors.executor import Call, Executor, Transcribes
from ..executors.registry import default_name
from ..schema.chat import ChatCompletion, ChatCompletionChunk, Message
from ..schema.fold import ChatFold
from ..schema.functions import with_function_calls
from ..schema.routed import RoutedChatRequest, RoutedDecideRequest, RoutedDecideResponse
from ..text.output import Changed, Output, folded, streamed
from .decision.budget import Ledger
from .decision.policy import Policy
from .hybrid_executor import HybridExecutor
from .opening import open_hybrid
from .sides.embedder import Embedder
from .sides.far import Far
from .sides.finder import Classifies
from .sides.masker import Confirm, MaskedChat, restored_text
from .sides.sides import DeviceHints
from .sides.wire_speculation import WireCounts

RequestT = TypeVar("RequestT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Leaving:
    """Messages without their private texts. ``asks``: the application has to agree to what leaves."""

    chat: MaskedChat
    asks: bool

    @property
    def messages(self) -> Sequence[Message]:
        return self.chat.request.messages

    def restored(self, text: str) -> str:
        """A text that came back, with the private texts."""
        return restored_text(self.chat.masks, text) if self.chat.masks else text


class Hybrid:
    """``chat.completions.create`` accepts OpenAI's parameters and ours.

    Create it with `create`, use it in one event loop, and close it with `close`.
    """

    def __init__(self, executor: HybridExecutor, name: str) -> None:
        self.executor, self._name = executor, name
        self.chat = Chat(Completions(executor, name))

    @classmethod
    async def create(
        cls,
        *,
        near: str | Path | Executor | None = None,
        far: Far | None = None,
        policy: Policy | Mapping[str, Any] | Path | str,
        ledger: Ledger | None = None,
        hints: Callable[[], DeviceHints] = DeviceHints,
        embedder: Embedder | None = None,
        transcriber: Transcribes | None = None,
        finder: Classifies | None = None,
        confirm: Confirm | None = None,
        receipt_key: Path | None = None,
    ) -> Hybrid:
        """``near``: a bundle, a Hugging Face folder or name, "demo", or an executor, which `close` closes too.

        ``ledger`` None: a file in the cache folder, one for each far server, counts what the policy's budget allows.
        ``hints`` returns this machine's battery and temperature before each decision. ``embedder`` is required by a
        policy whose predictor reads embeddings. ``transcriber`` writes down sound on this machine, so that near answers
        about recordings, and for far, as the policy's ``private.media`` says; it stays the caller's to close.
        ``finder`` finds the entities of ``private.masks`` on this machine: an executor of a classifier of tokens, or
        a `Finder`; it stays the caller's to close too. ``confirm`` is asked what may leave if ``private.masks.then`` is
        "ask".
        ``receipt_key`` is a private key of `nearfar sign` for receipts of a near model that is opened here. Raises
        RequestError with the code "bad_policy", "api_version", "wrong_key" or "unknown_model", and the errors of
        opening the near model. An offline far side is not an error if near may answer.
        """
        name = default_name(str(near)) if isinstance(near, str | Path) else "hybrid"

        async def open_near() -> Executor:
            if not isinstance(near, str | Path):
                assert near is not None
                return near
            # This imports the engine and its libraries.
            from ..executors.local_opener import LocalOpener
            from ..executors.local_options import LocalOptions

            opening = await LocalOpener(LocalOptions(receipt_key=receipt_key), side="near").prepare(str(near), name)
            return await opening.open()

        opened_near = None if near is None else open_near
        executor = await open_hybrid(
            name, opened_near, far, Policy.read(policy), ledger, hints, embedder, transcriber, finder, confirm
        )
        return cls(executor, name)

    @property
    def speculation(self) -> WireCounts | None:
        """Counts of near's guesses for far; None if the policy has no speculation, or if one of the sides does not
        support it.
        """
        return self.executor.sides.speculation

    async def decide(
        self,
        context: str | Sequence[Any],
        questions: Mapping[str, Any],
        *,
        timeout_seconds: float | None = None,
        **rest: Any,
    ) -> RoutedDecideResponse:
        """Decide typed questions about a text or the messages of a chat. What near leaves open below ``abstain_below``,
        far decides, if the policy's ``escalation`` hands answers over and the request may leave.

        ``rest`` are the other parameters of `RoutedDecideRequest`. Raises as `chat.completions.create`.
        """
        about = {"context": context} if isinstance(context, str) else {"messages": context}
        given = {"model": self._name, "questions": questions, **about, **rest}
        request = validated(RoutedDecideRequest, given)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        return await self.executor.decide(request, Call(str(uuid4()), request.priority or 0, deadline))

    async def leaving(self, messages: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> Leaving | None:
        """Messages as the policy lets them leave this machine, for others than far; None if they must stay."""
        request = read_request({"model": self._name, "messages": messages, "labels": list(labels)})
        chat, masker = await self.executor.leaving(request, Call(str(uuid4()))), self.executor.sides.masker
        if chat is None:
            return None
        return Leaving(chat, asks=masker is not None and masker.asks and bool(chat.texts))

    async def close(self) -> None:
        await self.executor.close()

    async def __aenter__(self) -> Hybrid:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Chat:
    def __init__(self, completions: Completions) -> None:
        self.completions = completions


class Completions:
    """OpenAI's chat completions, of which each has its ``route``: the side that answered, and why."""

    def __init__(self, executor: HybridExecutor, name: str) -> None:
        self._executor, self._name = executor, name

    @overload
    async def create(
        self, *, stream: Literal[True], timeout_seconds: float | None = None, **parameters: Any
    ) -> AsyncGenerator[ChatCompletionChunk, None]: ...

    @overload
    async def create(
        self, *, stream: Literal[False] | None = None, timeout_seconds: float | None = None, **parameters: Any
    ) -> ChatCompletion: ...

    async def create(
        self, *, stream: bool | None = None, timeout_seconds: float | None = None, **parameters: Any
    ) -> ChatCompletion | AsyncGenerator[ChatCompletionChunk, None]:
        """A ChatCompletion, or with ``stream`` its chunks, the usage last; closing them ends the answer.

        ``parameters`` are those of `RoutedChatRequest`: OpenAI's, ``labels``, ``pin``, ``language`` and ``stake`` of
        the request, and ``labels`` in messages; ``model`` is optional. Raises RequestError for wrong parameters, and
        the error that stops the answer.
        """
        request = read_request({"model": self._name, **parameters})
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        call = Call(str(uuid4()), request.priority or 0, deadline)

        async def answer(output: Output[ChatCompletionChunk]) -> None:
            if request.functions is not None:
                output = Changed(output, with_function_calls)
            await self._executor.answer(request, call, output)

        return streamed(answer) if stream else await folded(answer, ChatFold())


def read_request(parameters: Mapping[str, Any]) -> RoutedChatRequest:
    return validated(RoutedChatRequest, parameters)


def validated(kind: type[RequestT], parameters: Mapping[str, Any]) -> RequestT:
    """Messages may be those of an earlier answer, as OpenAI's client accepts them too.

    Raises RequestError; ``param`` is the path of the value.
    """
    messages = parameters.get("messages")
    if isinstance(messages, Sequence):
        plain = [
            message.model_dump(exclude_none=True) if isinstance(message, BaseModel) else message for message in messages
        ]
        parameters = {**parameters, "messages": plain}
    try:
        return kind.model_validate(parameters)
    except ValidationError as error:
        refused = validation_error([{**each, "loc": ("body", *each["loc"])} for each in error.errors()], parameters)
        raise RequestError(refused.message, param=refused.param) from None
