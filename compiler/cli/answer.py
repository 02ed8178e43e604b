"""One answer on the terminal: it is written as it is generated, until a stop string, a limit or Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

from ..ir.sampling import Sampler
from ..runtime.generate import Timings, generate
from ..runtime.placed_features import PlacedFeatures
from ..runtime.runner import Runner
from ..runtime.text.reasoning import Parts, Reasoning, ReasoningParser
from ..runtime.text.stop_strings import StopAutomaton, StopStrings
from ..runtime.text.text_stream import TextStream
from ..runtime.text.tokenizer import Tokenizer
from .output import new_console

# What a terminal would obey instead of showing it, such as an escape sequence in the text of a model.
_CONTROLS = dict.fromkeys((set(range(32)) | set(range(127, 160))) - {9, 10}, "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class Answer:
    """``token_ids``: all generated tokens, including those of a stop string. ``text`` ends before it. ``reasoning`` is
    what the model wrote before the text, between its markers.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled"]
    timings: Timings
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Answerer:
    """The state that all answers of one `nearfar run` share. ``sampler`` continues from answer to answer. ``adapter``
    is the runner's slot of a LoRA adapter, -1 for none.
    """

    runner: Runner
    tokenizer: Tokenizer
    sampler: Sampler
    stops: StopAutomaton
    adapter: int = -1

    def answer(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        write: Callable[[Parts], object],
        *,
        cached: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
        features: Callable[[], Sequence[PlacedFeatures]] = tuple,
    ) -> Answer:
        """``write`` receives the text piece by piece. See `generate` for the other arguments and for the errors. Stop
        strings end the text, not the reasoning.
        """
        timings, stream, stops = Timings(), TextStream(self.tokenizer), StopStrings(self.stops)
        reasoning = Reasoning.of(self.tokenizer)
        state = "content" if reasoning is None else reasoning.state_after(prompt)
        parser = ReasoningParser(state, "" if reasoning is None else reasoning.dialect.label)
        token_ids: list[int] = []
        pieces: list[Parts] = []

        def show(parts: Parts) -> None:
            if parts.reasoning or parts.content:
                pieces.append(parts)
                write(parts)

        more: dict[str, Any] = {"cached": cached, "cancelled": cancelled, "features": features, "adapter": self.adapter}
        for token in generate(self.runner, prompt, max_tokens, self.sampler, timings, **more):
            token_ids.append(token)
            text = stream.feed(token)
            parts = Parts("", text) if reasoning is None else parser.feed_token(token, text, reasoning)
            show(Parts(parts.reasoning, stops.feed(parts.content)))
            if stops.stopped:
                break
        if not stops.stopped:
            last, rest = parser.feed(stream.finish()), parser.finish()
            show(Parts(last.reasoning, stops.feed(last.content + rest.content) + stops.finish()))
        reason: Literal["stop", "length", "cancelled"] = "stop"
        if not stops.stopped:
            reason = "length" if len(token_ids) == max_tokens else "cancelled" if cancelled() else "stop"
        written = "".join(each.content for each in pieces)
        return Answer(written, token_ids, reason, timings, "".join(each.reasoning for each in pieces))


@dataclass(slots=True)
class AnswerWriter:
    """Writes an answer to standard output, and its reasoning dimmed to standard error, so that a file or a pipe
    receives the answer alone.
    """

    notes: Console = field(default_factory=lambda: new_console(stderr=True, soft_wrap=True, highlight=False))
    _reasons: bool = False

    def __call__(self, parts: Parts) -> None:
        if parts.reasoning:
            if not self._reasons:
                self._reasons = True
                self.notes.print("thinking", style="dim italic")
            self.notes.print(_harmless(parts.reasoning), style="dim", markup=False, end="")
        if parts.content:
            self.end_reasoning()
            sys.stdout.write(_harmless(parts.content) if sys.stdout.isatty() else parts.content)
            sys.stdout.flush()

    def end_reasoning(self) -> None:
        """Leave an empty line behind reasoning, if there is any."""
        if self._reasons:
            self._reasons = False
            self.notes.print("\n")


def print_speed(answer: Answer, more: str) -> None:
    """Print one line to standard error. ``more`` ends the line."""
    timings = answer.timings
    ended = {"stop": "", "length": ", stopped at the token limit", "cancelled": ", stopped"}[answer.finish_reason]
    parts = [
        f"{timings.completion_tokens} tokens{ended}",
        f"first after {timings.time_to_first_token_seconds * 1000:.0f} ms",
        *([f"{timings.tokens_per_second:.1f} tokens/s"] if timings.tokens_per_second else []),
        more,
    ]
    new_console(stderr=True, soft_wrap=True).print(escape(" · ".join(parts)), style="dim", highlight=False)


def _harmless(text: str) -> str:
    return text.translate(_CONTROLS)
