"""A conversation on the terminal, which `nearfar run BUNDLE` starts if it gets no prompt.

The keys and values of earlier turns stay in the runner, so a new turn computes only its own tokens. If the context is
full, the oldest turns are left out; the system prompt stays.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.markup import escape

from ..runtime.errors import RequestError
from .answer import Answer, Answerer, print_speed, write_out

PROMPT = "> "
HELP = """\
/system TEXT   set the system prompt; without TEXT, show it
/reset         forget the conversation; the system prompt stays
/help          show this help
Ctrl-C         stop an answer; the conversation goes on
Ctrl-D         end the conversation
To send a message that starts with /, start it with //."""
# The share of the context that older turns leave free for the answer.
ANSWER_SHARE = 0.25

Message = dict[str, str]


class Conversation:
    """Messages, and the token ids whose keys and values are in the runner.

    ``max_tokens`` None: an answer may fill the rest of the context.
    """

    def __init__(self, answerer: Answerer, system: str | None = None, max_tokens: int | None = None) -> None:
        self.system = system
        self._answerer, self._max_tokens = answerer, max_tokens
        self.context = answerer.runner.manifest.context
        self._turns: list[Message] = []
        self._cached_ids: list[int] = []

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the context that the conversation occupies."""
        return len(self._cached_ids)

    def reset(self) -> None:
        self._turns = []

    def send(self, text: str, write: Callable[[str], object], cancelled: Callable[[], bool]) -> tuple[Answer, int]:
        """The answer, and the number of old messages that were left out for it.

        Raises RequestError for a message that the template refuses or that does not fit. The conversation is then
        unchanged.
        """
        turns, dropped = [*self._turns, {"role": "user", "content": text}], 0
        prompt = self._encode(turns)
        while len(prompt) + self._room > self.context and len(turns) > 1:
            # A turn is a message and its answer.
            turns, dropped = turns[2:], dropped + 2
            prompt = self._encode(turns)
        remaining = max(1, self.context - len(prompt) + 1)
        cached = min(common_length(self._cached_ids, prompt), len(prompt) - 1)
        self._cached_ids = self._cached_ids[:cached]
        limit = remaining if self._max_tokens is None else min(self._max_tokens, remaining)
        answer = self._answerer.answer(prompt, limit, write, cached=cached, cancelled=cancelled)
        if answer.token_ids:
            # The last token was sampled, but its keys and values were not computed.
            self._cached_ids = [*prompt, *answer.token_ids[:-1]]
            self._turns = [*turns, {"role": "assistant", "content": answer.text}]
        return answer, dropped

    @property
    def _room(self) -> int:
        share = int(ANSWER_SHARE * self.context)
        return share if self._max_tokens is None else min(self._max_tokens, share)

    def _encode(self, turns: list[Message]) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self._answerer.tokenizer.encode_chat([*system, *turns])


def converse(conversation: Conversation, title: str) -> None:
    """Read messages from the terminal and answer them, until Ctrl-D."""
    edit_lines()
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    notes.print(f"{escape(title)}\n[dim]/help shows the commands, Ctrl-D ends the conversation[/]")
    while (line := read_line(notes)) is not None:
        text = line.strip()
        if text.startswith("/") and not text.startswith("//"):
            command(conversation, text, notes)
        elif text:
            reply(conversation, text.removeprefix("/") if text.startswith("//") else text, notes)


def edit_lines() -> None:
    """Let `input` edit lines and keep a history, if the system supports it."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return


def read_line(notes: Console) -> str | None:
    """The next line; None at the end of the input."""
    try:
        # If the output is not a terminal, `input` would write the prompt between the answers.
        return input(PROMPT if sys.stdout.isatty() else "")
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        notes.print("\nCtrl-D ends the conversation", style="dim")
        return ""


def command(conversation: Conversation, text: str, notes: Console) -> None:
    name, _, argument = text.partition(" ")
    if name == "/help":
        notes.print(HELP, style="dim", markup=False)
    elif name == "/reset":
        conversation.reset()
        notes.print("new conversation", style="dim")
    elif name == "/system":
        conversation.system = argument.strip() or conversation.system
        notes.print(
            f"system prompt: {escape(conversation.system)}" if conversation.system else "no system prompt", style="dim"
        )
    else:
        notes.print(f"unknown command {escape(name)}; /help shows the commands", style="yellow")


def reply(conversation: Conversation, text: str, notes: Console) -> None:
    try:
        with stopped_by_ctrl_c() as cancelled:
            answer, dropped = conversation.send(text, write_out, cancelled)
    except RequestError as error:
        notes.print(f"[bold red]error:[/] {escape(error.message)}")
        return
    print(flush=True)
    if dropped:
        notes.print(f"the context was full: the oldest {dropped} messages were left out", style="dim")
    print_speed(answer, f"({conversation.cached_tokens} of {conversation.context} tokens of context)")


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """A function that returns whether Ctrl-C was pressed in the block. A second Ctrl-C raises KeyboardInterrupt."""
    pressed = False

    def press(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def common_length(first: list[int], second: list[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
