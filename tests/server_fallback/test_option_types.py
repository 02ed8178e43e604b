"""Numbers and other types of options."""

from __future__ import annotations

from typing import Any

import pytest

from nearfar.compiler.options import Count, Option, declared, options, size_bytes
from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.option_types import Milliseconds, Seconds, Share, network, node_address, origin


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
    with pytest.raises(ValueError, match="is not a size; write 4GB"):
        size_bytes(text)


@options
class Numbers:
    count: Count = 1
    """a number"""
    seconds: Seconds = 0.0
    """a time"""
    delay_seconds: Milliseconds = 0.0
    """a time"""
    share: Share = 1.0
    """a share"""


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("count", "1", 1),
        ("seconds", "0", 0),
        ("seconds", "2.5", 2.5),
        ("delay_seconds", "5", 0.005),
        ("share", "0.25", 0.25),
        ("share", "1", 1),
    ],
)
def test_numbers(field: str, text: str, value: Any) -> None:
    assert option(field).parse(text) == value
    assert getattr(Numbers(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "texts"),
    [
        ("count", ("0", "-3", "x", "1.5")),
        ("seconds", ("-1", "nan", "inf", "soon")),
        ("delay_seconds", ("-1", "nan", "inf", "soon")),
        ("share", ("0", "1.1", "-1", "nan", "half")),
    ],
)
def test_numbers_out_of_range_are_refused_from_text_and_from_python(field: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match="is"):
            option(field).parse(text)
    with pytest.raises(RequestError, match=f"--{field.replace('_', '-')}: .* is"):
        Numbers(**{field: -1})


def option(field: str) -> Option:
    return next(each for each in declared(Numbers) if isinstance(each, Option) and each.field == field)


def test_networks() -> None:
    assert [network(text) for text in ("10.0.0.7", "10.0.0.0/8", "::1")] == ["10.0.0.7/32", "10.0.0.0/8", "::1/128"]
    for text in ("10.0.0.1/8", "proxy.example", "*", ""):
        with pytest.raises(ValueError, match="write an address such as"):
            network(text)


@pytest.mark.parametrize("text", ["https://example.org", "http://localhost:8080", "capacitor://localhost", "*"])
def test_origins(text: str) -> None:
    assert origin(text) == text


@pytest.mark.parametrize(
    "text", ["localhost:8080", "http://localhost:8080/", "https://example.org/page", "example.org", ""]
)
def test_an_origin_that_matches_no_page_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin; write"):
        origin(text)


@pytest.mark.parametrize("text", ["", "a/b", "a:b", "http://a", "a:70000"])
def test_a_node_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST or HOST:PORT"):
        node_address(text)
