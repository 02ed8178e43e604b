"""Files that users name: devices and what is too large are refused before they fill the memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nearfar.compiler.cli import main
from nearfar.compiler.given_file import read_given, read_given_text


@pytest.mark.parametrize(
    "command",
    [
        "serve --config /dev/zero",
        "serve --api-keys /dev/zero",
        "gateway --near demo --far http://host:1 --policy /dev/zero",
        "serve demo --tls-cert /dev/zero",
        "simulate /dev/zero",
        "verify /dev/zero --bundle x",
        "watermark detect x --model x --key /dev/zero",
        "decide demo x --questions /dev/zero",
        "create x -f /dev/zero",
        "run demo x --image /dev/zero",
        "transcribe /dev/zero x",
    ],
)
def test_a_device_is_refused_by_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert "/dev/zero" in error
    assert "is not a file" in error


def test_what_is_too_large_is_refused_and_a_pipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\n")
    assert read_given(tmp_path / "file", 5) == b"a\r\nb\n"
    assert read_given_text(tmp_path / "file") == "a\nb\n"
    with pytest.raises(OSError, match="it is larger than 0 MiB"):
        read_given(tmp_path / "file", 4)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(OSError, match="it is larger than 64 MiB"):
        read_given(tmp_path / "sparse")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"from a command",))
    writer.start()
    assert read_given(tmp_path / "pipe") == b"from a command"
    writer.join()
