"""TextStream converts a stream of token ids to text."""

from __future__ import annotations

from .tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class TextStream:
    """Converts token ids to text, one by one. The results of `feed` and `finish` together are `decode` of all ids.

    Text is held back while its last character may still change: an incomplete UTF-8 sequence, or a run of byte tokens.
    The text of a token that does not depend on its neighbours is decoded only once. For others, each step decodes the
    tokens since the last but one emitted text, because decoders treat the first token differently.
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
        """The text that this token completes, which is usually its own text; "" while text is held back."""
        if self._skip_special_tokens and not self._in_byte_run and self._emitted_until == len(self._ids):
            text = self._tokenizer.text_of(token_id)
            if text is not None:
                self._ids.append(token_id)
                self._window_start = self._emitted_until = len(self._ids)
                self._window_text = ""
                self._emitted_chars += len(text)
                return text
        self._ids.append(token_id)
        if self._tokenizer.is_byte_token(token_id):
            self._in_byte_run = True
            return ""
        if self._in_byte_run and not self._tokenizer.decode([token_id], self._skip_special_tokens):
            # A token without text, such as a special one, does not end a run of byte tokens.
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
        """The text that is still held back. An incomplete character becomes U+FFFD. The stream accepts no more tokens
        after this.
        """
        delta = self._decode(0)[self._emitted_chars :]
        self._emitted_chars += len(delta)
        return delta

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self._ids[start:], self._skip_special_tokens)
