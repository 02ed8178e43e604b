"""A constraint for an answer that reasons first: it limits the reasoning, and a form constrains the content.

Within the budget, any token is allowed. Then the tokens that end the reasoning are forced one by one. The browser does
the same (web/src/grammar/reasoning_constraint.ts).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

import numpy as np

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.reasoning import Reasoning, State

from ..engine.min_tokens import mask_without
from ..engine.request import Constraint
from .grammar.matcher import Mask, has_bit, set_bit


class FormConstraint(Constraint, Protocol):
    """The constraint of an answer that has not yet begun."""

    @property
    def needed(self) -> int | None:
        """The number of tokens of the shortest known answer; None if none is known."""

    def spend(self, tokens: int) -> None:
        """Count ``tokens`` tokens of the answer that precede its form."""


class ReasoningConstraint:
    """Constrains an answer of at most ``max_tokens`` that begins in ``state``.

    ``budget`` is the maximum number of reasoning tokens, without the markers; None sets no limit. ``form`` constrains
    the content.

    With a form, the reasoning leaves room for the marker and the shortest content, and the model's ``end_token_ids``
    cannot end the answer before its content. Raises RequestError if there is not enough room.
    """

    def __init__(
        self,
        reasoning: Reasoning,
        state: State,
        *,
        budget: int | None,
        form: FormConstraint | None,
        max_tokens: int,
        vocab_size: int,
        end_token_ids: Collection[int],
    ) -> None:
        self._reasoning, self._state = reasoning, state
        self._budget, self._form = budget, form
        self._vocab_size = vocab_size
        self._any = None if form is None else mask_without(end_token_ids, vocab_size)
        needed = None if form is None else form.needed
        # The maximum number of tokens before the end of the reasoning.
        self._room = math.inf if needed is None else max_tokens - len(reasoning.ending_ids) - needed
        if state == "reasoning" and self._room < 0:
            raise RequestError(
                f"the end of the reasoning and the shortest answer found need {max_tokens - self._room} tokens, and "
                f"max_tokens is {max_tokens}; raise it",
                param="max_tokens",
            )
        # The number of tokens before the content, and of those in the reasoning.
        self._spent = self._reasoned = 0
        self._forced: list[int] = []

    def mask(self) -> Mask | None:
        if self._state == "reasoning" and not self._forced and self._is_used_up:
            self._forced = list(self._reasoning.ending_ids)
        if self._forced:
            only = np.zeros(-(-self._vocab_size // 32), np.int32)
            set_bit(only, self._forced[0])
            return only
        if self._form is None:
            return None
        if self._state == "reasoning":
            return self._any
        mask = self._form.mask()
        if self._state == "start" and mask is not None and self._fits and not has_bit(mask, self._reasoning.open_id):
            mask = mask.copy()
            set_bit(mask, self._reasoning.open_id)
        return mask

    def accept(self, token_id: int) -> None:
        """Raises the errors of the form."""
        if self._forced:
            self._spent += 1
            del self._forced[0]
            if token_id == self._reasoning.close_id:
                self._state = "content"
        elif self._state == "reasoning":
            self._spent += 1
            self._reasoned += 1
            if token_id == self._reasoning.close_id:
                self._state = "content"
        elif self._state == "start" and token_id == self._reasoning.open_id and self._fits:
            self._spent += 1
            self._state = "reasoning"
            return
        else:
            if self._form is not None:
                self._form.accept(token_id)
            if self._form is not None or not self._reasoning.is_blank(token_id):
                self._state = "content"
            return
        if self._form is not None and self._in_content:
            self._form.spend(self._spent)

    @property
    def finished(self) -> bool:
        return self._form is not None and self._in_content and self._form.finished

    @property
    def complete(self) -> bool:
        return self._form is not None and self._in_content and self._form.complete

    @property
    def _in_content(self) -> bool:
        return self._state == "content" and not self._forced

    @property
    def _is_used_up(self) -> bool:
        over_budget = self._budget is not None and self._reasoned >= self._budget
        return over_budget or not self._fits

    @property
    def _fits(self) -> bool:
        """Whether there is room for one more token before the end of the reasoning."""
        return self._spent < self._room
