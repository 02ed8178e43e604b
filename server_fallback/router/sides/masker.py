"""Masker: what far receives in place of chats with private texts. It finds these texts, hides them, and restores them
in far's answers.

`web/src/shared/masks` has what is masked and restored; a model of this machine finds entities.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError, RequestError
from nearfar.compiler.shared.script import SharedScript

from ...executors.executor import CONFIRM_HEADER, Call
from ...schema.chat import ChatCompletionRequest, Message, ToolCallDelta
from ...schema.common import MaskedText
from ...schema.functions import FunctionCallDelta
from ...schema.score import Classification, ClassifyRequest
from ..decision.policy import MaskRules, Policy
from ..decision.situation import Situation
from .answer_piece import AnswerPiece
from .continued import format_type
from .finder import Classifies

# Texts whose entities are retained, so that a conversation's next turn does not search them again.
MAX_TEXTS = 256
# Those that the finder reads at once.
MAX_WINDOWS = 64
# For the search of a request's texts.
SEARCH_SECONDS = 20.0
MAX_CONFIRMED = 4096
# In texts of these formats, placeholders are possible.
FORMATS = (None, "text", "json_object", "json_schema")
# Called with what would leave; whether it may, for a policy whose ``private.masks.then`` is "ask".
Confirm = Callable[[Sequence[MaskedText]], Awaitable[bool]]
# Whoever sends a request is asked, by an error: a server has nobody else to ask.
AskedCaller = Literal["caller"]


@dataclass(eq=False, slots=True)
class MaskedChat:
    """A chat as far receives it. ``masks`` are a list of Mask of `web/src/shared/masks/placeholders.ts`; ``texts``
    those that differ from the request's own, or under a policy with ``strict`` masks all; ``left`` those that were
    sent.
    """

    request: ChatCompletionRequest
    masks: list[dict[str, Any]] = field(default_factory=list)
    texts: list[MaskedText] = field(default_factory=list)
    left: list[MaskedText] = field(default_factory=list)

    def sent(self, more: Sequence[MaskedText] = ()) -> ChatCompletionRequest:
        """The request, which is sent now."""
        self.left += [text for text in (*self.texts, *more) if text not in self.left]
        return self.request

    @property
    def preview(self) -> str:
        """The name of exactly these texts, by which a caller agrees to them: a SHA-256 in hexadecimal digits."""
        texts = [[text.path, text.text] for text in self.texts]
        return sha256(json.dumps(texts).encode()).hexdigest()

    def unconfirmed(self) -> RequestError:
        """The error that shows a caller what would leave, and how to agree."""
        return RequestError(
            f"the policy asks before texts leave this machine; error.masked has all that would leave. To agree, send "
            f"the request again with the header {CONFIRM_HEADER}: {self.preview}; to refuse, pin it to near",
            code="confirmation_required",
            param=CONFIRM_HEADER,
            confirm=self.preview,
            masked=[text.model_dump() for text in self.texts],
        )


@dataclass(frozen=True, slots=True)
class Stays:
    """A chat that must stay on this machine. ``field``: the path of the value that a strict policy does not let leave,
    if it is one.
    """

    field: str | None = None

    def explained(self, error: NearfarError) -> NearfarError:
        """An error of a request that nobody may or can answer, which names the field."""
        if self.field is None:
            return error
        advice = "remove it, or let near answer: the policy's private.masks are strict"
        message = f"{self.field}: may not leave; {advice} ({error.message})"
        return type(error)(message, **{**error.details, "param": self.field})


@dataclass(frozen=True, slots=True)
class MaskedAnswer:
    """The part of an answer that far continues, and all masks."""

    text: str
    reasoning: str
    masks: list[dict[str, Any]]
    changed: list[MaskedText]


def restored_text(masks: Sequence[Mapping[str, str]], text: str) -> str:
    """A text that came back, with the private texts."""
    [whole, _] = SharedScript.of_thread().ask("restore", list(masks), "text", None, text, True)
    return str(whole)


class Masker:
    """``is_private`` and ``matches`` are those of `Sides` for patterns and labels alone. ``finder`` finds entities, and
    stays the caller's to close. ``confirm`` is asked what may leave; "caller": whoever sends the request.
    """

    def __init__(
        self,
        policy: Policy,
        is_private: Callable[[Situation], Awaitable[bool]],
        matches: Callable[..., Awaitable[bool]],
        finder: Classifies | None = None,
        confirm: Confirm | AskedCaller | None = None,
    ) -> None:
        assert policy.private.masks is not None
        self._rules: MaskRules = policy.private.masks
        self._ignore_case, self._is_private, self._matches = policy.private.ignore_case, is_private, matches
        self._finder, self._confirm = finder, confirm
        self._entities: OrderedDict[str, list[Any]] = OrderedDict()
        # The last texts that the application has agreed to, in their order.
        self._confirmed = dict[str, None]()

    @property
    def asks(self) -> bool:
        """Whether the application has to agree to what leaves."""
        return self._rules.then == "ask"

    @property
    def strict(self) -> bool:
        """Whether only listed fields leave, of which each is shown."""
        return self._rules.strict

    async def mask(
        self,
        request: ChatCompletionRequest,
        situation: Situation,
        situated: Callable[[ChatCompletionRequest], Awaitable[Situation]],
        call: Call,
    ) -> MaskedChat | Stays:
        """The chat for far. ``situated`` is ``situation`` with the texts of another request.

        Raises DeadlineExceeded.
        """
        unmasked: list[MaskedText] = []
        if self.strict:
            request, field = self._listed(request)
            if field is not None:
                return Stays(field)
            unmasked = [MaskedText(**each) for each in self._ask("unmaskedTexts", as_json(request))]
        given = [message.model_dump(by_alias=True, exclude_none=True) for message in request.messages]
        texts: list[str] = self._ask("maskableTexts", given)
        found = await self._find([*texts, *(each.text for each in unmasked)], call)
        if found is None:
            return Stays()
        entities = [[text, found[text]] for text in texts]
        masked = self._ask("maskMessages", self._rules.model_dump(), self._ignore_case, given, entities)
        masks = [] if masked is None else masked["masks"]
        for each in unmasked:
            if await self._has_private(each.text, masks, found[each.text]):
                return Stays(each.path)
        if masked is None:
            if await self._is_private(await situated(request) if self.strict else situation):
                return Stays()
            return MaskedChat(request, texts=self._all_texts(request))
        if self._rules.then == "near" or request.logprobs or format_type(request) not in FORMATS:
            return Stays()
        pairs = zip(request.messages, given, masked["messages"], strict=True)
        messages = [own if before == now else Message.model_validate(now) for own, before, now in pairs]
        hidden = request.model_copy(update={"messages": messages})
        sent = await situated(hidden)
        parts = [list(each.parts) or [each.content] for each in sent.messages]
        groups = [*parts, [part for own in parts for part in own], *([each] for each in sent.texts)]
        if await self._is_private(sent) or self._ask("hasMasked", masks, groups):
            return Stays()
        return MaskedChat(hidden, masks, self._all_texts(hidden) or [MaskedText(**each) for each in masked["texts"]])

    def _listed(self, request: ChatCompletionRequest) -> tuple[ChatCompletionRequest, str | None]:
        """The part of a request that may leave under strict masks, and the path of what keeps it here."""
        found = self._ask("strictRequest", as_json(request))
        if found["refused"] is not None:
            return request, found["refused"]
        return ChatCompletionRequest.model_validate({**found["params"], "model": request.model}), None

    def _all_texts(self, request: ChatCompletionRequest) -> list[MaskedText]:
        """All that leaves under strict masks; none under others."""
        return [MaskedText(**each) for each in self._ask("leavingTexts", as_json(request))] if self.strict else []

    async def _has_private(self, text: str, masks: list[dict[str, Any]], entities: Sequence[Any]) -> bool:
        """Whether a text that is not masked matches, has one of its entities, or has what is masked elsewhere."""
        labels = {each.label for each in self._rules.entities}
        if any(each["label"] in labels for each in entities):
            return True
        return await self._matches(text) or bool(self._ask("hasMasked", masks, [[text]]))

    @property
    def asks_caller(self) -> bool:
        return self._confirm == "caller"

    async def may_leave(self, chat: MaskedChat, confirmed: str | None = None) -> bool:
        """Whether the application, or the caller by the preview that was ``confirmed``, agrees that far receives these
        texts. The application is asked about each of them once.
        """
        if self._rules.then != "ask" or all(each.text in self._confirmed for each in chat.texts):
            return True
        if self._confirm is None or self._confirm == "caller":
            return confirmed == chat.preview
        agreed = await self._confirm(chat.texts) is True
        if agreed:
            self._confirmed.update(dict.fromkeys(each.text for each in chat.texts))
            while len(self._confirmed) > MAX_CONFIRMED:
                del self._confirmed[next(iter(self._confirmed))]
        return agreed

    async def continuation(self, chat: MaskedChat, text: str, reasoning: str, call: Call) -> MaskedAnswer | None:
        """Near's answer with the masks of its chat; None if it must not leave."""
        masks, changed = chat.masks, []
        hidden = {"reasoning": reasoning, "text": text}
        for name, own in hidden.items():
            found = await self._find([own], call)
            if found is None:
                return None
            masked = self._ask("maskText", self._rules.model_dump(), self._ignore_case, own, found[own], masks)
            if len(masked["masks"]) > len(masks) and self._rules.then != "mask":
                return None
            # Nobody has agreed to it.
            if own and self.strict and self._rules.then == "ask":
                return None
            if masked["text"] != own or (own and self.strict):
                changed.append(MaskedText(path=f"answer.{name}", text=masked["text"]))
            masks, hidden[name] = masked["masks"], masked["text"]
        meets = await self._matches(chat.request.messages[-1].text, hidden["text"])
        if meets or (hidden["reasoning"] and await self._matches(hidden["reasoning"])):
            return None
        return MaskedAnswer(hidden["text"], hidden["reasoning"], masks, changed)

    async def _find(self, texts: Sequence[str], call: Call) -> dict[str, list[Any]] | None:
        """The entities of each text; None if the texts are too long, or the model fails or takes too long. Raises
        DeadlineExceeded.
        """
        entities: dict[str, list[Any]] = {text: [*self._entities.get(text, ())] for text in texts}
        if not self._rules.entities or self._finder is None:
            return entities
        unknown = [text for text in entities if text not in self._entities]
        windows = self._ask("searchedWindows", unknown)
        if windows is None:
            return None
        try:
            async with asyncio.timeout(SEARCH_SECONDS) as limit:
                for start in range(0, len(windows), MAX_WINDOWS):
                    part = windows[start : start + MAX_WINDOWS]
                    request = ClassifyRequest(model="finder", input=[window["text"] for window in part])
                    data = (await self._finder.classify(request, call)).data
                    for window, labelled in zip(part, data, strict=True):
                        entities[unknown[window["of"]]] += self._entities_of(window, labelled)
        except DeadlineExceeded:
            raise
        except NearfarError:
            return None
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        self._entities.update({text: entities[text] for text in unknown})
        while len(self._entities) > MAX_TEXTS:
            self._entities.popitem(last=False)
        return entities

    def _entities_of(self, window: dict[str, Any], labelled: Classification) -> list[Any]:
        if labelled.spans is None:
            raise RequestError("the finder finds no spans in a text; use a classifier of tokens", param="finder")
        at = utf16_indices(window["text"])
        spans = [{"label": each.label, "start": at[each.start], "end": at[each.end]} for each in labelled.spans]
        found: list[Any] = self._ask("entitiesOf", {"start": window["start"]}, spans)
        return found

    def _ask(self, name: str, *values: Any) -> Any:
        return SharedScript.of_thread().ask(name, *values)


def as_json(request: ChatCompletionRequest) -> dict[str, Any]:
    """A chat as JSON, without the name of its model and how its answer is delivered: far gets its own."""
    left_out = {"model", "stream", "stream_options", "n"}
    return request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=left_out)


def utf16_indices(text: str) -> Sequence[int]:
    """The index in UTF-16 of each character of a text, and of its end: those of `web/src/shared`."""
    if text.isascii():
        return range(len(text) + 1)
    indices = [0]
    for character in text:
        indices.append(indices[-1] + (2 if ord(character) > 0xFFFF else 1))
    return indices


async def restored(
    masks: list[dict[str, Any]], request: ChatCompletionRequest, pieces: AsyncGenerator[AnswerPiece, None]
) -> AsyncGenerator[AnswerPiece, None]:
    """The pieces of far's answer with the private texts, which come once their placeholders are complete. Citations,
    whose offsets depend on all of the text, come with the end.
    """
    script, pending = SharedScript.of_thread(), dict[str, Any]()
    form = "text" if format_type(request) in (None, "text") else "json"
    citations: list[Any] = []

    def restore(key: str, form: str, piece: str, *, last: bool) -> str:
        text: str
        text, pending[key] = script.ask("restore", masks, form, pending.get(key), piece, last)
        return text

    def restore_call(call: ToolCallDelta) -> ToolCallDelta:
        function = call.function
        if function is None or function.arguments is None:
            return call
        arguments = restore(f"call {call.index}", "json", function.arguments, last=False)
        return call.model_copy(update={"function": function.model_copy(update={"arguments": arguments})})

    def held_calls() -> list[ToolCallDelta]:
        rests = {key: restore(key, "json", "", last=True) for key in pending if key.startswith("call ")}
        return [
            ToolCallDelta(index=int(key.removeprefix("call ")), function=FunctionCallDelta(arguments=rest))
            for key, rest in rests.items()
            if rest
        ]

    async with aclosing(pieces):
        async for piece in pieces:
            last = piece.finish_reason is not None
            calls = [restore_call(call) for call in piece.tool_calls or ()]
            text = restore("text", form, piece.text, last=last)
            citations += piece.annotations or ()
            own = script.ask("restoredCitations", masks, pending["text"], citations) if last else None
            yield replace(
                piece,
                text=text,
                reasoning=restore("reasoning", "text", piece.reasoning, last=last),
                tool_calls=[*calls, *(held_calls() if last else ())] or None,
                tokens=(),
                annotations=own or None,
            )
