"""The log-probabilities of a prompt's tokens: in vLLM's form, and in OpenAI's for an echo."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.compiler.runtime.text.text_stream import TextStream
from nearfar.compiler.runtime.text.tokenizer import Tokenizer

from ..engine.request import GeneratedToken
from ..schema.common import PromptLogprob, PromptLogprobs
from ..schema.completions import CompletionLogprobs
from .vocabulary import Vocabulary


def prompt_logprobs(vocabulary: Vocabulary, tokens: Sequence[GeneratedToken], most: int) -> PromptLogprobs:
    """``tokens`` are all of a prompt but the first, which has no log-probability. Each comes with the ``most`` likely
    ones. The rank counts from 1; it is None for a token that is not among the 20 likeliest, which the device lists.
    """
    listed: PromptLogprobs = [None]
    for token in tokens:
        ranks = {each.token_id: rank for rank, each in enumerate(token.alternatives, 1)}
        own = {token.token_id: token.logprob or 0.0}
        values = own | {each.token_id: each.logprob for each in token.alternatives[:most]}
        listed.append(
            {
                token_id: PromptLogprob(
                    logprob=logprob, rank=ranks.get(token_id), decoded_token=vocabulary.name(token_id)
                )
                for token_id, logprob in values.items()
            }
        )
    return listed


def echo_logprobs(
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    tokens: Sequence[GeneratedToken],
    text: str,
    most: int,
) -> CompletionLogprobs:
    """The tokens of an echoed prompt, whose ``text`` starts the answer."""
    stream, offset, offsets = TextStream(tokenizer), 0, list[int]()
    for token_id in prompt_ids:
        # A text may decode to a longer one, such as one with a space before it.
        offsets.append(min(offset, len(text)))
        offset += len(stream.feed(token_id))
    return CompletionLogprobs(
        tokens=list(map(vocabulary.name, prompt_ids)),
        token_logprobs=[None, *(token.logprob for token in tokens)],
        top_logprobs=[None, *(named_logprobs(vocabulary, token, most) for token in tokens)],
        text_offset=offsets,
    )


def named_logprobs(
    vocabulary: Vocabulary, token: GeneratedToken, most: int, own_name: str | None = None
) -> dict[str, float]:
    """A token and the ``most`` likely ones by name. Of tokens with one name, such as parts of characters, the likeliest
    counts. ``own_name`` is the token's, if only a part of it is in the text.
    """
    own_name = vocabulary.name(token.token_id) if own_name is None else own_name
    named = {own_name: token.logprob or 0.0}
    for each in token.alternatives[:most]:
        name = own_name if each.token_id == token.token_id else vocabulary.name(each.token_id)
        named[name] = max(each.logprob, named.get(name, each.logprob))
    return named
