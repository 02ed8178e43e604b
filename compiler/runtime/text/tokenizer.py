"""Tokenizer converts text and chats to token ids and back.

The tokenizers library implements tokenizer.json; this file adds the chat template and the bos flag of
tokenizer_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import CheckpointError, RequestError
from .beginnings import Beginnings
from .chat_template import ChatTemplate, Message
from .control_tokens import SENTINEL, ControlTokens, private_spelling, sentinel_refused, spells_marker
from .token_bound import BYTE_TOKEN, bytes_per_token
from .tokenizer_files import TokenizerFiles, load_backend
from .tool_formats import tool_format
from .word_borders import least_pieces

_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Token ids, their types, and of a single text the characters of each token, (0, 0) for special tokens."""

    ids: list[int]
    token_types: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Raises CheckpointError if tokenizer.json cannot be loaded. ``chat_template`` is None if the model has none.

    Control tokens are the special added tokens, the named ones (bos, eos, pad, unk) and the markers that the chat
    template spells out. Text never becomes a control token unless the caller requests it; only the chat template writes
    control tokens. `encode` and `decode` release the GIL, even for long texts.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self._backend = _load_backend(files)
        self._add_bos_token = files.add_bos_token
        self._bos_token_id = None if files.bos_token is None else self._backend.token_to_id(files.bos_token)
        named = files.special_tokens
        added = self._backend.get_added_tokens_decoder()
        self._added = {token.content: token for token in added.values()}
        template = files.chat_template or ""
        self._control_ids = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special or token.content in named.values() or spells_marker(template, token.content)
        }
        self._controls = ControlTokens(self._added, self._control_ids)
        # A tokenizer uses its unknown token for text that it cannot encode, so this token is not a sign of forgery.
        unknown = {files.unk_token, getattr(self._backend.model, "unk_token", None)}
        self._forgeable_ids = frozenset(token_id for text, token_id in self._control_ids.items() if text not in unknown)
        tools = tool_format(files.chat_template)
        # Special tokens that are part of an answer's text, because they mark tool calls.
        self._spoken_ids = frozenset(
            token_id
            for token_id, token in added.items()
            if tools is not None and token.special and token.content in tools.tokens
        )
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._decodes_alone = _decodes_alone(self._backend.decoder)
        # The results of `text_of`.
        self._texts: dict[int, str | None] = {}
        self.chat_template = None if files.chat_template is None else ChatTemplate(files.chat_template, named)

    @cached_property
    def bytes_per_token(self) -> int | None:
        """The maximum number of UTF-8 bytes that one token can represent; None if it is unlimited."""
        return bytes_per_token(self._backend)

    def prepare(self) -> None:
        """Compute cached values now, so that the first request does not wait for them."""
        _ = self.bytes_per_token, self._beginnings, self._splitting

    def least_tokens(self, text: str, most: int) -> int:
        """A lower bound on the number of the text's tokens; 0 if no bound is known.

        It comes from the text's length, or is ``most`` + 1 if the text's beginning has more than ``most`` tokens.
        """
        limit, longest = self.bytes_per_token, self._beginnings.longest
        least = 0 if limit is None else -(-len(text.encode(errors="replace")) // limit)
        if least > most:
            return least
        if self._beginnings.encoding_beyond(text, most, lambda part: self._encoded(self._backend, part)) is not None:
            return most + 1
        part = "" if longest is None else text[: 2 * longest * (most + 1)]
        return least if longest is None or len(part) == len(text) else least_pieces(self._backend, part, longest)

    def encode(self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Raises RequestError for a text that cannot be encoded.

        Control tokens that the text spells out are split into the tokens of their text. If ``split_special_tokens`` is
        False, they become single tokens.
        """
        ids = self._encode(self._backend, text, add_special_tokens)
        if split_special_tokens and (num_controls := self._forged(ids)):
            # The tokenizer adds this number to every text.
            added = self._forged(self._encode(self._backend, "", add_special_tokens))
            if num_controls != added:
                if SENTINEL in text:
                    raise sentinel_refused()
                ids = self._encode(self._splitting.backend, text, add_special_tokens)
                self._require_split(self._forged(ids) == added)
                return self._with_bos(ids, add_special_tokens, starts_with_bos=False)
        bos = self._bos_token_id
        # Whether the text has its own bos token matters only if tokenizer_config.json forbids the one that
        # tokenizer.json adds.
        forbidden = add_special_tokens and self._add_bos_token is False and ids[:1] == [bos]
        starts_with_bos = forbidden and self._encode(self._backend, text, add_special_tokens=False)[:1] == [bos]
        return self._with_bos(ids, add_special_tokens, starts_with_bos=starts_with_bos)

    def encode_shortened(
        self,
        text: str,
        second: str | None,
        max_tokens: int,
        max_second: int | None = None,
        *,
        shortens_first: bool = False,
    ) -> EncodedText:
        """The tokens of a text, or of a text and a ``second`` one in one sequence, with the special tokens between them
        that the tokenizer adds. Control tokens that a text spells out are split.

        A text is shortened at its end so that there are at most ``max_tokens``, special tokens included; of a pair only
        the ``second`` one is, and in any case to ``max_second`` tokens, or with ``shortens_first`` the first one.
        Raises RequestError for a text that cannot be encoded, and for a pair of which the other leaves no room.
        """
        first = self._encoding_beyond(text, max_tokens)
        pair = None if second is None else self._encoding_beyond(second, max_tokens)
        added = self._backend.num_special_tokens_to_add(pair is not None)
        bos = self._add_bos_token is True and self._bos_token_id is not None
        room = max_tokens - added - (bos and self._backend.num_special_tokens_to_add(False) == 0)
        if pair is None:
            first.truncate(max(0, min(len(first.ids), room)))
        else:
            whole, cut = (pair, first) if shortens_first else (first, pair)
            room -= len(whole.ids)
            if room < 1:
                num_tokens = f"{'at least ' if len(whole.ids) > max_tokens else ''}{len(whole.ids)}"
                kept, other = ("hypothesis", "text") if shortens_first else ("query", "document")
                raise RequestError(
                    f"This model's maximum context length is {max_tokens} tokens. However, the {kept} has {num_tokens} "
                    f"tokens, which leaves none for a {other}; shorten it",
                    code="context_length_exceeded",
                )
            cut.truncate(min(len(cut.ids), room, len(cut.ids) if max_second is None else max_second))
        # A second post-processing would trim white space from the offsets again, and with it a token's first letter.
        offsets = iter(first.offsets)
        encoding = self._backend.post_process(first, pair)
        ids = self._with_bos(encoding.ids, True, starts_with_bos=False)
        types = encoding.type_ids if len(ids) == len(encoding.ids) else [0] * len(ids)
        own = encoding.sequence_ids if pair is None else []
        places = [(0, 0) if sequence is None else next(offsets) for sequence in own]
        if own and len(ids) != len(own):
            places = [(0, 0), *places] if len(ids) > len(own) else places[1:]
        return EncodedText(ids, types, places)

    def beginning(self, text: str, max_tokens: int) -> str:
        """The part of a text that its first ``max_tokens`` tokens stand for. Raises RequestError as `encode`."""
        encoding = self._encoding_beyond(text, max_tokens)
        return text if len(encoding.ids) <= max_tokens else text[: encoding.offsets[max_tokens][0]]

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text for a chat. ``variables`` are additional variables of the template.

        Raises RequestError if there is no chat template, or if it refuses these messages.
        """
        if self.chat_template is None:
            raise RequestError("this model has no chat template, so it cannot chat; use --raw to continue plain text")
        return self.chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a chat's prompt. The template writes all special tokens, so none are added.

        Special tokens that messages, tools and variables spell out are split.
        """
        marked_messages, marked_tools = self.mark_chat(messages, tools)
        marked_variables = self.mark_variables(variables)
        return self.encode_rendered(
            self.apply_chat_template(marked_messages, add_generation_prompt, marked_tools, marked_variables)
        )

    def mark_chat(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[list[Any], list[Any] | None]:
        """The messages and tools to render, with sentinels wherever their text could be read as control tokens.

        Raises RequestError for text with U+FDD0, which is the sentinel, and for values that are nested too deeply.
        """
        try:
            return self._controls.mark_messages(messages), None if tools is None else self._controls.mark_tools(tools)
        except RecursionError as error:
            raise RequestError("messages or tools are nested too deeply; flatten them") from error

    def mark_variables(self, variables: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Like `mark_chat`, for additional variables of the template."""
        return (
            None if variables is None else {name: self._controls.mark_value(value) for name, value in variables.items()}
        )

    def encode_rendered(self, prompt: str) -> list[int]:
        """The token ids of a prompt that was rendered from marked messages and tools.

        Raises RequestError for text that cannot be split.
        """
        if SENTINEL not in prompt:
            return self._encode(self._backend, prompt, add_special_tokens=False)
        text, own = self._controls.unmark(prompt)
        if own == self._controls.find(text):
            return self._encode(self._backend, text, add_special_tokens=False)
        splitting, parts, end = self._splitting, [], 0
        for match in own:
            parts += [text[end : match.start], splitting.spelling[match.content]]
            end = match.start + len(match.content)
        ids = self._encode(splitting.backend, "".join([*parts, text[end:]]), add_special_tokens=False)
        expected = [self._control_ids[match.content] for match in own]
        unforged = [token_id for token_id in map(splitting.real_id, ids) if token_id in self._forgeable_ids]
        self._require_split(unforged == [token_id for token_id in expected if token_id in self._forgeable_ids])
        return [splitting.real_id(token_id) for token_id in ids]

    def with_media(self, prompt: str, mark: str, texts: Sequence[str], what: str = "picture") -> str:
        """A rendered prompt in which each ``mark`` that the chat template wrote for a picture, or for what else is
        named, is replaced by the text that stands for it. Marks in the text of messages are none.

        Raises RequestError unless the template wrote one for each of ``texts``, CheckpointError if the mark is not a
        control token, which messages could spell.
        """
        if mark not in self._control_ids:
            raise CheckpointError(
                f"tokenizer.json: {mark!r}, which stands for a {what}, is not a special token; correct the checkpoint"
            )
        replaced = self._controls.replace_own(prompt, mark, texts)
        if replaced is None:
            raise RequestError(
                f"this model's chat template does not write {mark!r} once for each of the {len(texts)} {what}s of "
                f"these messages; send {what}s in messages of the user only"
            )
        return replaced

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids without a token, which occur in padded vocabularies, have no text."""
        ids = list(ids)
        if skip_special_tokens and not self._spoken_ids.isdisjoint(ids):
            silent = self._special_ids - self._spoken_ids
            ids, skip_special_tokens = [token_id for token_id in ids if token_id not in silent], False
        # Unlike `decode`, `decode_batch` releases the GIL.
        [text] = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def text_of(self, token_id: int) -> str | None:
        """The text of a token that its neighbours cannot change; None if they might, or if it has no text."""
        if not self._decodes_alone:
            return None
        if token_id not in self._texts:
            text = self.decode([token_id])
            self._texts[token_id] = None if not text or _REPLACEMENT in text or self.is_byte_token(token_id) else text
        return self._texts[token_id]

    def token_id(self, token: str) -> int | None:
        """The id of the token with this name; None if it does not exist."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def is_byte_token(self, token_id: int) -> bool:
        """Whether the token is one byte, so that its character depends on its neighbours."""
        token = self._backend.id_to_token(token_id)
        return token is not None and BYTE_TOKEN.fullmatch(token) is not None

    def _with_bos(self, ids: list[int], add_special_tokens: bool, *, starts_with_bos: bool) -> list[int]:
        """Add or remove the bos token as tokenizer_config.json requires. ``starts_with_bos``: the text itself starts
        with it.
        """
        bos = self._bos_token_id
        if not add_special_tokens or bos is None or self._add_bos_token is None:
            return ids
        if self._add_bos_token:
            return ids if ids[:1] == [bos] else [bos, *ids]
        return ids[1:] if ids[:1] == [bos] and not starts_with_bos else ids

    def _encode(self, backend: Any, text: str, add_special_tokens: bool) -> list[int]:
        try:
            # Unlike `encode`, `encode_batch_fast` releases the GIL. It computes no offsets.
            [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeEncodeError) as error:
            raise _not_unicode() from error
        ids: list[int] = encoding.ids
        return ids

    def _encoding_beyond(self, text: str, count: int) -> Any:
        """The `_encoding` of a text, or of a beginning that has more than ``count`` tokens."""
        found = self._beginnings.encoding_beyond(text, count, self._encoding)
        return self._encoding(text) if found is None else found

    def _encoding(self, text: str) -> Any:
        """The library's encoding of a text without special tokens, whose control tokens are split."""
        encoding = self._encoded(self._backend, text)
        if self._forged(encoding.ids):
            if SENTINEL in text:
                raise sentinel_refused()
            encoding = self._encoded(self._splitting.backend, text)
            self._require_split(self._forged(encoding.ids) == 0)
        return encoding

    def _encoded(self, backend: Any, text: str) -> Any:
        try:
            [encoding] = backend.encode_batch([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _not_unicode() from error
        return encoding

    def _forged(self, ids: Iterable[int]) -> int:
        # Long texts are counted without a Python loop, which would keep other threads from running.
        return sum(map(self._forgeable_ids.__contains__, ids))

    def _require_split(self, split: bool) -> None:
        if not split:
            raise RequestError(
                "the text spells a control token that this model's tokenizer cannot split; "
                "remove it, or for a raw prompt "
                "set split_special_tokens to false",
                code="invalid_text",
            )

    @cached_property
    def _beginnings(self) -> Beginnings:
        return Beginnings.of(self._backend)

    @cached_property
    def _splitting(self) -> _Splitting:
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend

        # Both backends share the model, which holds the vocabulary. A second copy of 150,000 tokens would need about 70
        # MB.
        backend: Any = Backend(self._backend.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if (value := getattr(self._backend, part)) is not None:
                setattr(backend, part, value)
        backend.encode_special_tokens = True
        spelling = {content: private_spelling(index) for index, content in enumerate(self._control_ids)}
        # If the tokens are added in the order of their ids, they get the same ids again. Control tokens become special,
        # because the backend splits only special tokens.
        tokens = self._backend.get_added_tokens_decoder()
        backend.add_tokens(
            [
                _alike(AddedToken, token, token.content, special=token.special or token.content in spelling)
                for _, token in sorted(tokens.items())
            ]
        )
        assert backend.get_added_tokens_decoder().keys() == tokens.keys(), "the tokens must get the same ids again"
        backend.add_tokens(
            [_alike(AddedToken, self._added[content], private, special=False) for content, private in spelling.items()]
        )
        return _Splitting(
            backend,
            spelling,
            {backend.token_to_id(spelling[text]): token_id for text, token_id in self._control_ids.items()},
        )


@dataclass(frozen=True, slots=True)
class _Splitting:
    """A backend that reads control tokens as plain text, and their private spellings as control tokens."""

    backend: Any
    spelling: Mapping[str, str]
    real_ids: Mapping[int, int]

    def real_id(self, token_id: int) -> int:
        return self.real_ids.get(token_id, token_id)


def _not_unicode() -> RequestError:
    return RequestError(
        "the text contains half of a surrogate pair, which is not Unicode text; remove it", code="invalid_text"
    )


def _load_backend(files: TokenizerFiles) -> Any:
    backend = load_backend(files.content, files.where)
    # tokenizer.json may enable truncation and padding, as in the last training run.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _decodes_alone(decoder: Any) -> bool:
    """Whether a decoder joins what it makes of each token, except for tokens of single bytes. Others, such as those
    that strip the first blank, treat the beginning of a text differently.
    """
    if decoder is None:
        return False
    state = json.loads(decoder.__getstate__())
    types = [each["type"] for each in state.get("decoders", [state])]
    return types == ["ByteLevel"] or (
        types[-1:] == ["Fuse"] and types.count("Fuse") == 1 and set(types[:-1]) <= {"Replace", "ByteFallback"}
    )


def _alike(kind: Any, token: Any, content: str, *, special: bool) -> Any:
    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return kind(content, special=special, **flags)
