from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.text.reasoning import ReasoningParser, State, find_dialect
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.text.grammar.matcher import Mask, set_bit
from nearfar.server_fallback.text.reasoning_constraint import ReasoningConstraint
from nearfar.server_fallback.text.thinking import read_thinking

VECTORS = json.loads((Path(__file__).parents[2] / "conformance" / "reasoning.json").read_text())
VOCAB_SIZE, END, OPEN, CLOSE, BREAK = 8, 0, 1, 2, 3


@pytest.mark.parametrize("case", VECTORS["models"], ids=lambda case: case["template"][:30])
def test_a_models_markers_and_switch_are_those_of_its_tokens_and_template(case: dict[str, Any]) -> None:
    tokens: list[str] = case["tokens"]
    dialect = find_dialect(case["template"], lambda token: tokens.index(token) if token in tokens else None)
    assert (None if dialect is None else dialect.open) == case["open"]
    request = ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "enable_thinking": False}
    )
    ignored: list[str] = []
    thinking = read_thinking(request, case["template"], reasons=True, ignore=ignored.append)
    assert (thinking.variables, ignored) == (
        ({"enable_thinking": False}, []) if case["switch"] else ({}, ["enable_thinking"])
    )


@pytest.mark.parametrize("case", VECTORS["splits"], ids=lambda case: case["name"])
def test_any_split_of_a_text_gives_the_same_reasoning_and_content(case: dict[str, Any]) -> None:
    draw = random.Random(5)
    for longest in (10_000, 1, 2, 3, 3, 5):
        pieces: list[Any] = []
        for piece in case["pieces"]:
            if isinstance(piece, dict):
                pieces.append(piece)
                continue
            at = 0
            while at < len(piece):
                size = draw.randint(1, longest)
                pieces.append(piece[at : at + size])
                at += size
        assert parsed(case["start"], pieces, case.get("label", "")) == (case["reasoning"], case["content"])


def test_text_is_held_back_only_while_it_may_be_left_out() -> None:
    parser = ReasoningParser("reasoning")
    assert [parser.feed(text) for text in ("\n", "a", "\n", "\n", "b\n")] == [
        ("", ""),
        ("a", ""),
        ("", ""),
        ("", ""),
        ("\n\nb", ""),
    ]
    assert parser.held == "\n"
    parser.close()
    assert [parser.feed(text) for text in ("\n", "\nc", "\n")] == [("", ""), ("", "c"), ("", "\n")]


@pytest.mark.parametrize("case", VECTORS["constraints"], ids=lambda case: case["name"])
def test_a_constraint_bounds_the_reasoning_and_the_form_follows(case: dict[str, Any]) -> None:
    form = Form(case["needed"]) if case["form"] else None
    reasoning: Any = SimpleNamespace(
        open_id=OPEN, close_id=CLOSE, ending_ids=[BREAK, CLOSE, BREAK], is_blank=lambda token: token == BREAK
    )

    def constraint() -> ReasoningConstraint:
        return ReasoningConstraint(
            reasoning,
            case["start"],
            budget=case["budget"],
            form=form,
            max_tokens=case["max_tokens"],
            vocab_size=VOCAB_SIZE,
            end_token_ids=[END],
        )

    if case["masks"] == "refused":
        with pytest.raises(RequestError, match="raise it"):
            constraint()
        return
    bounded = constraint()
    allowed = {"any": None, "no end": [1, 2, 3, 4, 5, 6, 7], "form": [0, 5], "form or open": [0, 1, 5]}
    for step, wanted in enumerate(case["masks"]):
        assert ids(bounded.mask()) == (allowed[wanted] if isinstance(wanted, str) else [wanted]), step
        assert bounded.complete == bounded.finished == (form is not None and wanted == "form" and form.accepted > 0)
        if step < len(case["tokens"]):
            bounded.accept(case["tokens"][step])
    assert (None if form is None else form.spent) == case["spent"]


class Form:
    """A form of 5s that may end after any of them."""

    def __init__(self, needed: int | None) -> None:
        self.needed = needed
        self.spent: int | None = None
        self.accepted = 0

    def mask(self) -> Mask:
        mask = np.zeros(1, np.int32)
        for token_id in (END, 5):
            set_bit(mask, token_id)
        return mask

    def accept(self, token_id: int) -> None:
        assert token_id == 5
        self.accepted += 1

    def spend(self, tokens: int) -> None:
        assert self.spent is None
        self.spent = tokens

    @property
    def finished(self) -> bool:
        return self.accepted > 0

    @property
    def complete(self) -> bool:
        return self.accepted > 0


def ids(mask: Mask | None) -> list[int] | None:
    return None if mask is None else [token_id for token_id in range(VOCAB_SIZE) if int(mask[0]) >> token_id & 1]


def parsed(start: State, pieces: list[Any], label: str = "") -> tuple[str, str]:
    parser = ReasoningParser(start, label)
    reasoning = content = ""
    for piece in [*pieces, None]:
        if isinstance(piece, dict):
            (parser.open if piece["marker"] == "open" else parser.close)()
            continue
        parts = parser.finish() if piece is None else parser.feed(piece)
        reasoning, content = reasoning + parts.reasoning, content + parts.content
    return reasoning, content
