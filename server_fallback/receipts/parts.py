"""The parts of an answer: what each side wrote of it, and whether the requests that the sides received follow from the
client's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from nearfar.compiler.runtime.errors import RequestError

from ..schema.chat import ChatCompletionRequest, Message, TextPart
from ..schema.common import OF_ACCOUNTS, marked
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.receipt import AnswerPart, Receipt
from ..schema.routed import RoutedChatRequest, RoutedCompletionRequest, unlabelled_chat, unlabelled_completion
from ..text.attachments import with_files
from .issuer import tokens_hash

# What the sides' requests say of delivery, and what follows from the part before.
OWN = frozenset(
    (
        *("model", "stream", "stream_options", "receipt", "return_token_ids", "priority", "n"),
        *("logprobs", "top_logprobs", "prompt_logprobs"),
        *("messages", "prompt", "continue_final_message", "max_tokens", "max_completion_tokens", "min_tokens"),
        # It changes no answer, and strict masks leave it out.
        "user",
    )
)
# As `web/src/shared/masks/placeholders.ts` writes it.
PLACEHOLDER = re.compile(r"\[[A-Z]{1,20}_[0-9]{1,6}\]")


def read_parts(given: object, num_receipts: int, where: str) -> list[AnswerPart]:
    """``where`` is the file. Raises RequestError for parts that are not those of an answer with this number of
    receipts.
    """
    try:
        parts = [AnswerPart.model_validate(each) for each in given] if isinstance(given, list) else []
    except ValidationError:
        parts = []
    starts, numbers = [part.start for part in parts], [part.receipt for part in parts if part.receipt is not None]
    unlike = starts != sorted(starts) or starts[:1] != [0] or numbers != list(range(num_receipts))
    if given is not None and unlike:
        raise RequestError(f"{where}: its parts are not those of an answer; pass the answer as the server sent it")
    return parts


def part_faults(
    parts: Sequence[AnswerPart],
    index: int,
    body: Mapping[str, Any] | None,
    shown: str | None,
    before: Receipt | None,
    computed: str | None,
) -> Iterator[str]:
    """What is wrong with a part. ``body`` is the client's request, ``shown`` the answer's text, ``before`` the receipt
    of the part before, and ``computed`` the part's text, as far as these are known.

    Raises RequestError for a body that is not a request.
    """
    part, is_last = parts[index], index + 1 == len(parts)
    masked = _is_masked(part)
    if body is not None and part.request is not None:
        fault = request_fault(body, part, None if shown is None else shown[: part.start], before)
        if fault is not None:
            yield f"the {part.side} side received {fault}"
    if shown is None or computed is None:
        return
    own = shown[part.start :] if is_last else shown[part.start : parts[index + 1].start]
    # A side may have written more than the other one continues.
    plain = own == computed if is_last else computed.startswith(own)
    if not (plain or (masked and (says(computed, own) if is_last else _begins(computed, own)))):
        yield f"the answer's text from character {part.start} on is not that of the {part.side} side's tokens"


def request_fault(body: Mapping[str, Any], part: AnswerPart, text: str | None, before: Receipt | None) -> str | None:
    """How the request that the part's side received does not follow from the client's ``body``; None if it does.
    ``text`` is that of the answer before the part.
    """
    assert part.request is not None
    client, sent = _with_file_texts(_read(body)), _with_file_texts(_read(part.request))
    theirs, ours = (_decisive(each, type(sent)) for each in (client, sent))
    if client.seed is None:
        # Whoever answers may draw it.
        ours.pop("seed", None)
    differing = next((name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)), None)
    if differing is not None:
        return f"another {differing} than the request has"
    if isinstance(sent, CompletionRequest) and isinstance(sent.prompt, list):
        return None if before is None or _continues(before, sent.prompt) else "other tokens than those before its part"
    masked = _is_masked(part)
    given, wanted = _texts(sent, masked=masked), _texts(client, masked=masked)
    described = _with_media(client) if "described" in (part.changed or ()) else set[int]()
    if part.start > 0:
        begins = isinstance(client, CompletionRequest) or bool(client.continue_final_message)
        # The client may have begun the answer.
        start = wanted.pop()[1] if begins else ""
        about, continued = given.pop()
        wanted.append(("", start + (continued.removeprefix(start) if text is None else text)))
        given.append(("" if about.startswith(("assistant", "prompt")) else about, continued))
    same = len(given) == len(wanted) and all(
        index in described or (about == own and (says(text, whole) if masked else text == whole))
        for index, ((about, text), (own, whole)) in enumerate(zip(given, wanted, strict=True))
    )
    return None if same else "other messages than the request has"


def says(masked: str, text: str) -> bool:
    """Whether ``text`` is ``masked`` with any texts in place of its placeholders."""
    pattern = ".*?".join(map(re.escape, PLACEHOLDER.split(masked)))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def _begins(masked: str, text: str) -> bool:
    """Whether ``text`` is the beginning of ``masked``, as far as its first placeholder says."""
    before, *rest = PLACEHOLDER.split(masked, maxsplit=1)
    return before.startswith(text) or (bool(rest) and text.startswith(before))


def _is_masked(part: AnswerPart) -> bool:
    """Only far receives placeholders."""
    return part.side == "far" and "masked" in (part.changed or ())


def _with_media(request: ChatCompletionRequest | CompletionRequest) -> set[int]:
    """The indices of the messages that have more than text, in whose place a side may have received descriptions."""
    messages = () if isinstance(request, CompletionRequest) else request.messages
    return {
        index
        for index, message in enumerate(messages)
        if isinstance(message.content, list) and not all(isinstance(part, TextPart) for part in message.content)
    }


def _continues(before: Receipt, prompt: Sequence[Any]) -> bool:
    """Whether a prompt is that of an earlier part, and tokens that this part has written."""
    [choice, *_] = before.choices
    first, rest = list(prompt[: choice.prompt_tokens]), list(prompt[choice.prompt_tokens :])
    if tokens_hash(first) != choice.prompt:
        return False
    return choice.token_ids is None or choice.token_ids[: len(rest)] == rest


def _read(body: Mapping[str, Any]) -> ChatCompletionRequest | CompletionRequest:
    kind = RoutedChatRequest if "messages" in body else RoutedCompletionRequest
    try:
        read = kind.model_validate({"model": "", **body})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"--request: {where}: {first['msg']}") from error
    return unlabelled_chat(read) if isinstance(read, ChatCompletionRequest) else unlabelled_completion(read)


def _with_file_texts(request: ChatCompletionRequest | CompletionRequest) -> ChatCompletionRequest | CompletionRequest:
    """A router reads files of text before it chooses a side, so the sides receive their texts."""
    if isinstance(request, CompletionRequest):
        return request
    return request.model_copy(update={"messages": list(with_files(request.messages, keep_others=True))})


def _decisive(request: AnswerRequest, kind: type[AnswerRequest]) -> dict[str, Any]:
    """What decides an answer besides its prompt and its limits, of what requests of this kind have. Chats that continue
    as tokens have nothing else.
    """
    left_out = {*OWN, *marked(type(request), OF_ACCOUNTS)}
    given = request.model_dump(mode="json", exclude_none=True, exclude=left_out)
    return {name: value for name, value in given.items() if name in kind.model_fields}


def _texts(request: AnswerRequest, *, masked: bool) -> list[tuple[str, str]]:
    """The text of each message, or of the prompt, and what else is in it. Masks may be in all of it."""
    if isinstance(request, CompletionRequest):
        return [("prompt", request.prompt if isinstance(request.prompt, str) else "")]
    assert isinstance(request, ChatCompletionRequest)

    def about(message: Message) -> str:
        rest = message.model_dump_json(exclude_none=True, exclude={"content", "role"})
        return message.role if masked or rest == "{}" else f"{message.role} {rest}"

    return [(about(message), message.text) for message in request.messages]
