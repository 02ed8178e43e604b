"""Types of options: shares, seconds, networks, origins of pages, and addresses of machines. Their functions raise
ValueError.
"""

from __future__ import annotations

import math
import re
from ipaddress import ip_network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from nearfar.compiler.options import Flag, at_least, number

# The port on which the first machine of a model expects the others.
NODE_PORT = 29600

# A silent process is started again after this time: far more than an overloaded machine delays an event loop.
HANG_SECONDS = 60.0

# Units of Go's durations.
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(-?)((?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+|0|\d+(?:\.\d*)?)")
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")


def node_address(text: str) -> tuple[str, int]:
    """``HOST`` or ``HOST:PORT``, with an IPv6 address in brackets."""
    try:
        parsed = urlsplit(f"//{text}")
        host, port = parsed.hostname if parsed.netloc == text else None, parsed.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return host, NODE_PORT if port is None else port


def check_seconds(value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{value} is not a number of seconds")


def seconds_of_milliseconds(text: str) -> float:
    value: float = number(float, text) / 1000
    check_seconds(value)
    return value


def counts(text: str) -> tuple[int, ...]:
    """Numbers of at least 1, separated by commas."""
    found = tuple(number(int, part) for part in text.split(","))
    for value in found:
        at_least(1)(value)
    return found


def check_share(value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{value} is not a share; write a number above 0, and at most 1")


def check_between_0_and_1(value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{value} is not above 0 and below 1")


def check_strength(value: float) -> None:
    if not 0 < value <= 100:
        raise ValueError(f"{value} is not above 0, and at most 100")


def check_share_or_none(value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{value} is not between 0 and 1")


def network(text: str) -> str:
    """An IP address, or a network as address/prefix."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}; write an address such as 10.0.0.7, or a network such as 10.0.0.0/8") from error


def origin(text: str) -> str:
    """Scheme, host and port, as browsers send an origin: any other text would match no page. "*" stands for every page,
    "null" for a page opened from a file.
    """
    if text not in ("*", "null") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", text):
        raise ValueError(
            f"{text!r} is not an origin; write https://example.org or http://localhost:8080, without a path"
        )
    return text


# The kinds of other servers; see `executors/dialect.py`.
Dialect = Literal["openai", "vllm", "sglang", "nearfar"]
Seconds = Annotated[float, Flag(metavar="S", check=check_seconds)]
Milliseconds = Annotated[float, Flag(metavar="MS", parse=seconds_of_milliseconds, check=check_seconds)]
Counts = Annotated[tuple[int, ...], Flag(metavar="N,N", parse=counts)]
Share = Annotated[float, Flag(metavar="SHARE", check=check_share)]
ShareOrNone = Annotated[float, Flag(metavar="SHARE", check=check_share_or_none)]
Network = Annotated[str, Flag(metavar="ADDRESS", parse=network, check=network)]
Origin = Annotated[str, Flag(metavar="ORIGIN", parse=origin, check=origin)]
NodeAddress = Annotated[tuple[str, int], Flag(metavar="HOST[:PORT]", parse=node_address)]
# Options of several commands.
WatermarkShare = Annotated[
    float, Flag(metavar="SHARE", check=check_between_0_and_1, text="the share of all tokens that a watermark raises")
]
WatermarkStrength = Annotated[
    float, Flag(metavar="X", check=check_strength, text="how much a watermark adds to the logits of these tokens")
]
Port = Annotated[int, Flag(metavar="N", text="0 selects a free port")]


def read_duration(value: float | str) -> float:
    """A number of seconds, or Go's form such as "1h30m" -> seconds; infinity if it is negative. Raises ValueError."""
    if isinstance(value, int | float):
        return float(value) if value >= 0 else math.inf
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError('write a number of seconds, or a duration such as "5m" or "1h30m"; -1 for ever')
    if found[1]:
        return math.inf
    parts = _PART.findall(found[2])
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(found[2])
