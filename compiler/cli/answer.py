"""One answer on the terminal: it is written as it is generated, until a stop string, a limit or Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

from ..ir.sampling import Sampler
from ..runtime.generate import Timings, generate
from ..runtime.placed_features import PlacedFeatures
from ..runtime.runner import Runner
from ..runtime.text.stop_strings import StopAutomaton, StopStrings
from ..runtime.text.text_stream import TextStream
from ..runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """``token_ids``: all generated tokens, including those of a stop string. ``text`` ends before it."""

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled"]
    timings: Timings


@dataclass(frozen=True, slots=True)
class Answerer:
    """The state that all answers of one `nearfar run` share. ``sampler`` continues from answer to answer."""

    runner: Runner
    tokenizer: Tokenizer
    sampler: Sampler
    stops: StopAutomaton

    def answer(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        write: Callable[[str], object],
        *,
        cached: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
        features: Callable[[], Sequence[PlacedFeatures]] = tuple,
    ) -> Answer:
        """``write`` receives the text piece by piece. See `generate` for the other arguments and for the errors."""
        timings, stream, stops = Timings(), TextStream(self.tokenizer), StopStrings(self.stops)
        token_ids: list[int] = []
        pieces: list[str] = []

        def show(text: str) -> None:
            pieces.append(text)
            write(text)

        more: dict[str, Any] = {"cached": cached, "cancelled": cancelled, "features": features}
        for token in generate(self.runner, prompt, max_tokens, self.sampler, timings, **more):
            token_ids.append(token)
            show(stops.feed(stream.feed(token)))
            if stops.stopped:
                break
        if not stops.stopped:
            show(stops.feed(stream.finish()))
            show(stops.finish())
        reason: Literal["stop", "length", "cancelled"] = "stop"
        if not stops.stopped:
            reason = "length" if len(token_ids) == max_tokens else "cancelled" if cancelled() else "stop"
        return Answer("".join(pieces), token_ids, reason, timings)


def write_out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def print_speed(answer: Answer, more: str) -> None:
    """Print one line to standard error. ``more`` ends the line."""
    timings = answer.timings
    first = f"first after {timings.time_to_first_token_seconds * 1000:.0f} ms"
    ended = {"stop": "", "length": ", stopped at the token limit", "cancelled": ", stopped"}[answer.finish_reason]
    line = f"{timings.completion_tokens} tokens{ended}, {first}, {timings.tokens_per_second:.1f} tokens/s {more}"
    Console(stderr=True, soft_wrap=True).print(escape(line), style="dim", highlight=False)
