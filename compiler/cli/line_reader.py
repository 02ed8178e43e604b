"""Reads messages from a terminal: lines with a history, several lines between triple quotes or pasted at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..store.place import cache_folder

QUOTES = '"""'
# Beyond this size, the older half of the history is left out.
MAX_HISTORY_BYTES = 1 << 20
PLACEHOLDER = "Send a message (/help shows the commands)"


def history_file() -> Path:
    return cache_folder() / "history"


class LineReader:
    """``complete`` returns the continuations of what was typed so far, for the tab key. ``remembers``: entries are
    added to the file of the history. Without a terminal for the output, the prompt is not shown in it.
    """

    def __init__(self, complete: Callable[[str], Sequence[str]]) -> None:
        self._complete = complete
        self.remembers = True
        self._session: Any = None

    def read(self) -> str:
        """The next message or command, without the quotes around several lines. Raises EOFError at Ctrl-D, and
        KeyboardInterrupt at Ctrl-C.
        """
        if self._session is None:
            self._session = self._open()
        return without_quotes(str(self._session.prompt()))

    def _open(self) -> Any:
        # It takes longer to import than a command that does not ask takes to start.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.output import create_output
        from prompt_toolkit.styles import Style

        reader = self

        class Tab(Completer):
            def get_completions(self, document: Any, complete_event: Any) -> Iterable[Completion]:  # noqa: ARG002
                typed = document.text_before_cursor
                for each in reader._complete(typed):
                    yield Completion(each, start_position=-len(typed))

        class Remembered(FileHistory):
            def store_string(self, string: str) -> None:
                if reader.remembers and string.strip():
                    super().store_string(string)

        keys, file = KeyBindings(), prepared_history()

        @keys.add("enter")
        def _(event: Any) -> None:
            buffer = event.current_buffer
            if is_open(buffer.text):
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: Any) -> None:
            event.current_buffer.newline(copy_margin=False)

        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        mark, more = ("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} ", "\N{MIDDLE DOT} ") if utf8 else ("> ", ". ")
        return PromptSession(
            FormattedText([("class:mark", mark)]),
            multiline=True,
            prompt_continuation=lambda *_: FormattedText([("class:more", more)]),
            placeholder=FormattedText([("class:placeholder", PLACEHOLDER)]),
            history=InMemoryHistory() if file is None else Remembered(str(file)),
            completer=Tab(),
            complete_while_typing=False,
            enable_open_in_editor=True,
            key_bindings=keys,
            style=Style.from_dict(
                {"mark": "ansicyan bold", "more": "ansibrightblack", "placeholder": "ansibrightblack"}
            ),
            output=create_output(always_prefer_tty=True),
        )


def is_open(text: str) -> bool:
    """Whether a text begins with three quotes that are not closed."""
    opened = quoted_part(text)
    return opened is not None and not (opened.rstrip().endswith(QUOTES))


def quoted_part(text: str) -> str | None:
    """What follows the three quotes with which a message, or the text of a command, begins; None without them."""
    head, quotes, rest = text.partition(QUOTES)
    words = head.split()
    starts = not words or (words[0].startswith("/") and not head[-1:].strip() and len(words) <= 3)
    return rest if quotes and starts else None


def without_quotes(text: str) -> str:
    """A message without the three quotes around it, with all line breaks inside."""
    inner = quoted_part(text)
    if inner is None or not inner.rstrip().endswith(QUOTES):
        return text
    return text[: len(text) - len(inner) - len(QUOTES)] + inner.rstrip()[: -len(QUOTES)]


def prepared_history() -> Path | None:
    """The file of the history, which others cannot read, without its oldest entries if it has become long. None if it
    cannot be written: then the history ends with the conversation.
    """
    file = history_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as content:
            size = content.seek(0, os.SEEK_END)
            if size > MAX_HISTORY_BYTES:
                content.seek(size - MAX_HISTORY_BYTES // 2)
                # An entry begins with a line "# TIME", and others begin with "+".
                kept = b"".join(content.read().partition(b"\n#")[1:])
                content.seek(0)
                content.write(kept)
                content.truncate()
    except OSError:
        return None
    return file
