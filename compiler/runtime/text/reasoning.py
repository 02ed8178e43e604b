"""Separates a model's reasoning from the answer that follows it.

The markers (``<think>``) are single tokens of the vocabulary, and the parser receives them by id: an answer that spells
a marker with other tokens is not cut. web/src/text/reasoning.ts does the same, and tests/conformance/reasoning.json
tests that both give the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .tokenizer import Tokenizer

# The part of the answer that comes next. "start": only white space precedes, so reasoning may still begin.
State = Literal["start", "reasoning", "content"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The markers, and what models and templates write around them.

    ``label`` follows the opening marker and is not part of the reasoning.
    """

    open: str
    close: str
    label: str = "\n"
    before_close: str = "\n"
    after_close: str = "\n\n"


# Qwen 3, DeepSeek R1, SmolLM3 and others; Gemma 4; Magistral and Ministral 3.
DIALECTS = (
    Dialect("<think>", "</think>"),
    Dialect("<|channel>", "<channel|>", "thought\n", "\n", ""),
    Dialect("[THINK]", "[/THINK]", "", "", ""),
)


def find_dialect(template: str, token_id: Callable[[str], int | None]) -> Dialect | None:
    """The dialect of a model; None if it does not reason.

    The markers must be tokens, and the chat template must contain the closing one.
    """
    return next(
        (
            each
            for each in DIALECTS
            if each.close in template and None not in (token_id(each.open), token_id(each.close))
        ),
        None,
    )


class Reasoning:
    """One model's form of reasoning, in token ids.

    ``ending_ids`` end the reasoning: the closing marker and the line breaks around it.
    """

    def __init__(self, dialect: Dialect, tokenizer: Tokenizer) -> None:
        self.dialect, self._tokenizer = dialect, tokenizer
        open_id, close_id = tokenizer.token_id(dialect.open), tokenizer.token_id(dialect.close)
        assert open_id is not None
        assert close_id is not None
        self.open_id, self.close_id = open_id, close_id
        self.ending_ids = [*self._encode(dialect.before_close), close_id, *self._encode(dialect.after_close)]
        # Whether text can spell the markers; special tokens cannot be spelled.
        self._is_spelled = self._encode(dialect.close) == [close_id]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Reasoning | None:
        """None for a model that does not reason."""
        template = tokenizer.chat_template
        dialect = None if template is None else find_dialect(template.source, tokenizer.token_id)
        return None if dialect is None else Reasoning(dialect, tokenizer)

    def is_blank(self, token_id: int) -> bool:
        """Whether a token is white space."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False).isspace()

    def state_after(self, prompt_ids: Sequence[int]) -> State:
        """The state in which an answer to a prompt begins.

        A template may open the reasoning, and close it again if it is switched off.
        """
        for at in range(len(prompt_ids) - 1, -1, -1):
            token_id = prompt_ids[at]
            if token_id == self.close_id:
                return "content"
            if token_id == self.open_id:
                return "reasoning"
            if self.is_blank(token_id):
                continue
            rest = self._tokenizer.decode(prompt_ids[at:], skip_special_tokens=False).strip()
            if not rest or not self.dialect.label.strip().endswith(rest):
                return "start"
        return "start"

    def begun(self, state: State, content: str, reasoning: str) -> tuple[list[int], State]:
        """The ids of an answer that the client began, after a prompt that ends in ``state``, and the state after them.

        ``content`` may hold the reasoning itself, between its markers.
        """
        ids: list[int] = []
        is_closed = self._is_spelled and self.dialect.close in content
        opens = self._is_spelled and content.lstrip().startswith(self.dialect.open)
        has_reasoning = not reasoning and (is_closed or opens)
        if reasoning:
            ids += [
                *([] if state == "reasoning" else [self.open_id, *self._encode(self.dialect.label)]),
                *self._encode(reasoning),
            ]
            state = "reasoning"
        if content:
            ids += [*(self.ending_ids if state == "reasoning" and not has_reasoning else []), *self._encode(content)]
            state = "reasoning" if has_reasoning and not is_closed else "content"
        return ids, state

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Parts(NamedTuple):
    reasoning: str
    content: str


class ReasoningParser:
    """Cuts one answer's text at the markers.

    Line breaks at both ends of the reasoning and before the content are left out. The result does not depend on how the
    text is divided into pieces. An answer that never closes its reasoning has no content. ``label`` at the start of the
    reasoning is left out too.
    """

    def __init__(self, state: State, label: str = "") -> None:
        self.state = state
        # Empty once it was left out, or other text came.
        self._label = label
        # Text that may have to be left out.
        self.held = ""
        # Whether the next line breaks are left out.
        self._at_start = state != "content"

    def feed(self, text: str) -> Parts:
        """The text that now certainly belongs to the answer and was not returned before."""
        if self.state == "content":
            return Parts("", self._without_leading_breaks(text))
        text, self.held = self.held + text, ""
        if self.state == "start":
            if not text.strip():
                self.held = text
                return Parts("", "")
            self.state, self._at_start = "content", False
            return Parts("", text)
        text = self._without_leading_breaks(text)
        if self._label.strip() and text:
            if len(text) < len(self._label) and self._label.startswith(text):
                self.held = text
                return Parts("", "")
            if text.startswith(self._label):
                self._at_start = True
                text = self._without_leading_breaks(text[len(self._label) :])
            self._label = ""
        settled = text.rstrip("\n")
        self.held = text[len(settled) :]
        return Parts(settled, "")

    def feed_token(self, token_id: int, text: str, reasoning: Reasoning) -> Parts:
        """`feed` for the text that a token completed, which may be a marker: the decoder writes those that are no
        special tokens.
        """
        if token_id == reasoning.close_id and self.state == "reasoning":
            parts = self.feed(text.removesuffix(reasoning.dialect.close))
            self.close()
            return parts
        if token_id == reasoning.open_id and self.state == "start":
            parts = self.feed(text.removesuffix(reasoning.dialect.open))
            self.open()
            return parts
        return self.feed(text)

    def open(self) -> None:
        """The opening marker was generated. It has an effect only at the start."""
        if self.state == "start":
            self.state, self.held = "reasoning", ""

    def close(self) -> None:
        """The closing marker was generated. It has an effect only in the reasoning."""
        if self.state == "reasoning":
            self.state, self.held, self._at_start = "content", "", True

    def finish(self) -> Parts:
        """The text that was still held back at the end of the answer."""
        held, self.held = self.held, ""
        return Parts("", held if self.state == "start" else "")

    def _without_leading_breaks(self, text: str) -> str:
        if self._at_start:
            text = text.lstrip("\n")
            self._at_start = text == ""
        return text
