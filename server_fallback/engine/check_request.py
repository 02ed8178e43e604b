"""Checks whether a model can answer a request. A RequestError names the invalid parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence

import numpy as np

from nearfar.compiler.ir.sampling import ALTERNATIVES, check_sampling
from nearfar.compiler.runtime.errors import RequestError

from .adapters import not_loaded
from .model import TokenModel
from .request import TokenRequest

Holds = Callable[[float], bool]
MIN_TOKENS = "an integer from 0 to max_tokens"
KEY = re.compile("[0-9a-f]{64}")


def check_request(
    request: TokenRequest, model: TokenModel, adapters: Collection[str] = (), most_tokens: float = math.inf
) -> None:
    """``adapters`` are the names of the loaded ones, ``most_tokens`` those of a step. Raises RequestError, whose
    details name the parameter ("param").
    """
    if request.adapter is not None and request.adapter not in adapters:
        raise not_loaded(request.adapter)
    check_prompt(request, model)
    ids = f"token ids from 0 to {model.vocab_size - 1}"
    if request.max_tokens is not None:
        check("max_tokens", request.max_tokens, integer(1), "an integer of at least 1")
    if request.logprobs is not None:
        check("logprobs", request.logprobs, integer(0, ALTERNATIVES), f"an integer from 0 to {ALTERNATIVES}")
    check("priority", request.priority, math.isfinite, "a number")
    stop_token_ids = request.stop_token_ids | request.last_token_ids
    if not are_ids(stop_token_ids, model.vocab_size):
        for token in stop_token_ids:
            check("stop_token_ids", token, integer(0, model.vocab_size - 1), ids)
    check(
        "min_tokens",
        request.min_tokens,
        integer(0, math.inf if request.max_tokens is None else request.max_tokens),
        MIN_TOKENS,
    )
    if request.ignore_eos and request.constraint is not None:
        raise RequestError(
            "ignore_eos cannot be combined with a format, whose end is the model's end token, or with a budget for "
            "the reasoning",
            param="ignore_eos",
        )
    if request.when_full != "stop":
        check(
            "when_full",
            request.when_full,
            integer(0, model.context // 2),
            f"an integer from 0 to half of the context, {model.context // 2}",
        )
        if model.is_recurrent:
            raise RequestError(
                "when_full is a number, but this model has recurrent layers, whose states cannot lose old tokens; use "
                "'stop'",
                param="when_full",
            )
    check_images(request, model, most_tokens)
    check_drafts(request, model)
    check_prompt_logprobs(request)
    check_export(request, model)
    sampling = request.sampling
    check_sampling(sampling)
    if not (are_ids(sampling.logit_bias, model.vocab_size) and are_finite(sampling.logit_bias.values())):
        for token, bias in sampling.logit_bias.items():
            check("logit_bias", token, integer(0, model.vocab_size - 1), f"for {ids}")
            check("logit_bias", bias, math.isfinite, "of numbers")


def check_prompt(request: TokenRequest, model: TokenModel) -> None:
    prompt, context = request.prompt_ids, model.context
    if len(prompt) > context and request.when_full == "stop":
        raise RequestError(
            f"This model's maximum context length is {context} tokens. However, the prompt has {len(prompt)} "
            "tokens; shorten it, drop the oldest (when_full), or serve the model with a longer context",
            param="prompt_ids",
            code="context_length_exceeded",
            tokens=len(prompt),
            context=context,
        )
    check_ids("the prompt", prompt, model.vocab_size, param="prompt_ids")


def check_images(request: TokenRequest, model: TokenModel, most_tokens: float) -> None:
    """Each placeholder of the prompt is one of an image, and the other way round. Images that must be whole fit a step
    of ``most_tokens``.
    """
    images = request.images
    token_ids = [each for each in (model.image_token_id, model.sound_token_id) if each is not None]
    if not token_ids and not images:
        return
    if not token_ids:
        raise RequestError("this model reads texts only; leave the images out", param="images")
    if images and request.when_full != "stop":
        raise RequestError(
            "when_full is a number, but the prompt has images, which cannot be dropped in part; use 'stop'",
            param="when_full",
        )
    end = 0
    for index, image in enumerate(images):
        if not (end <= image.offset and image.length > 0 and image.end <= len(request.prompt_ids)):
            raise RequestError(
                f"image {index} takes the tokens {image.offset} to {image.end}; images must be in order, and within "
                f"the prompt of {len(request.prompt_ids)} tokens",
                param="images",
            )
        end = image.end
        if not KEY.fullmatch(image.key):
            raise RequestError(f"the key of image {index} is not a SHA-256 in hexadecimal digits", param="images")
        shape = None if image.features is None else image.features.shape
        if (image.pixels is None) == (shape is None) or shape not in (None, (image.length, model.feature_size)):
            raise RequestError(
                f"image {index} needs either pixels, or {image.length} features of {model.feature_size} numbers",
                param="images",
            )
        if (model.sound_token_id if image.is_sound else model.image_token_id) is None:
            does = "does not hear; leave the sounds out" if image.is_sound else "sees no pictures; leave the images out"
            raise RequestError(f"this model {does}", param="images")
        if model.rotates_by_columns and not image.is_sound and (image.columns < 1 or image.length % image.columns):
            raise RequestError(
                f"image {index} has {image.length} features, {image.columns} side by side; this model needs complete "
                "rows of features (columns)",
                param="images",
            )
    prompt = np.asarray(request.prompt_ids)
    for token_id in token_ids:
        is_sound = token_id == model.sound_token_id
        placed = np.zeros(len(prompt), bool)
        for image in images:
            placed[image.offset : image.end] |= image.is_sound == is_sound
        found, what = prompt == token_id, "sound" if is_sound else "image"
        if not np.array_equal(found, placed):
            raise RequestError(
                f"the prompt has {found.sum()} {what} tokens ({token_id}), and its {what}s take {placed.sum()}, not "
                f"all at their places; send {what}s where the prompt has {what} tokens",
                param="images" if images else "prompt_ids",
            )
    if model.whole_images:
        check_whole_images(request, most_tokens)


def check_whole_images(request: TokenRequest, most_tokens: float) -> None:
    """Each token of an image sees all of it: it fits a step of ``most_tokens``, and nothing else belongs to it."""
    images = [image for image in request.images if not image.is_sound]
    if images and request.prompt_logprobs > 0:
        raise RequestError(
            "prompt_logprobs cannot be combined with images that this model reads as a whole; leave it out",
            param="prompt_logprobs",
        )
    for index, image in enumerate(images):
        if image.length > most_tokens:
            raise RequestError(
                f"an image takes {image.length} tokens, and a step of the engine computes at most {most_tokens}; this "
                "model reads an image in one step: send a smaller image, or open the engine with more tokens a step",
                param="images",
                tokens=image.length,
            )
        # Both would be one image to the model, and the prefix cache would take the first one for the same without it.
        if index > 0 and images[index - 1].end == image.offset:
            raise RequestError(
                f"there is no token of text between image {index - 1} and image {index}; this model reads an image as "
                "a whole, and needs a token that separates them",
                param="images",
            )


def check_drafts(request: TokenRequest, model: TokenModel) -> None:
    check(
        "answered",
        request.answered,
        integer(0, len(request.prompt_ids)),
        "an integer from 0 to the length of the prompt",
    )
    if request.drafts is None:
        return
    if request.drafts:
        check_ids("drafts", request.drafts, model.vocab_size, param="drafts")
    sampling = request.sampling
    masked = request.constraint is not None or request.min_tokens > 0
    if sampling.penalizes or sampling.logit_bias or masked or request.when_full != "stop":
        raise RequestError(
            "drafts cannot be checked together with penalties, a logit bias, a constraint, min_tokens or a number "
            "for when_full; "
            "leave these out",
            param="drafts",
        )


def check_export(request: TokenRequest, model: TokenModel) -> None:
    wanted, size = request.export, model.page_size
    if wanted is None:
        return
    last = (len(request.prompt_ids) - 1) // size * size
    if wanted.start % size or wanted.stop % size or not 0 <= wanted.start < wanted.stop <= last:
        raise RequestError(
            f"export is the range from {wanted.start} to {wanted.stop}; both must be multiples of the page size "
            f"{size}, and of this prompt the pages of at most {last} tokens can be exported",
            param="export",
        )
    if request.images or request.constraint is not None or request.drafts is not None or request.prompt_logprobs > 0:
        raise RequestError(
            "export cannot be combined with images, a constraint, drafts or prompt_logprobs; leave them out",
            param="export",
        )


def check_prompt_logprobs(request: TokenRequest) -> None:
    check("prompt_logprobs", request.prompt_logprobs, integer(0), "an integer of at least 0")
    most = ALTERNATIVES
    check("prompt_alternatives", request.prompt_alternatives, integer(0, most), f"an integer from 0 to {most}")
    if request.prompt_logprobs > 0 and (request.drafts is not None or request.when_full != "stop"):
        raise RequestError(
            "prompt_logprobs cannot be combined with drafts or a number for when_full; leave these out",
            param="prompt_logprobs",
        )


def check_ids(what: str, ids: Sequence[int], vocab_size: int, **details: object) -> None:
    """Raise RequestError for an empty list, or ids outside the vocabulary."""
    if len(ids) == 0:
        raise RequestError(f"{what} is empty; give it at least one token", **details)
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.zeros((0, 0))
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise RequestError(f"{what} must be a list of integer token ids", **details)
    wrong = np.flatnonzero((array < 0) | (array >= vocab_size))
    if len(wrong):
        index = int(wrong[0])
        raise RequestError(
            f"token {index} of {what} is {ids[index]}; token ids of this model are 0 to {vocab_size - 1}",
            index=index,
            **details,
        )


def check(option: str, value: float, holds: Holds, range_text: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not holds(value):
        raise RequestError(f"{option} is {value!r}; it must be {range_text}", param=option)


def integer(least: int, most: float = math.inf) -> Holds:
    return lambda value: isinstance(value, int | np.integer) and least <= value <= most


def are_ids(tokens: Collection[int], vocab_size: int) -> bool:
    """Whether all are token ids; fast even for an entire vocabulary. May be False for numpy integers."""
    return len(tokens) == 0 or (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size)


def are_finite(values: Collection[float]) -> bool:
    """Whether all are finite numbers; fast for many. May be False for numpy numbers or huge ones."""
    return set(map(type, values)) <= {int, float} and math.isfinite(sum(values))


def check_token_types(texts: Sequence[Sequence[int]], token_types: Sequence[Sequence[int]], num_types: int) -> None:
    """Raises RequestError unless the types, if there are any, are those of each text's tokens."""
    if token_types and not (
        len(token_types) == len(texts)
        and all(len(own) in (0, len(text)) for own, text in zip(token_types, texts, strict=True))
    ):
        raise RequestError("a text has another number of token types than of tokens", param="input")
    wrong = next((each for own in token_types for each in own if not 0 <= each < max(1, num_types)), None)
    if wrong is not None:
        raise RequestError(f"token type {wrong} is unknown; this model has types 0 to {max(1, num_types) - 1}")
