"""Numbers on the command line."""

from __future__ import annotations

import argparse

import pytest

from nearfar.server_fallback.cli.numbers import count, network, origin, seconds, share, size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("512mb", 512 * 10**6),
        ("1.5GiB", 3 << 29),
        ("2 k", 2000),
        ("7", 7),
        ("1b", 1),
        ("0.5KiB", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 parsecs", "0", "0.1", "1e9", "nan"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size; write 4GB"):
        size_bytes(text)


def test_counts() -> None:
    assert count("1") == 1
    for text in ("0", "-3", "x", "1.5"):
        with pytest.raises(argparse.ArgumentTypeError):
            count(text)


def test_seconds() -> None:
    assert (seconds("0"), seconds("2.5")) == (0, 2.5)
    for text in ("-1", "nan", "inf", "soon"):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds(text)


def test_shares() -> None:
    assert (share("0.25"), share("1")) == (0.25, 1)
    for text in ("0", "1.1", "-1", "nan", "half"):
        with pytest.raises(argparse.ArgumentTypeError):
            share(text)


def test_networks() -> None:
    assert [network(text) for text in ("10.0.0.7", "10.0.0.0/8", "::1")] == ["10.0.0.7/32", "10.0.0.0/8", "::1/128"]
    for text in ("10.0.0.1/8", "proxy.example", "*", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="write an address such as"):
            network(text)


@pytest.mark.parametrize("text", ["https://example.org", "http://localhost:8080", "capacitor://localhost", "*"])
def test_origins(text: str) -> None:
    assert origin(text) == text


@pytest.mark.parametrize(
    "text", ["localhost:8080", "http://localhost:8080/", "https://example.org/page", "example.org", ""]
)
def test_an_origin_that_matches_no_page_is_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not an origin; write"):
        origin(text)
