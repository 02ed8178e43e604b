"""Parsers of option values: counts, shares, seconds, sizes such as 4GB, networks, and origins of pages."""

from __future__ import annotations

import argparse
import math
import re
from ipaddress import ip_network
from urllib.parse import urlsplit

# The port on which the first machine of a model expects the others.
NODE_PORT = 29600

UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def count(text: str, least: int = 1) -> int:
    """At least ``least``. Raises ArgumentTypeError."""
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def node_address(text: str) -> tuple[str, int]:
    """``HOST`` or ``HOST:PORT``, with an IPv6 address in brackets. Raises ArgumentTypeError."""
    try:
        parsed = urlsplit(f"//{text}")
        host, port = parsed.hostname if parsed.netloc == text else None, parsed.port
    except ValueError:
        host, port = None, None
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST or HOST:PORT")
    return host, NODE_PORT if port is None else port


def count_or_none(text: str) -> int:
    """At least 0. Raises ArgumentTypeError."""
    return count(text, 0)


def seconds(text: str) -> float:
    """At least 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{value} is not a number of seconds")
    return value


def milliseconds(text: str) -> float:
    """At least 0. Raises ArgumentTypeError."""
    return seconds(text)


def counts(text: str) -> tuple[int, ...]:
    """Numbers of at least 1, separated by commas. Raises ArgumentTypeError."""
    return tuple(count(part) for part in text.split(","))


def share(text: str) -> float:
    """Above 0, at most 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share; write a number above 0, and at most 1")
    return value


def network(text: str) -> str:
    """An IP address, or a network as address/prefix. Raises ArgumentTypeError."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{error}; write an address such as 10.0.0.7, or a network such as 10.0.0.0/8"
        ) from error


def origin(text: str) -> str:
    """Scheme, host and port, as browsers send an origin: any other text would match no page. "*" stands for every page,
    "null" for a page opened from a file.

    Raises ArgumentTypeError.
    """
    if text not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an origin; write https://example.org or http://localhost:8080, without a path"
        )
    return text


def size_bytes(text: str) -> int:
    """ "512MB", "1.5GiB" or bytes -> bytes, at least 1. Raises ArgumentTypeError."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    size = math.floor(float(parts[1]) * UNITS[parts[2] or ""]) if parts else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 4GB, 512MB or 1.5GiB")
    return size
