"""Tokenizer: text and chats to token ids and back, and TextStream, which turns ids into text as they come.

The tokenizers library does the work on tokenizer.json; this adds the chat template and the bos flag of tokenizer_config.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import CheckpointError, RequestError
from ..formats.checkpoint import TokenizerFiles
from .chat_template import ChatTemplate, Message

# How byte-fallback tokenizers name the token of a single byte.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_REPLACEMENT = "\ufffd"


class Tokenizer:
    """Raises CheckpointError when tokenizer.json cannot be loaded. ``chat_template`` is None if the model has none."""

    def __init__(self, files: TokenizerFiles) -> None:
        from tokenizers import Tokenizer as Backend

        try:
            self._backend = Backend.from_file(str(files.tokenizer_json))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"{files.tokenizer_json}: cannot be loaded: {error}; download it again") from error
        # tokenizer.json may ask to cut or to fill up texts, as it was last used in training.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._add_bos_token = files.add_bos_token
        self._bos_token_id = None if files.bos_token is None else self._backend.token_to_id(files.bos_token)
        special_tokens = {
            "bos_token": files.bos_token,
            "eos_token": files.eos_token,
            "pad_token": files.pad_token,
            "unk_token": files.unk_token,
        }
        named = {name: text for name, text in special_tokens.items() if text is not None}
        self.chat_template = None if files.chat_template is None else ChatTemplate(files.chat_template, named)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Special tokens that the text spells out become single tokens in either case."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        bos = self._bos_token_id
        if not add_special_tokens or bos is None or self._add_bos_token is None:
            return ids
        if self._add_bos_token:
            return ids if ids[:1] == [bos] else [bos, *ids]
        # tokenizer.json puts a bos token first, tokenizer_config.json forbids it: the latter wins, unless the text itself starts so.
        return ids[1:] if ids[:1] == [bos] and self.encode(text, add_special_tokens=False)[:1] != [bos] else ids

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text for a chat. ``variables`` are further ones of the template.

        Raises RequestError when there is no chat template, or it refuses these messages.
        """
        if self.chat_template is None:
            raise RequestError("this model has no chat template, so it cannot chat; use --raw to give it plain text to continue")
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a chat's prompt. The template writes all special tokens itself, so none are added."""
        return self.encode(self.apply_chat_template(messages, add_generation_prompt, tools, variables), add_special_tokens=False)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids without a token, which a padded vocabulary has, give no text."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def is_byte_token(self, token_id: int) -> bool:
        """Whether the token stands for one byte, so that only its neighbours tell which character it belongs to."""
        token = self._backend.id_to_token(token_id)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None


class TextStream:
    """Token ids to text, one by one: what `feed` and then `finish` return, put together, is `decode` of all ids.

    Text is held back while the last character may still change: an incomplete UTF-8 sequence, or a run of byte tokens. Each step
    decodes the tokens since the last but one text came out, as decoders treat a first token in a way of its own.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._ids: list[int] = []
        self._in_byte_run = False
        self._window_start = 0
        self._window_text = ""
        self._emitted_until = 0
        self._emitted_chars = 0

    def feed(self, token_id: int) -> str:
        """The text that this token completes, often that of the token itself, "" while it is held back."""
        self._ids.append(token_id)
        if self._tokenizer.is_byte_token(token_id):
            self._in_byte_run = True
            return ""
        if self._in_byte_run and not self._tokenizer.decode([token_id], self._skip_special_tokens):
            # A token without text, such as a special one, leaves its neighbours side by side.
            return ""
        self._in_byte_run = False
        text = self._decode(self._window_start)
        if len(text) <= len(self._window_text) or text.endswith(_REPLACEMENT) or not text.startswith(self._window_text):
            return ""
        delta = text[len(self._window_text) :]
        self._window_start, self._emitted_until = self._emitted_until, len(self._ids)
        self._window_text = self._decode(self._window_start)
        self._emitted_chars += len(delta)
        return delta

    def finish(self) -> str:
        """The text still held back; an incomplete character comes out as U+FFFD. The stream takes no more tokens after it."""
        delta = self._decode(0)[self._emitted_chars :]
        self._emitted_chars += len(delta)
        return delta

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], self._skip_special_tokens)
