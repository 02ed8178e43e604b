"""Verifies receipts: their signatures and hashes, and, with the request, the answer itself, which a runner computes
again by teacher forcing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from nearfar.compiler.bundle.folder import Bundle, ExportBundle
from nearfar.compiler.formats.peft import read_adapter
from nearfar.compiler.ir.sampling import WORD
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.given_file import read_given_text
from nearfar.compiler.runtime.runner import Runner

from ..engine.model import TokenModel
from ..executors.executor import Call
from ..executors.local import LocalExecutor
from ..executors.text_model import TextModel
from ..schema.chat import ChatCompletionRequest
from ..schema.completions import AnswerRequest, CompletionRequest
from ..schema.fold import ChatFold, CompletionFold
from ..schema.receipt import AnswerPart, Receipt, ReceiptChoice, SignedReceipt
from ..text.output import Chunks
from .issuer import request_hash, request_sampling, tokens_hash
from .parts import read_parts
from .replay import Replay, Replayed, Unlike, check_tokens
from .signing import is_signed, key_id_of

# What an answer is computed again without.
DELIVERY = ("stream", "stream_options", "receipt", "return_token_ids", "logprobs", "top_logprobs", "prompt_logprobs")
# The fields of a choice and its message that are compared, or say nothing of the answer.
CHOICE_FIELDS = ("index", "message", "text", "finish_reason", "stop_reason", "token_ids")
MESSAGE_FIELDS = ("role", "content", "reasoning_content", "tool_calls")
UNCHECKED = ("prompt_token_ids", "prompt_logprobs", "transcripts")
PART_TYPES = {"image_url": "images", "video_url": "videos", "video": "videos", "input_audio": "recordings"}


@dataclass(slots=True)
class Verified:
    """What was found of one receipt. ``faults`` say why it is not verified, ``notes`` what was not checked.

    ``bundle`` is the one that gave the answer, None if it was not given, ``adapter`` the folder of its LoRA adapter.
    ``trusted``: None if no key was given. ``replayed``: the answers that were computed again, by their choices, and
    ``computed`` these answers as a client would receive them.
    """

    receipt: Receipt
    key: str
    bundle: Bundle | ExportBundle | None = None
    adapter: Path | None = None
    trusted: bool | None = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)
    computed: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """The receipts of a file. ``choices`` are those of the answer that has them, None for a receipt alone; ``parts``
    those of an answer that comes from two sides, or through another server. ``unchecked``: the fields of the answer
    that no receipt covers.
    """

    receipts: Sequence[dict[str, Any]]
    choices: Sequence[dict[str, Any]] | None = None
    parts: Sequence[AnswerPart] = ()
    unchecked: Sequence[str] = ()


def read_object(file: Path, what: str) -> dict[str, Any]:
    """Raises RequestError for a file that is not a JSON object."""
    try:
        value = json.loads(read_given_text(file, encoding="utf-8-sig"))
        # Python's parser accepts NaN and infinite numbers.
        json.dumps(value, allow_nan=False)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{file}: is not JSON; pass {what}") from error
    if not isinstance(value, dict):
        raise RequestError(f"{file}: is not a JSON object; pass {what}")
    return value


def read_given(file: Path) -> Given:
    """Raises RequestError for a file without receipts."""
    value = read_object(file, "a receipt, or an answer with receipts")
    if "signature" in value:
        return Given([value])
    receipts, choices = value.get("receipts"), value.get("choices")
    if not isinstance(receipts, list) or not receipts or not all(isinstance(each, dict) for each in receipts):
        raise RequestError(f"{file}: has no receipts; request the answer with receipt: true")
    parts = read_parts(value.get("parts"), len(receipts), str(file))
    if "choices" not in value:
        return Given(receipts, None, parts)
    # A client reads the first choice, whatever its index says.
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(each, dict) and _is_at(each.get("index"), place) for place, each in enumerate(choices))
    ):
        raise RequestError(f"{file}: its choices are not those of an answer; pass the answer as the server sent it")
    return Given(receipts, choices, parts, _unchecked(value, choices))


def _is_at(index: object, place: int) -> bool:
    # JSON's true is not the number 1.
    return type(index) is int and index == place


def _unchecked(answer: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that say something about an answer, and of which a receipt says nothing."""
    found = {name for name in UNCHECKED if answer.get(name)}
    for choice in choices:
        message = choice.get("message")
        found |= {name for name, value in choice.items() if value and name not in CHOICE_FIELDS}
        if isinstance(message, dict):
            found |= {name for name, value in message.items() if value and name not in MESSAGE_FIELDS}
            found |= {"text"} if choice.get("text") else set()
    return sorted(found)


def check_choices(found: Verified, given: Given) -> None:
    """Compares the number of choices that a client sees with that of the receipt, and names what is not covered."""
    answers = len(found.receipt.choices)
    if given.choices is not None and len(given.choices) != answers:
        found.faults.append(f"the answer has {len(given.choices)} choices, and the receipt is of {answers}")
    if given.unchecked:
        found.notes.append(f"no receipt covers {', '.join(given.unchecked)} of the answer")


def verify_statement(
    value: dict[str, Any],
    bundles: Mapping[str, Bundle | ExportBundle],
    trusted: Set[str],
    adapters: Mapping[str, Path] = MappingProxyType({}),
) -> Verified:
    """Checks a receipt's form, signature, bundle and adapter; both are given by their ids. Raises RequestError for
    something that is not a receipt.
    """
    try:
        signed = SignedReceipt.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"the receipt is not one of this version: {where}: {first['msg']}") from error
    found = Verified(signed.receipt, key_id_of(signed.signature))
    if not is_signed(value["receipt"], signed.signature):
        found.faults.append("the signature is not one of this receipt: a field was changed after it was signed")
    if trusted:
        found.trusted = signed.signature.public_key in trusted
        if not found.trusted:
            found.faults.append(f"the key {found.key} is not one that --signed-by lists")
    else:
        found.notes.append(f"the owner of the key {found.key} was not checked; pass --signed-by KEY")
    stated, adapter = signed.receipt.bundle, signed.receipt.adapter
    found.bundle = bundles.get(stated)
    if found.bundle is None:
        own = ", ".join(f"{bundle.path} is {identity[:16]}" for identity, bundle in bundles.items())
        found.faults.append(f"the receipt is of bundle {stated[:16]}, and {own}")
    if adapter is not None:
        found.adapter = adapters.get(adapter)
        if found.adapter is None and adapters:
            own = ", ".join(f"{folder} is {identity[:16]}" for identity, folder in adapters.items())
            found.faults.append(f"the receipt is of adapter {adapter[:16]}, and {own}")
    return found


def tokens_of(found: Verified, choices: Sequence[dict[str, Any]] | None) -> list[list[int]] | None:
    """The tokens of the answers, whose hashes are checked; None if the file does not have them all."""
    answers, by_index = [], {each.get("index"): each for each in choices or ()}
    for choice in found.receipt.choices:
        listed = by_index.get(choice.index, {}).get("token_ids")
        given = choice.token_ids if choice.token_ids is not None else listed
        if choice.answer_tokens == 0 and given is None:
            given = []
        if not isinstance(given, list) or not all(type(each) is int for each in given):
            return None
        if tokens_hash(given) != choice.answer or len(given) != choice.answer_tokens:
            found.faults.append(f"answer {choice.index}: its tokens have another hash than the receipt")
        if listed is not None and listed != given:
            found.faults.append(f"answer {choice.index}: its token_ids are not those of the receipt")
        answers.append(given)
    return answers


async def verify_answer(
    found: Verified,
    body: Mapping[str, Any],
    answers: Sequence[Sequence[int]],
    runner: Runner,
) -> None:
    """Compute the answers again. ``body`` is the request. The adapter, if there is one, gets the runner's first slot.

    Raises RequestError for a request that the model refuses, and for an adapter of another model; DeviceError.
    """
    receipt, bundle = found.receipt, found.bundle
    assert bundle is not None
    model = TokenModel.of(bundle.manifest)
    check_tokens(answers, model)
    if found.adapter is not None:
        assert isinstance(bundle, Bundle)
        for name, values in read_adapter(found.adapter, bundle.manifest).items():
            runner.write_state(name, 0, values)
    replay = Replay(runner, model, receipt, answers, adapter=-1 if found.adapter is None else 0)
    request = read_request(body, receipt)
    executor = LocalExecutor(replay, TextModel.of(bundle, receipt.model))
    fold: Any = ChatFold() if isinstance(request, ChatCompletionRequest) else CompletionFold()
    try:
        await executor.answer_from(replay, request, Call("verify"), Chunks(fold.add))
    except Unlike:
        pass
    finally:
        found.replayed = replay.results
        await executor.close()
    for choice, result in zip(receipt.choices, replay.results, strict=False):
        if result.first is not None and not result.first.is_rounding:
            found.faults.append(f"answer {choice.index}: {result.first.text}")
        if result.fault is not None:
            found.faults.append(f"answer {choice.index}: {result.fault}")
            return
    if len(replay.results) < sum(choice.answer_tokens > 0 for choice in receipt.choices):
        found.faults.append("the request asks for fewer answers than the receipt has")
        return
    found.computed = fold.answer().model_dump(mode="json")["choices"]


def read_request(body: Mapping[str, Any], receipt: Receipt) -> AnswerRequest:
    """The request whose answers the receipt has. Raises RequestError."""
    kind = ChatCompletionRequest if "messages" in body else CompletionRequest
    given = {key: value for key, value in body.items() if key not in DELIVERY}
    if given.get("seed") is None:
        given["seed"] = receipt.choices[0].seed
    try:
        return kind.model_validate({**given, "model": receipt.model})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(f"--request: {where}: {first['msg']}") from error


def check_request_hash(found: Verified, body: dict[str, Any]) -> bool:
    """Whether the receipt is of this request. Raises RequestError for one that receipts do not cover."""
    receipt = found.receipt
    if request_hash(body) != receipt.request:
        found.faults.append("the receipt is of another request")
        return False
    if request_sampling(body) != receipt.sampling:
        found.faults.append("the receipt's sampling is not that of the request")
    n = 1 if body.get("n") is None else body["n"]
    if not (type(n) is int and n > 0):
        raise RequestError("--request: n must be an integer above 0; pass the request that was answered")
    seed = receipt.choices[0].seed if body.get("seed") is None else body["seed"]
    for position, choice in enumerate(receipt.choices):
        if choice.index != position:
            found.faults.append(f"the receipt has answer {choice.index} in place of {position}")
        elif isinstance(seed, int) and choice.seed != (seed + position % n) & WORD:
            found.faults.append(f"answer {position}: its seed is {choice.seed}, not that of the request")
    return True


def unverifiable(body: Mapping[str, Any]) -> str | None:
    """What of a request cannot be computed again here; None if all can."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in PART_TYPES:
                return PART_TYPES[kind]
    return None


def compare_texts(found: Verified, choices: Sequence[dict[str, Any]] | None) -> None:
    """Compares how the answers that were computed end, and their texts with ``choices``, if these are known."""
    by_index, computed = {each.get("index"): each for each in choices or ()}, found.computed
    if not computed:
        return
    for choice in found.receipt.choices:
        if choice.finish_reason is None:
            found.notes.append(f"answer {choice.index} was broken off after {choice.answer_tokens} tokens")
            continue
        own = computed[choice.index]
        if own["finish_reason"] != choice.finish_reason:
            found.faults.append(
                f"answer {choice.index}: its tokens end with {own['finish_reason']!r}, and the receipt says "
                f"{choice.finish_reason!r}"
            )
        if choice.index in by_index and _said(by_index[choice.index]) != _said(own):
            found.faults.append(f"answer {choice.index}: its text is not that of its tokens")


def text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _said(choice: Mapping[str, Any]) -> Sequence[Any]:
    """The text of a choice, without the random ids of its calls."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return [choice.get("text"), choice.get("finish_reason")]
    listed = message.get("tool_calls")
    calls = [each.get("function") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    reasoning = message.get("reasoning_content") or None
    return [message.get("content") or None, reasoning, calls, choice.get("finish_reason")]


def summary(found: Verified) -> dict[str, Any]:
    """As JSON."""

    def described(choice: ReceiptChoice, result: Replayed | None) -> dict[str, Any]:
        first = None if result is None else result.first
        return {
            "index": choice.index,
            "tokens": choice.answer_tokens,
            "computed": 0 if result is None else result.tokens,
            "differences": 0 if result is None else result.differences,
            "within_rounding": 0 if result is None else result.ties,
            "first_difference": None
            if first is None
            else {name: getattr(first, name) for name in type(first).__dataclass_fields__},
        }

    results = [*found.replayed, *[None] * len(found.receipt.choices)]
    return {
        "side": found.receipt.side,
        "adapter": found.receipt.adapter,
        "model": found.receipt.model,
        "key": found.key,
        "trusted": found.trusted,
        "faults": found.faults,
        "notes": found.notes,
        "choices": [described(*pair) for pair in zip(found.receipt.choices, results, strict=False)],
    }
