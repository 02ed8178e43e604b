"""Addresses: the IP address that a connection or a request belongs to, also behind trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# An IPv6 site has at least this prefix, so a host can choose among 2^64 addresses of its own.
IPV6_CLIENT_PREFIX = 64


class Addresses:
    """``proxies`` are addresses or networks, such as 10.0.0.0/8, whose X-Forwarded-For is believed. Raises ValueError
    for any other text.
    """

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._proxies = tuple(ip_network(proxy) for proxy in proxies)

    def is_proxy(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._proxies)

    def sender(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """The address that sent a request: the ``peer`` of its connection or, if the peer is a proxy, the last address
        reported by proxies that is not a proxy itself.

        ``forwarded_for`` are the values of X-Forwarded-For. Each proxy appends its peer. So, read from the end,
        everything beyond the first untrusted address may be forged.
        """
        sender = _written(peer)
        for hop in reversed([hop.strip() for value in forwarded_for for hop in value.split(",")]):
            if not self.is_proxy(sender) or _parsed(hop) is None:
                break
            sender = _written(hop)
        return sender


def client_of(address: str) -> str:
    """The name under which limits count an address: the address itself, or its /64 network for IPv6."""
    parsed = _parsed(address)
    return str(ip_network((parsed, IPV6_CLIENT_PREFIX), strict=False)) if isinstance(parsed, IPv6Address) else address


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """None if the text is not an address. Some proxies append a port, and dual-stack sockets write IPv4 addresses as
    IPv6.
    """
    host = (
        text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0] if text.count(":") == 1 else text
    )
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _written(text: str) -> str:
    parsed = _parsed(text)
    return text if parsed is None else str(parsed)
