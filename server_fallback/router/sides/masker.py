"""Masker: what far receives in place of chats with private texts. It finds these texts, hides them, and restores them
in far's answers.

`web/src/shared/masks` has what is masked and restored; a model of this machine finds entities.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from nearfar.compiler.runtime.errors import DeadlineExceeded, NearfarError, RequestError
from nearfar.compiler.shared.script import SharedScript

from ...executors.executor import Call
from ...schema.chat import ChatCompletionRequest, Message, ToolCallDelta
from ...schema.functions import FunctionCallDelta
from ...schema.route import MaskedText
from ...schema.score import Classification, ClassifyRequest
from ..decision.policy import MaskRules, Policy
from ..decision.situation import Situation
from .answer_piece import AnswerPiece
from .continued import format_type
from .finder import Classifies

# Texts whose entities are retained, so that a conversation's next turn does not search them again.
MAX_TEXTS = 256
MAX_CONFIRMED = 4096
# In texts of these formats, placeholders are possible.
FORMATS = (None, "text", "json_object", "json_schema")
# Called with what would leave; whether it may, for a policy whose ``private.masks.then`` is "ask".
Confirm = Callable[[Sequence[MaskedText]], Awaitable[bool]]


@dataclass(eq=False, slots=True)
class MaskedChat:
    """A chat as far receives it. ``masks`` are a list of Mask of `web/src/shared/masks/placeholders.ts`; ``texts``
    those that differ from the request's own, and ``left`` those that were sent.
    """

    messages: list[Message]
    masks: list[dict[str, str]] = field(default_factory=list)
    texts: list[MaskedText] = field(default_factory=list)
    left: list[MaskedText] = field(default_factory=list)

    def sent(self, request: ChatCompletionRequest, more: Sequence[MaskedText] = ()) -> ChatCompletionRequest:
        """The request with these messages, which is sent now."""
        self.left += [text for text in (*self.texts, *more) if text not in self.left]
        return request.model_copy(update={"messages": self.messages})


@dataclass(frozen=True, slots=True)
class MaskedAnswer:
    """The part of an answer that far continues, and all masks."""

    text: str
    reasoning: str
    masks: list[dict[str, str]]
    changed: list[MaskedText]


class Masker:
    """``is_private`` and ``matches`` are those of `Sides` for patterns and labels alone. ``finder`` finds entities, and
    stays the caller's to close.
    """

    def __init__(
        self,
        policy: Policy,
        is_private: Callable[[Situation], Awaitable[bool]],
        matches: Callable[..., Awaitable[bool]],
        finder: Classifies | None = None,
        confirm: Confirm | None = None,
    ) -> None:
        assert policy.private.masks is not None
        self._rules: MaskRules = policy.private.masks
        self._ignore_case, self._is_private, self._matches = policy.private.ignore_case, is_private, matches
        self._finder, self._confirm = finder, confirm
        self._entities: OrderedDict[str, list[Any]] = OrderedDict()
        # The last texts that the application has agreed to, in their order.
        self._confirmed = dict[str, None]()

    async def mask(
        self,
        request: ChatCompletionRequest,
        situation: Situation,
        situated: Callable[[ChatCompletionRequest], Awaitable[Situation]],
        call: Call,
    ) -> MaskedChat | None:
        """The chat for far; None if it must stay here. ``situated`` is ``situation`` with the texts of another request.

        Raises DeadlineExceeded.
        """
        given = [message.model_dump(by_alias=True, exclude_none=True) for message in request.messages]
        texts: list[str] = self._ask("maskableTexts", given)
        entities = []
        for text in texts:
            found = await self._find(text, call)
            if found is None:
                return None
            entities.append([text, found])
        masked = self._ask("maskMessages", self._rules.model_dump(), self._ignore_case, given, entities)
        if masked is None:
            return None if await self._is_private(situation) else MaskedChat(list(request.messages))
        if self._rules.then == "near" or request.logprobs or format_type(request) not in FORMATS:
            return None
        pairs = zip(request.messages, given, masked["messages"], strict=True)
        messages = [own if before == now else Message.model_validate(now) for own, before, now in pairs]
        sent = await situated(request.model_copy(update={"messages": messages}))
        parts = [list(each.parts) or [each.content] for each in sent.messages]
        groups = [*parts, [part for own in parts for part in own], *([each] for each in sent.texts)]
        if await self._is_private(sent) or self._ask("hasMasked", masked["masks"], groups):
            return None
        return MaskedChat(messages, masked["masks"], [MaskedText(**each) for each in masked["texts"]])

    async def may_leave(self, chat: MaskedChat) -> bool:
        """Whether the application agrees that far receives these texts; each of them is asked about once."""
        if self._rules.then != "ask" or all(each.text in self._confirmed for each in chat.texts):
            return True
        agreed = self._confirm is not None and await self._confirm(chat.texts) is True
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
            entities = await self._find(own, call)
            if entities is None:
                return None
            masked = self._ask("maskText", self._rules.model_dump(), self._ignore_case, own, entities, masks)
            if len(masked["masks"]) > len(masks) and self._rules.then != "mask":
                return None
            if masked["text"] != own:
                changed.append(MaskedText(path=f"answer.{name}", text=masked["text"]))
            masks, hidden[name] = masked["masks"], masked["text"]
        meets = await self._matches(chat.messages[-1].text, hidden["text"])
        if meets or (hidden["reasoning"] and await self._matches(hidden["reasoning"])):
            return None
        return MaskedAnswer(hidden["text"], hidden["reasoning"], masks, changed)

    async def _find(self, text: str, call: Call) -> list[Any] | None:
        """The entities of a text; None if the model fails. Raises DeadlineExceeded."""
        if not self._rules.entities or self._finder is None or not text.strip():
            return []
        if text not in self._entities:
            windows = [window for window in self._ask("textWindows", text) if window["text"].strip()]
            request = ClassifyRequest(model="finder", input=[window["text"] for window in windows])
            try:
                data = (await self._finder.classify(request, call)).data
                found = [each for pair in zip(windows, data, strict=True) for each in self._entities_of(*pair)]
            except DeadlineExceeded:
                raise
            except NearfarError:
                return None
            self._entities[text] = found
            if len(self._entities) > MAX_TEXTS:
                self._entities.popitem(last=False)
        return self._entities[text]

    def _entities_of(self, window: dict[str, Any], labelled: Classification) -> list[Any]:
        if labelled.spans is None:
            raise RequestError("the finder finds no spans in a text; use a classifier of tokens", param="finder")
        at = utf16_indices(window["text"])
        spans = [{"label": each.label, "start": at[each.start], "end": at[each.end]} for each in labelled.spans]
        found: list[Any] = self._ask("entitiesOf", {"start": window["start"]}, spans)
        return found

    def _ask(self, name: str, *values: Any) -> Any:
        return SharedScript.of_thread().ask(name, *values)


def utf16_indices(text: str) -> Sequence[int]:
    """The index in UTF-16 of each character of a text, and of its end: those of `web/src/shared`."""
    if text.isascii():
        return range(len(text) + 1)
    indices = [0]
    for character in text:
        indices.append(indices[-1] + (2 if ord(character) > 0xFFFF else 1))
    return indices


async def restored(
    masks: list[dict[str, str]], request: ChatCompletionRequest, pieces: AsyncGenerator[AnswerPiece, None]
) -> AsyncGenerator[AnswerPiece, None]:
    """The pieces of far's answer with the private texts, which come once their placeholders are complete."""
    script, pending = SharedScript.of_thread(), dict[str, Any]()
    form = "text" if format_type(request) in (None, "text") else "json"
    nothing = {"held": "", "place": {"word": "", "quote": "", "within": "", "inAddress": False}}

    def restore(key: str, form: str, piece: str, *, last: bool) -> str:
        text: str
        text, pending[key] = script.ask("restore", masks, form, pending.get(key, nothing), piece, last)
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
            yield replace(
                piece,
                text=restore("text", form, piece.text, last=last),
                reasoning=restore("reasoning", "text", piece.reasoning, last=last),
                tool_calls=[*calls, *(held_calls() if last else ())] or None,
                tokens=(),
            )
