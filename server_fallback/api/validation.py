"""Turn pydantic's errors about a request into one error that names the parameter, as OpenAI's API does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..schema.chat import Message
from .errors import ApiError
from .json_body import check_inner_json, printable

# Characters. Longer values are cut, so that a client's value is not sent back in full.
MAX_SHOWN = 60


def validation_error(errors: Sequence[Any], body: object) -> ApiError:
    """``errors`` are pydantic's, with locations that begin with "body" or "path"; ``body`` is the JSON value that they
    are about.
    """
    # Every branch of a union reports an error. The deepest one is about the branch that the client meant.
    first = max(errors, key=lambda error: len(_path(error, body)))
    path = _path(first, body)
    kind = first["type"]
    if kind == "union_tag_not_found":
        # This key, mostly ``type``, selects the branch of the union.
        kind, path = "missing", [*path, _selects(first)]
    param = printable(dotted(path)) or None
    if kind == "union_tag_invalid":
        # It selects no branch.
        return ApiError(400, _unknown_type(param, first), "invalid_value", param)
    if kind == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: '{param}'{_advice(param, body)}.", "unknown_parameter", param)
    if kind == "missing" and param is not None:
        return ApiError(400, f"Missing required parameter: '{param}'.", "missing_required_parameter", param)
    if param is None and isinstance(body, dict):
        # Its parameters do not fit each other, which a validator of the whole request says.
        return ApiError(400, first["msg"].removeprefix("Value error, "), "invalid_value")
    if param is None:
        return ApiError(400, f"The body must be a JSON object. Got {_shown(body)}.", "invalid_type")
    about = f"'{param}'"
    alike = [error["msg"].removeprefix("Value error, ") for error in errors if _path(error, body) == path]
    expected = "; or: ".join(dict.fromkeys(alike))
    if kind.endswith(("_type", "_parsing")) or kind in ("int_from_float", "literal_error"):
        return ApiError(
            400, f"Invalid type or value for {about}: {expected}. Got {_shown(first['input'])}.", "invalid_type", param
        )
    return ApiError(
        400, f"Invalid value for {about}: {expected}. Got {_shown(first['input'])}.", "invalid_value", param
    )


def check_calls(messages: Sequence[Message]) -> None:
    """Check the arguments of calls, which are JSON in a string that templates parse. Raises ApiError (400) if they nest
    too deeply to be rendered.
    """
    for index, message in enumerate(messages):
        for number, call in enumerate(message.tool_calls or ()):
            check_inner_json(call.function.arguments, f"messages[{index}].tool_calls[{number}].function.arguments")


def _advice(param: str | None, body: object) -> str:
    """What to do instead, for a known parameter of a completion."""
    is_completion = isinstance(body, dict) and not body.keys().isdisjoint(("messages", "prompt"))
    return f"; {ADVICE[param]}" if is_completion and param is not None and param in ADVICE else ""


def _unknown_type(param: str | None, error: Any) -> str:
    """Of an object whose ``type`` is not known, such as a part of a message."""
    found, known = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
    is_part = param is not None and PART.search(param) is not None
    # The advice is about chats.
    advice = PART_ADVICE.get(found if "image_url" in known else "", "leave it out") if is_part else "use one of these"
    what = "a part of type" if is_part else f"of {_selects(error)}"
    return f"'{param}' is {what} '{printable(found[:MAX_SHOWN])}'; supported: {known}; {advice}."


def _selects(error: Any) -> str:
    """The key that selects the branch of a union."""
    return str(error["ctx"]["discriminator"]).strip("'")


def _path(error: Any, body: object) -> list[str | int]:
    """The error's path in the body: its location without the names of union branches, which pydantic inserts. A query
    has no such names.
    """
    if error["loc"][0] == "query":
        return list(error["loc"][1:])
    path: list[str | int] = []
    location = list(error["loc"][1:])
    at = body
    for number, part in enumerate(location):
        if (
            isinstance(at, dict)
            and at.get("type") == part
            and number + 1 < len(location)
            and location[number + 1] in at
        ):
            # The branch of a union that is selected by ``type``. Its name may equal the key that follows it.
            continue
        inside = (isinstance(at, dict) and part in at) or (
            isinstance(at, list) and isinstance(part, int) and part < len(at)
        )
        if inside:
            at = at[part]  # type: ignore[index]
        elif not (error["type"] == "missing" and number == len(location) - 1):
            continue
        path.append(part)
    return path


def dotted(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str):
        # It may be a prompt, which an error does not repeat.
        return "a string"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return printable(text[:MAX_SHOWN])


PART = re.compile(r"\.content\[\d+\]$")
_SOUND = 'send {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}'
_PICTURE = 'send {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
_FILE = 'send {"type": "file", "file": {"filename": NAME, "file_data": "data:text/plain;base64,..."}}'
_CALL = "calls are tool_calls of an assistant's message, and their results messages of the role tool"

# Parts of other APIs' messages (OpenAI's Responses, Anthropic's, vLLM's, transformers'), and what to do instead.
PART_ADVICE: Mapping[str, str] = {
    "audio": _SOUND,
    "audio_url": _SOUND,
    "document": _FILE,
    "image": _PICTURE,
    "input_file": _FILE,
    "input_image": _PICTURE,
    "input_text": 'send {"type": "text", "text": ...}',
    "output_text": 'send {"type": "text", "text": ...}',
    "redacted_thinking": "leave it out",
    "thinking": "send the text as reasoning_content of the message",
    "tool_result": _CALL,
    "tool_use": _CALL,
}

# Parameters of completions of OpenAI and vLLM that we do not know, and what to do instead.
_SAMPLED = "answers are sampled, never searched; leave it out"
_OF_TEMPLATE = "the chat template of the model decides; use chat_template_kwargs, or send the prompt to /v1/completions"

ADVICE: Mapping[str, str] = {
    "add_generation_prompt": _OF_TEMPLATE,
    "add_special_tokens": "send token ids as the prompt; /tokenize makes them with and without special tokens",
    "allowed_token_ids": "use structured_outputs with choice, regex or grammar",
    "bad_words": "set logit_bias of their tokens to -100",
    "cache_salt": "leave it out",
    "chat_template": _OF_TEMPLATE,
    "documents": "write the documents into a message",
    "echo": "in chats, use continue_final_message; /v1/completions has echo",
    "include_reasoning": "the reasoning is reasoning_content, apart from the content; leave it out",
    "length_penalty": _SAMPLED,
    "logprob_token_ids": "use logprobs, which lists up to 20 tokens",
    "prompt_embeds": "send a text or token ids as the prompt",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "request_id": "send the header X-Request-Id",
    "return_tokens_as_token_ids": "use return_token_ids",
    "spaces_between_special_tokens": "special tokens are written without spaces; leave it out",
    "thinking_token_budget": "only chats have a budget of reasoning; use /v1/chat/completions",
    "truncate_prompt_tokens": "shorten the prompt; /tokenize counts its tokens",
    "truncation_side": "shorten the prompt; /tokenize counts its tokens",
    "use_beam_search": _SAMPLED,
}
