"""What other servers answer, in our form: chunks of their shapes flow in, chunks of OpenAI's flow out, the usage last."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from nearfar.compiler.errors import DeviceError, Unavailable

from ..schema.common import Answer

# What servers call an answer's end beside OpenAI's words.
ENDS = {"eos_token": "stop", "stop_sequence": "stop", "max_tokens": "length"}

AnswerT = TypeVar("AnswerT", bound=Answer)


async def in_our_form(values: AsyncGenerator[dict[str, Any]], name: str) -> AsyncGenerator[dict[str, Any]]:
    """Chunks with choices as they come, then one with the usage alone; ``name`` is what we call the model.

    Of a server that tells no usage, the chunks with a text or a call count as the answer's tokens, and the prompt's are 0.
    """
    usage: dict[str, Any] | None = None
    last: dict[str, Any] = {}
    pieces = 0
    async for value in values:
        usage = value.get("usage") or usage
        choices = [plain_choice(choice) for choice in value.get("choices") or ()]
        pieces += sum(map(says_something, choices))
        last = {key: value[key] for key in ("id", "created") if key in value} | {"model": name}
        if choices:
            yield {**last, "choices": choices}
    if not last:
        raise Unavailable("the upstream ended its answer before it began; ask again")
    counts = {"prompt_tokens": 0, "completion_tokens": pieces} if usage is None else usage
    yield {**last, "choices": [], "usage": plain_usage(counts)}


def checked(kind: type[AnswerT], value: Mapping[str, Any], name: str) -> AnswerT:
    """Raises DeviceError for what is not of this form."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeviceError(f"{name}: the upstream's answer is not OpenAI's form: {where}: {first['msg']}") from error


def plain_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose end has OpenAI's name, and whose role is the only one that an answer can have."""
    choice = {"index": 0, **choice}
    choice["finish_reason"] = ENDS.get(choice.get("finish_reason") or "", choice.get("finish_reason") or None)
    if isinstance(delta := choice.get("delta"), dict) and "role" in delta:
        choice["delta"] = {**delta, "role": "assistant"}
    return choice


def says_something(choice: Mapping[str, Any]) -> bool:
    """Whether it has a text or a part of a call: a first chunk may have the role alone, a last one the end."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("tool_calls"))


def plain_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    queue_ms = usage.get("queue_ms")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "queue_ms": queue_ms if isinstance(queue_ms, int | float) and queue_ms >= 0 else None,
    }
