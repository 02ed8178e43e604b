"""Convert the answers of other servers to chunks in OpenAI's form, the usage last."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import ValidationError

from nearfar.compiler.runtime.errors import DeviceError, Unavailable

from ..schema.chat import ChatCompletionChunk, SoundTranscript
from ..schema.common import Reply
from ..schema.completions import AnswerRequest, CompletionChunk, CompletionRequest
from ..schema.receipt import AnswerPart, SignedReceipt
from .upstream_bounds import BoundedChoices, Bounds, says_text

# Other servers' names for a finish reason -> OpenAI's. Further ones, such as content_filter, reach the client
# unchanged.
ENDS = {"eos_token": "stop", "stop_sequence": "stop", "max_tokens": "length"}
# vLLM's and SGLang's end of an answer that their server broke off, because it stops or an operator ended it.
BROKEN_OFF = "abort"
MAX_END_CHARACTERS = 64
# After the end, the usage follows immediately in one chunk.
AFTER_END_CHUNKS = 16
AFTER_END_SECONDS = 5.0
# As many recordings as a request may have, and more.
MAX_TRANSCRIPTS = 64
# One for each part of an answer of two sides.
MAX_RECEIPTS = 16
# The largest integer that JavaScript represents exactly.
MAX_COUNT = 1 << 53

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ReplyT = TypeVar("ReplyT", bound=Reply)


def answer_kind(request: AnswerRequest) -> tuple[str, type[Any]]:
    """The route of other servers for a request, and the class of the chunks of its answer."""
    if isinstance(request, CompletionRequest):
        return COMPLETIONS, CompletionChunk
    return CHAT, ChatCompletionChunk


class UpstreamAnswer:
    """Makes our chunks from the objects of another server's stream: those with choices, then one with only the usage.
    ``name`` is our name for the model. After the end of all choices only the usage is read, at most `AFTER_END_CHUNKS`
    chunks.

    If the server reports no usage, the chunks with a text or a call count as the answer's tokens, and the prompt's are
    0.
    """

    def __init__(self, name: str, bounds: Bounds) -> None:
        self._name = name
        self._bounded = BoundedChoices(bounds)
        self._usage: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._pieces = self._after_end = 0
        self._has_transcripts = False
        self._signed: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether all choices have ended. Then only the usage is of interest."""
        return self._bounded.ended

    @property
    def is_cut_off(self) -> bool:
        """Whether a choice has begun, and has not ended."""
        return self._bounded.is_cut_off

    @property
    def is_over(self) -> bool:
        """Whether too much arrived after the end."""
        return self._after_end > AFTER_END_CHUNKS

    def add(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk for an object of the stream; None if it has no choices. Raises DeviceError for another form."""
        self._after_end += self._bounded.ended
        self._usage = value["usage"] if isinstance(value.get("usage"), dict) else self._usage
        self._signed = signed_of(value) or self._signed
        choices = [
            choice
            for each in choices_of(value, self._name)
            if (choice := self._bounded.bounded(plain_choice(each, self._name))) is not None
        ]
        self._pieces += sum(map(has_content, choices))
        self._last = {key: value[key] for key in ("id", "created") if key in value} | {"model": self._name}
        if not choices:
            return None
        transcripts = transcripts_of(value) if not self._has_transcripts else None
        self._has_transcripts = self._has_transcripts or transcripts is not None
        extensions = {} if transcripts is None else {"transcripts": transcripts}
        return {**self._last, "choices": choices, **extensions}

    def add_pieces(self, index: int, pieces: int, text: str) -> bool:
        """Count chunks with ``pieces`` of text that are like an earlier one. False if each has to be added itself."""
        if not self._bounded.admits(index, pieces, text):
            return False
        self._pieces += pieces
        return True

    def end(self) -> list[dict[str, Any]]:
        """The last chunks, the usage last. Raises Unavailable for an answer without a chunk."""
        if not self._last:
            raise Unavailable("the upstream ended its answer without any output; send the request again")
        usage = self._usage
        rest = list(self._bounded.rest(None if usage is None else plain_usage(usage)["completion_tokens"]))
        self._pieces += sum(map(has_content, rest))
        counts = {"prompt_tokens": 0, "completion_tokens": self._pieces} if usage is None else usage
        chunks = [{**self._last, "choices": [choice]} for choice in rest]
        return [*chunks, {**self._last, "choices": [], "usage": plain_usage(counts), **self._signed}]


def checked(kind: type[ReplyT], value: Mapping[str, Any], name: str) -> ReplyT:
    """Raises DeviceError if the value does not have this form."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise nonsense(name, f"{where}: {first['msg']}") from error


def choices_of(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    choices = value.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise nonsense(name, "choices: the value is not a list of objects")
    return choices


def transcripts_of(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What another nearfar server wrote down of the request's recordings; None if there is nothing in our form."""
    given = value.get("transcripts")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_TRANSCRIPTS:
        return None
    try:
        return [SoundTranscript.model_validate(each).model_dump() for each in given]
    except ValidationError:
        return None


def signed_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """The receipts of another nearfar server, which whoever reads them checks, and its parts; empty if there is nothing
    in our form.
    """
    found: dict[str, Any] = {}
    for name, kind in (("receipts", SignedReceipt), ("parts", AnswerPart)):
        given = value.get(name)
        if isinstance(given, list) and 0 < len(given) <= MAX_RECEIPTS:
            with suppress(ValidationError):
                found[name] = [kind.model_validate(each).model_dump(mode="json") for each in given]
    return found if "receipts" in found else {}


def plain_choice(choice: dict[str, Any], name: str) -> dict[str, Any]:
    """The choice with OpenAI's name for its finish reason, if there is one, vLLM's for the stop string, and with the
    only role that an answer can have. Raises Unavailable for one that the server broke off.
    """
    index, end, delta = choice.get("index") or 0, choice.get("finish_reason") or None, choice.get("delta")
    if not isinstance(index, int) or not isinstance(end, str | None) or len(end or "") > MAX_END_CHARACTERS:
        raise nonsense(name, "choices: index is not an integer, or finish_reason is not a string")
    if end == BROKEN_OFF:
        raise Unavailable(f"{name}: the server behind this model broke off the answer; send the request again")
    if "matched_stop" in choice:
        # SGLang's name.
        choice["stop_reason"] = choice["matched_stop"]
    choice = {**choice, "index": index, "finish_reason": None if end is None else ENDS.get(end, end)}
    if isinstance(delta, dict) and "role" in delta:
        choice["delta"] = {**delta, "role": "assistant"}
    return choice


def nonsense(name: str, what: str) -> DeviceError:
    return DeviceError(f"{name}: the upstream's answer is not in OpenAI's form: {what}")


def has_content(choice: Mapping[str, Any]) -> bool:
    """Whether it has text or a part of a tool call. A first chunk may have only the role, a last one only the finish
    reason.
    """
    delta = choice.get("delta")
    return says_text(choice) or bool(isinstance(delta, dict) and delta.get("tool_calls"))


def plain_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Counts that are not numbers of tokens are 0."""
    prompt, completion = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    details, queue_ms = usage.get("prompt_tokens_details"), usage.get("queue_ms")
    written = usage.get("completion_tokens_details")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        },
        "completion_tokens_details": {"reasoning_tokens": count(written.get("reasoning_tokens"))}
        if isinstance(written, dict)
        else None,
        "queue_ms": queue_ms if isinstance(queue_ms, int | float) and 0 <= queue_ms < MAX_COUNT else None,
    }


def count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_COUNT else 0
