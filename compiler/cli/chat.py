"""A conversation on the terminal, which `nearfar run MODEL` starts if it gets no prompt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.text import Text

from ..runtime.errors import RequestError
from ..runtime.text.reasoning import Parts
from ..store.model import StoredModel
from .answer import AnswerWriter, print_speed
from .chat_commands import Chat, run_command
from .conversation import Conversation
from .output import new_console, shown


def converse(conversation: Conversation, title: str, stored: StoredModel | None = None) -> None:
    """Read messages from the terminal and answer them, until Ctrl-D or /bye. ``title`` says what answers, and
    ``stored`` is the model of the store that does, if one does.
    """
    chat = Chat(conversation, new_console(stderr=True, soft_wrap=True, highlight=False), stored)
    chat.notes.print(Text(conversation.model, style="bold").append(Text(f"  {title}", style="not bold dim")))
    chat.note("/help shows the commands, Ctrl-D ends the conversation\n")
    while not chat.ended:
        try:
            text = chat.reader.read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            chat.note("Ctrl-D ends the conversation")
            continue
        if text.startswith("/") and not text.startswith("//"):
            run_command(chat, text)
        elif text:
            reply(chat, text.removeprefix("/") if text.startswith("//") else text)
        if text:
            chat.notes.print()


def reply(chat: Chat, text: str) -> None:
    conversation, writer = chat.conversation, AnswerWriter(chat.notes)
    waiting = chat.notes.status("reading", spinner_style="dim")

    def write(parts: Parts) -> None:
        waiting.stop()
        writer(parts)

    waiting.start()
    try:
        with stopped_by_ctrl_c() as cancelled:
            answer, dropped = conversation.send(chat.content(text), write, cancelled)
    except RequestError as error:
        waiting.stop()
        chat.notes.print(f"[bold red]error:[/] {shown(error.message, lines=True)}")
        return
    finally:
        waiting.stop()
    writer.end_reasoning()
    print(flush=True)
    chat.images.clear()
    if dropped:
        chat.note(f"the context was full: the oldest {dropped} messages were left out")
    if chat.shows_speed:
        print_speed(answer, f"context {conversation.cached_tokens} of {conversation.context}")


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
