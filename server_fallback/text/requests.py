"""Checks the length and the token ids of a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer


def context_overflow(param: str, tokens: str, context: int) -> RequestError:
    """The error has OpenAI's wording, which clients look for."""
    return RequestError(
        f"This model's maximum context length is {context} tokens. However, {param} has {tokens} tokens; shorten it",
        param=param,
        code="context_length_exceeded",
    )


def with_name(error: RequestError, param: str, name: str) -> RequestError:
    """The error with another ``name`` for the parameter ``param``, or for what is in it, as another API has it."""
    # "this model" is prose.
    named = rf"(?<![\w.\]])(?<!the )(?<!this )(?<!these ){re.escape(param)}(?!\w)"
    message = re.sub(named, lambda _: name, error.message, count=1)
    renamed = name + str(error.details["param"]).removeprefix(param)
    return RequestError(message, **{**error.details, "param": renamed})


def check_length(tokenizer: Tokenizer, text: str, context: int, param: str) -> None:
    """Refuse a text that cannot fit, before it is encoded. Raises RequestError."""
    least = tokenizer.least_tokens(text, context)
    if least > context:
        raise context_overflow(param, f"at least {least}", context)


def check_prompt(prompt_ids: Sequence[int], vocab_size: int, context: int, param: str) -> None:
    """Raises RequestError for an empty prompt, an id outside the vocabulary, or more tokens than the context."""
    if not prompt_ids:
        raise RequestError(f"{param} is empty; give at least one token", param=param)
    if len(prompt_ids) > context:
        raise context_overflow(param, f"{len(prompt_ids)}", context)
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(prompt_ids) if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"{param} has token id {prompt_ids[index]} at {index}; ids of this model are 0 to {vocab_size - 1}",
            param=param,
        )
