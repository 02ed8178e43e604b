"""Reads the texts of a request for embeddings or scores: token ids, shortened if the request allows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearfar.compiler.ir.tasks import ClassifierSpec
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.pair_text import encode_in_template
from nearfar.compiler.runtime.text.tokenizer import EncodedText, Tokenizer

from ..schema.encoding import EncodingRequest
from .requests import check_length, check_prompt

# A bound for texts that are not shortened, so that the tokenizer reports their real length.
UNLIMITED = sys.maxsize


@dataclass(frozen=True, slots=True)
class TextReader:
    """``max_tokens``: longer texts are shortened to it; None makes texts beyond ``context`` an error."""

    tokenizer: Tokenizer
    vocab_size: int
    context: int
    max_tokens: int | None = None

    @staticmethod
    def of(request: EncodingRequest, tokenizer: Tokenizer, vocab_size: int, context: int) -> TextReader:
        """Raises RequestError for a limit beyond the context."""
        limit = request.truncate_prompt_tokens
        if limit is not None and request.truncate is False:
            raise RequestError(
                "truncate is false and truncate_prompt_tokens is given; use one of them", param="truncate"
            )
        if limit is not None and limit > context:
            raise RequestError(
                f"truncate_prompt_tokens is {limit}, more than this model's context of {context}; use at most that, or "
                "-1",
                param="truncate_prompt_tokens",
            )
        if limit is None:
            limit = context if request.truncate else None
        return TextReader(tokenizer, vocab_size, context, context if limit == -1 else limit)

    def texts(
        self,
        given: str | list[int] | list[str] | list[list[int]],
        param: str,
        prefix: str = "",
        *,
        offsets: bool = False,
    ) -> list[EncodedText]:
        """One text or list of token ids, or several of either. ``prefix`` precedes each text, not token ids. Texts have
        ``offsets`` if these are requested.

        Raises RequestError for the first one that is empty, too long, has an unknown id or cannot be encoded. The texts
        after it are not encoded.
        """
        if isinstance(given, str):
            return [self._text(given, param, prefix, offsets)]
        ids = [part for part in given if isinstance(part, int)]
        if len(ids) == len(given):
            return [self._ids(ids, param)]
        parts = [part for part in given if not isinstance(part, int)]
        names = [param if len(parts) == 1 else f"{param}[{index}]" for index in range(len(parts))]
        return [
            self._text(part, name, prefix, offsets) if isinstance(part, str) else self._ids(part, name)
            for part, name in zip(parts, names, strict=True)
        ]

    def limited(self, max_tokens: int | None) -> TextReader:
        """A reader that also shortens texts to ``max_tokens``."""
        if max_tokens is None:
            return self
        return replace(self, max_tokens=min(max_tokens, self.max_tokens or self.context))

    def pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        names: Sequence[str],
        max_second: int | None,
        classifier: ClassifierSpec,
        *,
        shortens_first: bool = False,
    ) -> list[EncodedText]:
        """Each pair as one sequence, in the form of the classifier; ``names`` are the parameters that errors name.
        If the request shortens texts, or the second ones to ``max_second`` tokens, only the second ones are, or with
        ``shortens_first`` the first ones.
        """
        is_limited = self.max_tokens is not None or max_second is not None
        limit = self.max_tokens or (self.context if max_second is not None else UNLIMITED)
        found = []
        for (first, second), name in zip(pairs, names, strict=True):
            if not second:
                raise RequestError(f"{name} is empty; give at least one character", param=name)
            if not is_limited:
                check_length(self.tokenizer, first, self.context, name)
                check_length(self.tokenizer, second, self.context, name)
            try:
                if classifier.template is None:
                    encoded = self.tokenizer.encode_shortened(
                        first, second, limit, max_second, shortens_first=shortens_first
                    )
                else:
                    encoded = self._rendered(classifier, first, second, limit, max_second)
            except RequestError as error:
                raise RequestError(error.message, **{"param": name, **error.details}) from error
            check_prompt(encoded.ids, self.vocab_size, self.context, name)
            found.append(encoded)
        return found

    def _rendered(
        self, classifier: ClassifierSpec, query: str, document: str, limit: int, max_document: int | None
    ) -> EncodedText:
        if max_document is not None:
            document = self.tokenizer.beginning(document, max_document)
        ids = encode_in_template(self.tokenizer, classifier, query, document, limit)
        return EncodedText(ids, [0] * len(ids), [])

    def _text(self, text: str, name: str, prefix: str, offsets: bool) -> EncodedText:
        if not text:
            raise RequestError(f"{name} is empty; give at least one character", param=name)
        if self.max_tokens is None:
            check_length(self.tokenizer, prefix + text, self.context, name)
        most = self.max_tokens or UNLIMITED
        try:
            # A text that is shortened is not encoded as a whole.
            is_longer = self.max_tokens is not None and self.tokenizer.least_tokens(prefix + text, most) > most
            ids = [] if offsets or is_longer else self.tokenizer.encode(prefix + text)
            encoded = EncodedText(ids, [0] * len(ids), [])
            if offsets or is_longer or len(ids) > most:
                encoded = self.tokenizer.encode_shortened(prefix + text, None, most)
        except RequestError as error:
            raise RequestError(error.message, **{"param": name, **error.details}) from error
        check_prompt(encoded.ids, self.vocab_size, self.context, name)
        skip = len(prefix)
        characters = [(max(0, start - skip), max(0, end - skip)) for start, end in encoded.offsets]
        return EncodedText(encoded.ids, encoded.token_types, characters)

    def _ids(self, ids: list[int], name: str) -> EncodedText:
        # Only what remains of a list is checked, as of a text.
        ids = ids[: self.max_tokens]
        check_prompt(ids, self.vocab_size, self.context, name)
        return EncodedText(ids, [0] * len(ids), [])
