"""Runs a program on a pseudo-terminal and types into it, like a user at a keyboard."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# This is long because the machine may be busy.
TIMEOUT_SECONDS = 120
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """``text``: everything that the program has shown, without escape sequences."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""
        self._read_until = 0

    def send(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def interrupt(self, pattern: str) -> re.Match[str]:
        """Press Ctrl-C at a prompt until the pattern appears, because readline can miss a signal just after it shows
        the prompt.
        """
        return self.expect(pattern, every_5_seconds="\x03")

    def expect(self, pattern: str, every_5_seconds: str = "") -> re.Match[str]:
        """Read until the pattern appears after what was expected before."""
        started, num_sent = time.monotonic(), 0
        while (found := re.compile(pattern).search(self.text, self._read_until)) is None:
            seconds = time.monotonic() - started
            assert seconds < TIMEOUT_SECONDS, f"{pattern!r} did not appear in {self.text[self._read_until :]!r}"
            if every_5_seconds and seconds >= 5 * num_sent:
                self.send(every_5_seconds)
                num_sent += 1
            self._read()
        self._read_until = found.end()
        return found

    def read_to_the_end(self) -> None:
        while self._read():
            pass

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            # Linux reports a terminal without a program this way.
            return False
        self.text += ESCAPES.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
        return bool(data)


@contextmanager
def on_a_terminal(
    command: Sequence[str], folder: Path, columns: int = 80
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    main, terminal = pty.openpty()
    # Nobody answers where the cursor is.
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "PROMPT_TOOLKIT_NO_CPR": "1"}
    environment["NEARFAR_CACHE"] = str(folder / "cache")
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=control,
    )
    os.close(terminal)
    try:
        yield Terminal(main), process
    finally:
        process.kill()
        process.wait()
        os.close(main)


def control() -> None:
    """Make the terminal the controlling terminal of the new session, so that Ctrl-C reaches the program as a signal. A
    shell that runs the tests in the background has them ignore this signal.
    """
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
