"""Numbers on the command line."""

from __future__ import annotations

import argparse

import pytest

from nearfar.server_fallback.cli.numbers import count, size_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 4 * 10**9), ("512mb", 512 * 10**6), ("1.5GiB", 3 << 29), ("2 k", 2000), ("7", 7), ("1b", 1), ("0.5KiB", 512)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 parsecs", "0", "0.1", "1e9", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size; write 4GB"):
        size_bytes(text)


def test_counts() -> None:
    assert count("1") == 1
    for text in ("0", "-3", "x", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError):
            count(text)
